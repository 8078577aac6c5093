"""The reasoning efforts that OpenAI's models accept, by prefixes of their names. Pure."""

from __future__ import annotations

import re
from typing import Final

from nousd.providers.models.names import plain_name
from nousd.wire.objects.entries import Thinking

_NOT_REASONING: Final = re.compile(r"gpt-[34]|chatgpt-|gpt-5(\.\d+)?-chat")
"""Models that refuse any setting of reasoning."""

_MIN_EFFORTS: Final = (
    (re.compile(r"gpt-5(\.\d+)?-pro"), "high"),
    (re.compile(r"gpt-5(\.\d+)?-codex|codex-|o\d|gpt-oss"), "low"),
    (re.compile(r"gpt-5(-|$)"), "minimal"),
)
"""Models whose reasoning cannot be turned off -> their least effort. All others accept ``none``."""


def reasons(model: str) -> bool:
    """Return whether the model accepts a setting of reasoning."""
    return not _NOT_REASONING.match(plain_name(model))


def effort_for(model: str, thinking: Thinking) -> str:
    """Return the effort to request from a model that accepts one (``reasons``)."""
    if thinking != "off":
        return thinking
    name = plain_name(model)
    return next((effort for beginning, effort in _MIN_EFFORTS if beginning.match(name)), "none")
