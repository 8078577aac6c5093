"""Sandboxes that confine the programs of tools."""
