"""The data plane: command streams to whoever holds a session's token."""
