"""Renders responses and events as text for people."""
