"""Ids for people: shown as far as they differ from one another, and accepted by any unique beginning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from nousd.errors import ClientError

_DIGITS_MIN: Final = 8
"""Digits that are shown of an id at least, so that it stays unique among later ones for a while."""

_PREFIX_DIGITS_MIN: Final = 4
"""Digits of an id that a beginning has at least: with one id, any digit would mean it."""


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return the beginning of each id that no other one has, of a certain length at least."""
    return {each: _beginning(each, [other for other in ids if other != each]) for each in ids}


def _beginning(id: str, others: Sequence[str]) -> str:
    shortest = id.find("-") + 1 + _DIGITS_MIN
    lengths = range(shortest, len(id))
    unique = (n for n in lengths if not any(other.startswith(id[:n]) for other in others))
    return id[: next(unique, len(id))]


def whole_id(text: str, ids: Iterable[str]) -> str:
    """Return the id that a text means: one of ``ids``, or the only one that begins so, with or without
    the word before its dash. A text that means none is returned as it is.

    Raises:
        ClientError: it can be one of several.
    """
    known = tuple(ids)
    if text in known or len(text.rpartition("-")[2]) < _PREFIX_DIGITS_MIN:
        return text
    found = [id for id in known if id.startswith(text) or id.partition("-")[2].startswith(text)]
    if len(found) > 1:
        raise ClientError("\n".join([f'"{text}" can be one of:', *(f"  {id}" for id in found)]))
    return found[0] if found else text
