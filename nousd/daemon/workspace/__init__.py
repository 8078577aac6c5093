"""Workspaces: roots, settings of projects, instructions, agents, trust."""
