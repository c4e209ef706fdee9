"""What a node serves: command streams."""
