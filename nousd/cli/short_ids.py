"""Shortens ids for people to unique prefixes, and resolves such prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from nousd.errors import ClientError

_DIGITS_MIN: Final = 8
"""Minimum digits of a shortened id, so that it probably stays unique among later ids."""

_PREFIX_DIGITS_MIN: Final = 4
"""Minimum digits of an id prefix; otherwise, with one id, any digit would match."""


def shorten_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return a unique prefix of each id, with at least ``_DIGITS_MIN`` digits."""
    return {each: _beginning(each, [other for other in ids if other != each]) for each in ids}


def _beginning(id: str, others: Sequence[str]) -> str:
    shortest = id.find("-") + 1 + _DIGITS_MIN
    lengths = range(shortest, len(id))
    unique = (n for n in lengths if not any(other.startswith(id[:n]) for other in others))
    return id[: next(unique, len(id))]


def whole_id(text: str, ids: Iterable[str]) -> str:
    """Return the only one of ``ids`` that a text names: the id or a prefix of it, with or without the
    word before its dash. Return a text that matches none unchanged.

    Raises:
        ClientError: several ids match.
    """
    known = tuple(ids)
    if text in known or len(text.rpartition("-")[2]) < _PREFIX_DIGITS_MIN:
        return text
    found = [id for id in known if id.startswith(text) or id.partition("-")[2].startswith(text)]
    if len(found) > 1:
        raise ClientError("\n".join([f'"{text}" can be one of:', *(f"  {id}" for id in found)]))
    return found[0] if found else text
