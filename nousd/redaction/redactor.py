"""Replaces secrets in texts and JSON on their way out of nousd.

JSON is redacted value by value, so that it stays JSON. No I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nousd.redaction.known import (
    LONG_SECRET_CHARS_MIN,
    SECRET_CHARS_MIN,
    SecretStream,
    compile_secrets,
    spellings_of,
)
from nousd.redaction.rules import Rule, names_secret

REDACTED: Final = "[redacted]"
"""Replaces a secret that is known by its value."""


class Redactor:
    """Replaces secrets; ``counts`` is the number of replacements by kind.

    Args:
        secrets: values of keys and tokens; empty and too short ones are skipped.
        rules: patterns of further secrets.
        mark: replaces a secret that is known by its value.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        *,
        rules: Sequence[Rule] = (),
        mark: str = REDACTED,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._rules = rules
        self._mark = mark
        self._signs = _signs_of(rules)
        self._spellings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._long: set[str] = set()
        self._known_texts = compile_secrets(self._long, "|")
        self._known_bytes = compile_secrets(_encode_spellings(self._long), b"|")
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Add a secret, such as a token that was just created."""
        secret = secret.strip()
        if len(secret) < SECRET_CHARS_MIN:
            return
        self._spellings.update(spellings_of(secret))
        # Longest first, because a secret may begin with another one.
        ordered = sorted(self._spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(spelling) for spelling in ordered))
        if len(secret) >= LONG_SECRET_CHARS_MIN:
            self._long.update(spellings_of(secret))
            self._known_texts = compile_secrets(self._long, "|")
            self._known_bytes = compile_secrets(_encode_spellings(self._long), b"|")

    def redact_output(self, text: str) -> str:
        """Return a text of a tool or a model without known secrets that have at least
        ``LONG_SECRET_CHARS_MIN`` characters.
        """
        return self._known_texts.without(text, self._mark)

    def redact_output_bytes(self, data: bytes) -> bytes:
        """Like ``redact_output``, for a text in UTF-8."""
        return self._known_bytes.without(data, self._mark.encode())

    def redact_output_json(self, value: Any) -> Any:
        """Like ``redact_output``, for every text, number and key in a decoded JSON value."""
        return self._without_known(value) if self._long else value

    def _without_known(self, value: Any) -> Any:
        match value:
            case str():
                return self.redact_output(value)
            case list():
                return [self._without_known(item) for item in value]
            case dict():
                return {
                    self.redact_output(name): self._without_known(item)
                    for name, item in value.items()
                }
            case int() | float():
                # A key may consist of digits and be written without quotes.
                text = self.redact_output(str(value))
                return value if text == str(value) else text
            case _:
                return value

    def stream(self) -> SecretStream[bytes]:
        """Like ``redact_output_bytes``, for one text that comes in chunks."""
        return SecretStream(self._known_bytes, self._mark.encode())

    def text_stream(self) -> SecretStream[str]:
        """Like ``redact_output``, for one text that comes in pieces."""
        return SecretStream(self._known_texts, self._mark)

    def redact(self, text: str) -> str:
        """Return ``text`` with every secret replaced."""
        if self._rules:
            # UTF-16 decoded as UTF-8 has a NUL beside each letter, so that no rule would match.
            text = text.replace("\0", "")
        # Most texts hold no secret, and this test is ten times as fast as the pattern.
        if self._pattern is not None and any(known in text for known in self._spellings):
            text, times = self._pattern.subn(self._mark, text)
            self._count("known", times)
        for rule in self._rules if self._may_hold_one(text) else ():
            text = self._without(rule, text)
        return text

    def _may_hold_one(self, text: str) -> bool:
        return self._signs is None or self._signs.search(text.lower()) is not None

    def redact_json(self, value: Any) -> Any:
        """Return a decoded JSON value with its strings and keys redacted one by one.

        With rules, every value under a key that names a secret is replaced.
        """
        match value:
            case str():
                return self.redact(value)
            case list():
                return [self.redact_json(item) for item in value]
            case dict():
                return {
                    self.redact(name): (
                        self._mask(item)
                        if self._rules and names_secret(name)
                        else self.redact_json(item)
                    )
                    for name, item in value.items()
                }
            case _:
                return value

    def _mask(self, value: Any) -> Any:
        match value:
            case None | bool() | "":
                return value
            case list():
                return [self._mask(item) for item in value]
            case dict():
                return {self.redact(name): self._mask(item) for name, item in value.items()}
            case _:
                self._count("variable", 1)
                return _format_marker("variable")

    def _without(self, rule: Rule, text: str) -> str:
        times = 0

        def replace_match(found: re.Match[str]) -> str:
            nonlocal times
            start, end = _place_of_secret(found)
            if start == end or text.startswith(REDACTED[:-1], start):
                return found[0]
            times += 1
            return (
                f"{text[found.start() : start]}{_format_marker(rule.kind)}{text[end : found.end()]}"
            )

        redacted = rule.pattern.sub(replace_match, text)
        self._count(rule.kind, times)
        return redacted

    def _count(self, kind: str, times: int) -> None:
        if times:
            self.counts[kind] += times


def _encode_spellings(spellings: Iterable[str]) -> Iterator[bytes]:
    return (spelling.encode(errors="surrogateescape") for spelling in spellings)


def _signs_of(rules: Sequence[Rule]) -> re.Pattern[str] | None:
    """Return a pattern that occurs in every text that a rule can match; None if a rule has no signs."""
    if not all(rule.signs for rule in rules):
        return None
    signs = sorted({sign for rule in rules for sign in rule.signs})
    return re.compile("|".join(map(re.escape, signs)) if signs else r"(?!)")


def _place_of_secret(found: re.Match[str]) -> tuple[int, int]:
    """Return the span of the secret in a match: of the group that matched, or of the whole match."""
    groups = found.groupdict()
    names = ["secret"] if "secret" in groups else [name for name in groups if name != "mark"]
    for name in names:
        if groups[name]:
            return found.span(name)
    return found.span() if not found.re.groups else (0, 0)


def _format_marker(kind: str) -> str:
    return f"[redacted:{kind}]"
