"""A module for each dialect that providers speak to servers; see ``tests.providers.conformance``."""

from __future__ import annotations

from tests.providers.conformance import Dialect
from tests.providers.dialects.anthropic import ANTHROPIC
from tests.providers.dialects.openai import OPENAI

DIALECTS: tuple[Dialect, ...] = (OPENAI, ANTHROPIC)
"""A further dialect is one row, and the whole suite runs on it."""
