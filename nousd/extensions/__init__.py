"""Plug-in modules: registration, and safe calls."""
