"""Secrets known by their values: every spelling of one, found in bytes and in streams.

``nousd.redaction.rules`` finds what merely looks like a secret.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from nousd.redaction.rules import names_secret

SECRET_CHARS_MIN: Final = 6
"""Shorter values are never secrets: replacing every ``test`` would spoil the text."""

LONG_SECRET_CHARS_MIN: Final = 12
"""Shorter ones stay in tool output, and the value of a variable that is shorter is not a secret by its
name alone. The key of a model server on this machine is often a word such as ``ollama``, which a model
must be able to read in the code it works on."""


class KnownSecrets(NamedTuple):
    """Known secrets as bytes; made by ``known_secrets``.

    Args:
        spellings: longest first.
        pattern: matches any of them.
        starts: their first bytes.
        longest: the length of the longest.
    """

    spellings: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    starts: frozenset[int]
    longest: int

    def without(self, data: bytes, mark: bytes) -> bytes:
        """Return ``data`` with ``mark`` in the place of each secret."""
        # Most texts have none, and finding that out is ten times as fast without the pattern.
        if not any(spelling in data for spelling in self.spellings):
            return data
        return self.pattern.sub(lambda _: mark, data)

    def begun(self, data: bytes) -> int:
        """Return how many bytes at the end of ``data`` may be the beginning of a secret."""
        for start in range(max(0, len(data) - self.longest + 1), len(data)):
            if data[start] in self.starts:
                end = data[start:]
                if any(spelling.startswith(end) for spelling in self.spellings):
                    return len(end)
        return 0


def known_secrets(spellings: Iterable[str]) -> KnownSecrets:
    """Prepare the search for all of these spellings."""
    encoded = sorted({each.encode(errors="surrogateescape") for each in spellings}, key=len)[::-1]
    return KnownSecrets(
        tuple(encoded),
        re.compile(b"|".join(map(re.escape, encoded)) or rb"(?!)"),
        frozenset(each[0] for each in encoded),
        len(encoded[0]) if encoded else 0,
    )


NOTHING_KNOWN: Final = known_secrets(())


class SecretStream:
    """Removes known secrets from a stream of bytes, also secrets that span two chunks."""

    def __init__(self, known: KnownSecrets, mark: bytes) -> None:
        self._known = known
        self._mark = mark
        self._waiting = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that are safe now; a possible beginning of a secret is held back."""
        told = self._known.without(self._waiting + chunk, self._mark)
        begun = self._known.begun(told)
        self._waiting = told[len(told) - begun :]
        return told[: len(told) - begun]

    def finish(self) -> bytes:
        """Return the bytes held back: the stream has ended, so they are not a secret."""
        rest, self._waiting = self._waiting, b""
        return rest


def secret_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables whose names say that they contain a secret.

    The path of a file with a secret is not one, nor is a word so short that it may occur anywhere.
    """
    for name, value in environ.items():
        is_path = value.startswith(("/", "~", "."))
        if names_secret(name) and not is_path and len(value) >= LONG_SECRET_CHARS_MIN:
            yield value


def spellings_of(secret: str) -> set[str]:
    """Return every form of a secret: plain, in a URL, in the JSON of any encoder, in a Python repr, and
    in Base64 of a text with something before and after it.
    """
    in_json = json.dumps(secret)[1:-1]
    data = secret.encode("utf-8", "surrogateescape")
    return {
        secret,
        urllib.parse.quote(secret, errors="surrogateescape"),
        urllib.parse.quote(secret, safe="", errors="surrogateescape"),
        urllib.parse.quote_plus(secret, errors="surrogateescape"),
        in_json,
        in_json.replace("/", "\\/"),
        in_json.translate(_ESCAPED_FOR_HTML),
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        *(_base64(data, before, signs) for before in range(3) for signs in (b"+/", b"-_")),
    }


_ESCAPED_FOR_HTML: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def _base64(data: bytes, before: int, signs: bytes) -> str:
    """Return the characters that ``data`` alone determines in the Base64 of a text with ``before``
    bytes, or a multiple of three more, in front of it.

    Args:
        signs: the two characters of the alphabet that are neither letters nor digits.
    """
    first = -(-before * 8 // 6)
    encoded = base64.b64encode(bytes(before) + data, signs).decode()
    return encoded[first : (before + len(data)) * 8 // 6]
