"""Sockets and connections: lines in, responses and events out."""
