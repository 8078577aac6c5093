"""``nousd check``: verifies the invariants of a log."""
