"""Ways to isolate a guest; one folder each."""
