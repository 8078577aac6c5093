"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes depends on the machine and says nothing about it.
settings.register_profile("nousd", deadline=None)
settings.load_profile("nousd")
