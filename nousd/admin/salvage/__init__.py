"""``nousd check --salvage``: builds a new log from a damaged one."""
