"""The runtime ``opencode``: OpenCode, driven by the HTTP interface of ``opencode serve``."""
