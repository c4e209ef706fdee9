"""Everything that answers HTTP."""
