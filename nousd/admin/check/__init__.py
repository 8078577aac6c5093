"""``nousd check``: a log against everything that must be true of it."""
