"""MCP servers of the daemon: configured, added, and watched."""
