"""Tools the model may call, and the walls around them; see ``interface``."""
