"""Runtimes carry out turns; see ``interface``."""
