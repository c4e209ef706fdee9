"""The steps of each kind of operation."""
