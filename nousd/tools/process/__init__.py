"""Processes of tools: the supervisor that leaves no orphan, and sandboxed commands."""
