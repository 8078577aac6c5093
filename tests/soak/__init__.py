"""Hundreds of connections for a long time, and what must not grow."""
