"""One suite a port; a test module calls it with a factory."""
