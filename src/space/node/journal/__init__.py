"""Journals: what a command printed, as a file before it is a stream (DESIGN §1, idea 4)."""
