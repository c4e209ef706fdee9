"""The E2B dialect (not built yet); nothing native knows it."""
