"""Finds secrets known by their values, in every spelling, in bytes, texts and streams.

``nousd.redaction.rules`` finds texts that merely look like secrets.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import AnyStr, Final, Generic

from nousd.redaction.rules import names_secret

SECRET_CHARS_MIN: Final = 6
"""Shorter values are never secrets: replacing every ``test`` would spoil the text."""

LONG_SECRET_CHARS_MIN: Final = 12
"""Shorter secrets stay in the output of tools and models, and a shorter value of a variable is not a
secret by its name alone. The key of a model server on this machine is often a word such as ``ollama``,
which a model must be able to read and write in code."""


_TAIL: Final = 4
"""Characters at the end of a text that are compared first: they rule out nearly every beginning of a
secret."""


@dataclass(frozen=True, slots=True)
class KnownSecrets(Generic[AnyStr]):
    """Known secrets as bytes or as texts; made by ``compile_secrets``.

    Args:
        spellings: sorted.
        pattern: matches any of them, the longest first.
        joined: all of them in one text.
        starts: their first characters.
        shortest: the length of the shortest.
        longest: the length of the longest.
    """

    spellings: tuple[AnyStr, ...]
    pattern: re.Pattern[AnyStr]
    joined: AnyStr
    starts: frozenset[AnyStr]
    shortest: int
    longest: int

    def without(self, data: AnyStr, mark: AnyStr) -> AnyStr:
        """Return ``data`` with ``mark`` in the place of each secret."""
        return self.pattern.sub(lambda _: mark, data) if self.has_match(data) else data

    def has_match(self, data: AnyStr) -> bool:
        """Return whether ``data`` holds a secret."""
        # Most texts hold no secret, and this test is ten times as fast as the pattern.
        return len(data) >= self.shortest and any(spelling in data for spelling in self.spellings)

    def measure_partial(self, data: AnyStr) -> int:
        """Return the length of the end of ``data`` that may be the beginning of a secret."""
        length_max = self.longest - 1 if data[-_TAIL:] in self.joined else _TAIL - 1
        for start in range(max(0, len(data) - length_max), len(data)):
            end = data[start:]
            if end[:1] not in self.starts:
                continue
            # In sorted order, the spellings that begin with ``end`` directly follow it.
            index = bisect_right(self.spellings, end)
            if index < len(self.spellings) and self.spellings[index].startswith(end):
                return len(end)
        return 0


def compile_secrets(spellings: Iterable[AnyStr], separator: AnyStr) -> KnownSecrets[AnyStr]:
    """Compile the search for all of these spellings.

    Args:
        separator: ``|`` in the type of the spellings.
    """
    by_length = sorted(set(spellings), key=len)
    return KnownSecrets(
        tuple(sorted(by_length)),
        re.compile(separator.join(map(re.escape, reversed(by_length)))),
        separator.join(by_length),
        frozenset(spelling[:1] for spelling in by_length),
        len(by_length[0]) if by_length else 0,
        len(by_length[-1]) if by_length else 0,
    )


class SecretStream(Generic[AnyStr]):
    """Removes known secrets from a stream of bytes or texts, even if they span several chunks."""

    def __init__(self, known: KnownSecrets[AnyStr], mark: AnyStr) -> None:
        self._known: KnownSecrets[AnyStr] = known
        self._mark: AnyStr = mark
        self._held_back: AnyStr = mark[:0]

    def feed(self, chunk: AnyStr) -> AnyStr:
        """Return the data that is safe to show; hold back a possible beginning of a secret."""
        if not self._known.spellings:
            return chunk
        data = self._held_back + chunk
        safe = len(data) - self._known.measure_partial(data)
        if self._known.has_match(data):
            return self._without(data, safe)
        self._held_back = data[safe:]
        return data[:safe]

    def _without(self, data: AnyStr, safe: int) -> AnyStr:
        """Replace the secrets that begin before ``safe``; a later one may still become a longer one."""
        pieces = []
        done = 0
        for found in self._known.pattern.finditer(data):
            if found.start() >= safe:
                break
            pieces += [data[done : found.start()], self._mark]
            done = found.end()
            if done > safe:
                safe = len(data) - self._known.measure_partial(data[done:])
        pieces.append(data[done:safe])
        self._held_back = data[safe:]
        return data[:0].join(pieces)

    def finish(self) -> AnyStr:
        """Return the data that was held back, at the end of the stream. A complete secret in it is
        replaced; a mere beginning of one is not.
        """
        rest, self._held_back = self._held_back, self._held_back[:0]
        return self._known.without(rest, self._mark)


def secret_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables whose names indicate a secret.

    The path of a file with a secret is not yielded, nor is a value so short that it may occur anywhere.
    """
    for name, value in environ.items():
        is_path = value.startswith(("/", "~", "."))
        if names_secret(name) and not is_path and len(value) >= LONG_SECRET_CHARS_MIN:
            yield value


def spellings_of(secret: str) -> set[str]:
    """Return every form of a secret: plain, in a URL, in the JSON of any encoder, in a Python repr, and
    in the Base64 of a longer text that contains it.
    """
    json_text = json.dumps(secret)[1:-1]
    data = secret.encode("utf-8", "surrogateescape")
    return {
        secret,
        urllib.parse.quote(secret, errors="surrogateescape"),
        urllib.parse.quote(secret, safe="", errors="surrogateescape"),
        urllib.parse.quote_plus(secret, errors="surrogateescape"),
        json_text,
        json_text.replace("/", "\\/"),
        json_text.translate(_ESCAPED_FOR_HTML),
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        *(_base64(data, offset, signs) for offset in range(3) for signs in (b"+/", b"-_")),
    }


_ESCAPED_FOR_HTML: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def _base64(data: bytes, offset: int, signs: bytes) -> str:
    """Return the characters that ``data`` alone determines in the Base64 of a text with ``offset``
    bytes, or a multiple of three more, in front of it.

    Args:
        signs: the two characters of the alphabet that are neither letters nor digits.
    """
    first = -(-offset * 8 // 6)
    encoded = base64.b64encode(bytes(offset) + data, signs).decode()
    return encoded[first : (offset + len(data)) * 8 // 6]
