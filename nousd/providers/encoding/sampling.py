"""Sampling parameters under a dialect's names. Pure.

Parameters that a family of models is known to refuse are left out, because a session's settings outlive
a change of its model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from nousd.machine.context.model_input import ModelInput
from nousd.providers.models.effort import reasons
from nousd.providers.models.names import plain_name
from nousd.wire.objects.entries import Sampling, Thinking

RANDOMNESS: Final[Mapping[str, str]] = {"temperature": "temperature", "top_p": "top_p"}
"""Field of ``Sampling`` -> its name in most dialects."""

_OPENAI: Final = re.compile(r"gpt-\d|chatgpt-|o\d|codex-")
"""OpenAI's own models, on any server."""

_FREE_UNLESS_REASONING: Final = re.compile(r"gpt-5\.[1-4](-mini|-nano)?(-\d|$)")
"""Models that accept ``RANDOMNESS`` when reasoning is off; other reasoning models never do."""


def rename_parameters(sampling: Sampling | None, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters under a dialect's names; those without a name are left out."""
    if sampling is None:
        return {}
    renamed = {name: getattr(sampling, field) for field, name in names.items()}
    return {name: value for name, value in renamed.items() if value is not UNSET}


def openai_fields(request: ModelInput, limit: str) -> dict[str, Any]:
    """Return the fields for a request in one of OpenAI's dialects.

    Args:
        limit: the dialect's name for the maximum length of an answer.
    """
    randomness = RANDOMNESS if _accepts_randomness(request.model, request.thinking) else {}
    return rename_parameters(request.sampling, {**randomness, "max_tokens": limit})


def chat_limit(model: str) -> str:
    """Return the Chat Completions name for the maximum length of an answer. OpenAI's newer models
    refuse the older name.
    """
    return "max_completion_tokens" if _OPENAI.match(plain_name(model)) else "max_tokens"


def _accepts_randomness(model: str, thinking: Thinking | None) -> bool:
    name = plain_name(model)
    if not _OPENAI.match(name) or not reasons(model):
        return True
    return thinking == "off" and _FREE_UNLESS_REASONING.match(name) is not None
