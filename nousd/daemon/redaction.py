"""Takes the secrets that the daemon holds out of texts on their way out of it.

It knows the secrets by value and does not search for what merely looks like one: what a user or a
tool wrote is theirs. It does no I/O.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "[redacted]"

SECRET_CHARS_MIN: Final = 6
"""Shorter values are no secrets, and replacing every ``test`` would spoil the text."""


class Redactor:
    """Replaces known secrets in texts.

    Args:
        secrets: values of keys and tokens; empty and too short ones are skipped.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._spellings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Makes one more secret known, such as a token that was made just now."""
        secret = secret.strip()
        if len(secret) < SECRET_CHARS_MIN:
            return
        self._spellings.update(_spellings(secret))
        # Longest first: a secret may begin with another one.
        ordered = sorted(self._spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(spelling) for spelling in ordered))

    def redact(self, text: str) -> str:
        """Returns ``text`` with every known secret replaced by ``[redacted]``."""
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)


def _spellings(secret: str) -> set[str]:
    """The forms in which a secret turns up in errors: as it is, in a URL, in JSON, in a repr."""
    return {
        secret,
        urllib.parse.quote(secret),
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    }
