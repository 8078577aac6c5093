"""The runtime ``claude``: Claude Code, driven by its stream of JSON in both directions."""
