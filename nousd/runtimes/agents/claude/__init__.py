"""The runtime ``claude``: Claude Code, driven by JSON streams in both directions."""
