"""The `space` command; one file a subcommand.  A client of the public API through `space.sdk`."""
