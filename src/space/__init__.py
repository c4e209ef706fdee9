"""SPACE: a sandboxed platform for agentic code execution.

Import `space.sdk` to use a server; everything else here is the server itself (see ARCHITECTURE.md)."""

__version__ = "0.1.0"
