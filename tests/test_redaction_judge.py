"""The table of secrets beside that of a scanner: every secret that the scanner finds is redacted."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.keyword import DENYLIST
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nousd.redaction.redactor import Redactor
from nousd.redaction.rules import RULES
from tests.suites import examples

NOT_JUDGED = {"Public IP (ipv4)", "Private Key"}
"""The first may stand in a bug report; of the second the scanner knows the title alone."""

SECRET_CHARS_MIN = 16
"""A vendor's patterns also match what is too short for one of its keys."""

QUOTES = set("'\"\\\\")
"""A key has none: where one is, two values touch."""

ASCII = st.characters(min_codepoint=32, max_codepoint=126)


def is_key(secret: str, text: str) -> bool:
    """Return whether a match could be a key: a word of letters after another word is none."""
    is_assigned = any(sign in text for sign in "=:")
    return len(secret) >= SECRET_CHARS_MIN and (is_assigned or not secret.isalpha())


def detectors() -> Iterator[RegexBasedDetector]:
    kinds: dict[str, type] = get_mapping_from_secret_type_to_class()
    for kind, detector in sorted(kinds.items()):
        if issubclass(detector, RegexBasedDetector) and kind not in NOT_JUDGED:
            yield detector()


CASES = [
    (detector, pattern)
    for detector in detectors()
    for pattern in detector.denylist
    if pattern.pattern
]


@pytest.mark.parametrize(
    ("detector", "pattern"),
    CASES,
    ids=[f"{detector.secret_type} {pattern.pattern[:24]}" for detector, pattern in CASES],
)
@pytest.mark.slow(keep=6)
def test_a_secret_that_the_scanner_finds_is_redacted(
    detector: RegexBasedDetector, pattern: re.Pattern[str]
) -> None:
    @settings(max_examples=examples(30), deadline=None, phases=[Phase.generate])
    @given(st.from_regex(pattern, fullmatch=True, alphabet=ASCII))
    def check(matched: str) -> None:
        for before in ("it is ", "it is\\n", "it is\\\\t"):
            compare(matched, before)

    def compare(matched: str, before: str) -> None:
        # Vendors write their own names and keys in lower case.
        plain = matched.lower() if pattern.flags & re.IGNORECASE else matched
        text = f"{before}{re.sub(' +', ' ', plain)} there"
        shown = Redactor(rules=RULES).redact(text)
        secrets = map(str, filter(None, detector.analyze_string(text)))
        found = {secret for secret in secrets if not QUOTES & set(secret)}
        # A user's name may be the password as well, and stays.
        left = [
            secret
            for secret in found
            if is_key(secret, text) and shown.count(secret) == text.count(secret)
        ]
        assert not left, (text, shown)

    check()


@pytest.mark.parametrize("word", DENYLIST)
@pytest.mark.parametrize("line", ['{} = "{}"', "{}: {}", '"my_{}": "{}"', "--{} {}", "{}='{}'"])
def test_a_value_under_a_name_that_the_scanner_knows_is_redacted(word: str, line: str) -> None:
    for name in {word.replace("_?", "_"), word.replace("_?", "").upper()}:
        text = line.format(name, "Zq8-vLu3.xT0")
        assert "Zq8-vLu3.xT0" not in Redactor(rules=RULES).redact(text), text
