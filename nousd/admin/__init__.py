"""Work on a state folder without a daemon: check, salvage, backup, vacuum, doctor."""
