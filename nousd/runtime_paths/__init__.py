"""Paths of files and sockets, and how directories and locks are taken."""
