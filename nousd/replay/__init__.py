"""Replays stored runs without models or tools, and makes fixtures of runs with their raw streams."""
