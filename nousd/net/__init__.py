"""Sockets: accepting, peer credentials, byte streams, Unix socket files."""
