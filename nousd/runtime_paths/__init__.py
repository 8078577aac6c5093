"""Paths of files and sockets, private directories, locks, and tokens."""
