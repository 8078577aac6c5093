"""The durable log and its projections behind one narrow interface; see ``interface``."""
