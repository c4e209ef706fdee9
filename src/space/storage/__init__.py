"""What lasts."""
