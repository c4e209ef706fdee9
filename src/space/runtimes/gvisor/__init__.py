"""gVisor through Debian's `runsc`."""
