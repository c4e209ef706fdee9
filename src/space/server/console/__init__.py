"""The web console (not built yet)."""
