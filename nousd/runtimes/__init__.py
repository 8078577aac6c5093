"""What carries out a turn; see ``interface``."""
