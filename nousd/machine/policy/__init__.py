"""Permission rules over paths, commands and hosts, and the decision on a tool call."""
