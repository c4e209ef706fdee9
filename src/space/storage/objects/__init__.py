"""The object store (not built yet)."""
