"""Our sessions, for editors that speak the Agent Client Protocol; see ``host``."""
