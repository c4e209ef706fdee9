"""The MCP server (not built yet); a client of the public API."""
