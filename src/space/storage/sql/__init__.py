"""The Store port over SQL: schema, queries, migrations."""
