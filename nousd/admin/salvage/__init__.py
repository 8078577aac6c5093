"""``nousd check --salvage``: a new log from a damaged one."""
