"""The daemon: sockets, the hub, one task per active run, the command table, lifetime, the only clock.

Import from the modules; this package re-exports nothing.
"""
