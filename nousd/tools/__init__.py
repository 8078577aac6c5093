"""Tools that models can call, and the sandboxes of their processes; see ``interface``."""
