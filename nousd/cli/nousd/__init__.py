"""``nousd``: the daemon's program, and the commands on a state directory."""
