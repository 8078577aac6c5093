"""The runtime ``codex``: Codex, driven by the JSON-RPC of its app-server."""
