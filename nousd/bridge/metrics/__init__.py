"""Figures for Prometheus: of what happens (a fold over events), of HTTP, and of the daemon's process.

What is counted here counts from the bridge's start on. No label has a user's text, an id or a path, and
how many values a label can have is bounded, whatever models and servers call their things.
"""
