"""Numbered, forward-only changes of the schema; see `storage.sql.schema`, which runs them."""
