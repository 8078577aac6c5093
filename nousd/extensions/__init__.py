"""Plug-in modules: what they may register, and how they are called safely."""
