"""``nousd doctor``: checks the machine and the settings."""
