"""gVisor through Debian's `runsc`."""

from space.runtimes.gvisor.runtime import GVisor

__all__ = ["GVisor"]
