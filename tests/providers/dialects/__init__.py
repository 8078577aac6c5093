"""A module for each provider dialect; see ``tests.providers.conformance``."""

from __future__ import annotations

from tests.providers.conformance import Dialect
from tests.providers.dialects.anthropic import ANTHROPIC
from tests.providers.dialects.gemini import GEMINI
from tests.providers.dialects.openai import OPENAI
from tests.providers.dialects.responses import RESPONSES

DIALECTS: tuple[Dialect, ...] = (OPENAI, RESPONSES, ANTHROPIC, GEMINI)
"""A further dialect is one row, and the whole suite runs on it."""
