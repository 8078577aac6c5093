"""``nousd doctor``: checks of the machine and the settings."""
