"""The runtime ``claude``: Claude Code, driven over its JSON streams in both directions."""
