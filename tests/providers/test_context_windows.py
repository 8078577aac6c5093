from __future__ import annotations

import pytest

from nousd.providers.models.context_windows import DEFAULT_WINDOW, context_window


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-4o-mini-2024-07-18", 128_000),
        ("gpt-4.1-nano", 1_047_576),
        ("GPT-5", 400_000),
        ("openai/gpt-5-mini", 400_000),
        ("claude-sonnet-4-5", 200_000),
        ("anthropic/claude-sonnet-5-5", 1_000_000),
        ("my-own-model", DEFAULT_WINDOW),
        ("", DEFAULT_WINDOW),
    ],
)
def test_the_longest_matching_prefix_decides_the_context_window(model: str, tokens: int) -> None:
    assert context_window(model) == tokens
