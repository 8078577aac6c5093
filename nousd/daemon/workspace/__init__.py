"""Workspaces: allowed directories, projects, instructions, agents, trust."""
