"""Titles: what they show of a text, and that they are always one short line of plain text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.session.titles import TITLED_CHARS_MAX, title_of
from nousd.wire.limits import TITLE_CHARS_MAX


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("fix the parser", "fix the parser"),
        ("  fix\tthe \u3000 parser  ", "fix the parser"),
        ("\n \r\n\nfix it\nthen test it", "fix it"),
        ("red \x1b[31mtext\x07", "red [31mtext"),
        ("\x9b2Jcleared", "2Jcleared"),
        ("left \u202etfel\u2069", "left tfel"),
        ("family 👨\u200d👩\u200d👧", "family 👨\u200d👩\u200d👧"),
        ("", None),
        (" \n\u202e\x00\n", None),
        ("\n" * TITLED_CHARS_MAX + "too far", None),
    ],
)
def test_a_title_is_the_first_line_with_something_to_show(text: str, title: str | None) -> None:
    assert title_of(text) == title


def test_a_long_line_is_cut() -> None:
    assert title_of("x" * TITLE_CHARS_MAX) == "x" * TITLE_CHARS_MAX
    assert title_of("word " * 99) == ("word " * 16)[: TITLE_CHARS_MAX - 1].rstrip() + "…"


@given(st.text())
def test_a_title_is_one_line_of_plain_text(text: str) -> None:
    title = title_of(text)
    if title is not None:
        assert 0 < len(title) <= TITLE_CHARS_MAX
        assert title.splitlines() == [title.strip()] == [title]
        assert not any(unicodedata.category(char) == "Cc" for char in title)
        assert title_of(title) == title
