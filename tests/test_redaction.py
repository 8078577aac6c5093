from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable

import pytest

from nousd.redaction import SECRET_CHARS_MIN, Redactor


def test_every_occurrence_of_every_secret_is_replaced() -> None:
    redactor = Redactor(["sk-first-key", "sk-second-key"])
    assert redactor.redact("sk-first-key, sk-second-key, sk-first-key.") == (
        "[redacted], [redacted], [redacted]."
    )


def test_a_text_without_secrets_stays_as_it_is() -> None:
    assert Redactor(["sk-first-key"]).redact("sk-other-key") == "sk-other-key"
    assert Redactor().redact("sk-other-key") == "sk-other-key"


def test_a_secret_that_begins_with_another_one_is_replaced_whole() -> None:
    assert Redactor(["abcdef", "abcdefghi"]).redact("abcdefghi") == "[redacted]"
    assert Redactor(["abcdefghi", "abcdef"]).redact("abcdefghi") == "[redacted]"


def test_a_secret_made_later_is_known_from_then_on() -> None:
    redactor = Redactor(["sk-first-key"])
    assert redactor.redact("tok-12345") == "tok-12345"
    redactor.add("tok-12345")
    assert redactor.redact("tok-12345 sk-first-key") == "[redacted] [redacted]"


@pytest.mark.parametrize(
    "spell",
    [
        str,
        repr,
        json.dumps,
        lambda secret: json.dumps(secret, ensure_ascii=False),
        urllib.parse.quote,
        lambda secret: urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus,
    ],
    ids=["as_it_is", "repr", "ascii_json", "json", "url", "url_part", "form"],
)
def test_a_secret_is_known_in_every_spelling(spell: Callable[[str], str]) -> None:
    secret = 'key "one"/two\\ß+&'
    redacted = Redactor([secret]).redact(f"GET {spell(secret)}")
    assert "one" not in redacted
    assert redacted.strip("GET \"'") == "[redacted]"


def test_a_secret_is_a_text_and_not_a_pattern() -> None:
    assert Redactor(["a.c*e(f"]).redact("abccce(f a.c*e(f") == "abccce(f [redacted]"


def test_the_line_end_that_a_key_file_brings_is_no_part_of_the_secret() -> None:
    assert Redactor(["sk-first-key\n"]).redact("sk-first-key") == "[redacted]"


@pytest.mark.parametrize("secret", ["", "   ", "x" * (SECRET_CHARS_MIN - 1)])
def test_what_is_too_short_to_be_a_secret_spoils_no_text(secret: str) -> None:
    assert Redactor([secret]).redact(f"xxxxxxx {secret}") == f"xxxxxxx {secret}"
