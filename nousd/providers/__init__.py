"""Model dialects behind one small interface; see ``interface``."""
