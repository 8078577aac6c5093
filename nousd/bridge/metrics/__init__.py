"""Metrics for Prometheus: counters folded from events, of HTTP, and of the daemon's process.

Counters start at zero with the bridge. No label contains a user's text, an id or a path, and the number
of values of a label is bounded, whatever names models and servers use.
"""
