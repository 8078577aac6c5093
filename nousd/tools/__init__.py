"""Tools that models can call, and the sandboxes around them; see ``interface``."""
