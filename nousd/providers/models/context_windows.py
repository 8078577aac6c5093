"""The context windows of known models, in tokens.

Servers do not report them reliably, so this is a small table of name prefixes; the longest match
counts. A setting overrides it for other models.
"""

from __future__ import annotations

from typing import Final

from nousd.providers.models.names import row_of

DEFAULT_WINDOW: Final = 128_000
"""For a model that is not in the table; most hosted models accept at least this."""

WINDOWS: Final[dict[str, int]] = {
    "chatgpt-4o": 128_000,
    "claude-": 200_000,
    "claude-fable-5": 1_000_000,
    "claude-haiku-5": 1_000_000,
    "claude-mythos-5": 1_000_000,
    "claude-opus-5": 1_000_000,
    "claude-sonnet-5": 1_000_000,
    "codestral": 256_000,
    "deepseek-": 128_000,
    "devstral": 128_000,
    "gemini-": 1_048_576,
    "gemma-3": 128_000,
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "gpt-oss": 131_072,
    "grok-3": 131_072,
    "grok-4": 256_000,
    "kimi-k2": 131_072,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "mistral-large": 128_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    "qwen2.5": 32_768,
    "qwen3": 131_072,
}
"""Prefix of a model's name in lower case -> tokens."""


def context_window(model: str) -> int:
    """Return the model's window; a vendor before a slash (``openai/gpt-4o``) is ignored."""
    return row_of(WINDOWS, model, DEFAULT_WINDOW)
