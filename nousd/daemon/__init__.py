"""The daemon: sockets, the hub, one task per active run, the command table, lifetime."""
