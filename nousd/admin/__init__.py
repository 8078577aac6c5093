"""Works on a state directory without a daemon: check, salvage, backup, vacuum, bundle, doctor."""
