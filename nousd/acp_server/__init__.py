"""Serves the sessions to editors that speak the Agent Client Protocol; see ``host``."""
