"""Shared by tests: daemons in memory and over sockets, model stubs, checkers of streams and schemas."""
