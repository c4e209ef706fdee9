"""Linux primitives: the only code that starts processes or needs root."""
