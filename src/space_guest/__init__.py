"""The guest agent: stdlib only, imports nothing of SPACE, built to one zipapp."""
