"""Canonical JSON (RFC 8785) and its hash: equal values have the same text.

Clients in any language can compute the same hash: keys are sorted by their UTF-16 code units, there is
no white space between tokens, numbers are written as in ECMAScript, and strings escape only the
characters that JSON requires. A number is a double; a number that no double can represent has no
canonical form, and ``expressible`` replaces it.

Lone surrogates, which UTF-8 cannot encode, become U+FFFD as everywhere on the wire (``codec.envelope``).
"""

from __future__ import annotations

import hashlib
import json.encoder
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from nousd.errors import NotCanonical
from nousd.wire.codec.envelope import scrub

_EXACT_MAX: Final = 2**53 - 1
"""Up to this bound every whole number is a distinct double."""

_POINT_DIGITS_MAX: Final = 21
_ZEROS_MAX: Final = 6
"""ECMAScript writes an exponent for more digits before the point, or more zeros after it, than these."""

_encoder: Final = msgspec.json.Encoder(order="sorted")
"""Encodes simple values (``is_simple``) in a fraction of the time."""

_string: Final[Callable[[str], str]] = json.encoder.encode_basestring


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of dicts, lists, tuples, strings, numbers, booleans and None.

    Raises:
        NotCanonical: the value contains a number that no double can represent, a key that is not a
            string, or a type that JSON does not have.
    """
    try:
        if is_simple(value):
            return _encoder.encode(value)
        parts: list[str] = []
        _write(value, parts)
        return "".join(parts).encode()
    except UnicodeEncodeError:
        return _encode_scrubbed(value)


def hash_of(value: Any) -> str:
    """Return ``sha256:`` and the hex digest of the value's canonical JSON. Raises NotCanonical."""
    return digest(canonical(value))


def digest(data: bytes) -> str:
    """Return ``sha256:`` and the hex digest of bytes: an artifact's id, or an input's hash."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_simple(value: Any) -> bool:
    """Return whether any encoder with sorted keys writes the canonical JSON of a value: it contains only
    texts, booleans, None and small whole numbers, under ASCII keys.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_EXACT_MAX <= value <= _EXACT_MAX)
    # Loops, because a generator would be one more frame for each level of a value.
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or not is_simple(item):
                return False
    elif kind is list or kind is tuple:
        for item in value:
            if not is_simple(item):
                return False
    else:
        return False
    return True


def expressible(value: Any, instead: Callable[[int], Any] = str) -> Any:
    """Return the value with the whole numbers replaced that no double can represent; the same object if
    there are none.

    Args:
        instead: returns the replacement of such a number: its digits, or ``nearest``.
    """
    if is_simple(value):
        return value
    match value:
        case bool():
            return value
        case int():
            return value if _is_double(value) else instead(value)
        case dict():
            changed = {key: expressible(item, instead) for key, item in value.items()}
            return changed if any(changed[key] is not value[key] for key in value) else value
        case list() | tuple():
            items = [expressible(item, instead) for item in value]
            same = all(one is other for one, other in zip(items, value, strict=True))
            return value if same else items
        case _:
            return value


def nearest(number: int) -> float | str:
    """Return the double nearest to a whole number, or its digits if it is out of range."""
    try:
        return float(number)
    except OverflowError:
        return str(number)


def _write(value: Any, parts: list[str]) -> None:
    match value:
        case str():
            parts.append(_string(value))
        case None:
            parts.append("null")
        case bool():
            parts.append("true" if value else "false")
        case int():
            parts.append(_whole_number(value))
        case float():
            parts.append(_number(value))
        case dict():
            _write_object(value, parts)
        case list() | tuple():
            _write_array(value, parts)
        case _:
            raise NotCanonical(f"{type(value).__name__} is no value of JSON")


def _write_object(value: dict[Any, Any], parts: list[str]) -> None:
    separator = "{"
    for key in _sort_keys(value):
        parts.append(separator)
        parts.append(_string(key))
        parts.append(":")
        _write(value[key], parts)
        separator = ","
    parts.append("{}" if separator == "{" else "}")


def _write_array(value: list[Any] | tuple[Any, ...], parts: list[str]) -> None:
    separator = "["
    for item in value:
        parts.append(separator)
        _write(item, parts)
        separator = ","
    parts.append("[]" if separator == "[" else "]")


def _sort_keys(keys: dict[Any, Any]) -> list[str]:
    for key in keys:
        if not isinstance(key, str):
            raise NotCanonical(f"a key is {type(key).__name__} and not a string")
        if not key.isascii():
            return sorted(keys, key=_utf16)
    return sorted(keys)


def _utf16(key: Any) -> bytes:
    if not isinstance(key, str):
        raise NotCanonical(f"a key is {type(key).__name__} and not a string")
    return key.encode("utf-16-be", "surrogatepass")


def _encode_scrubbed(value: Any) -> bytes:
    """Encode a value with lone surrogates. If keys become equal, the last one wins."""
    clean = json.loads(scrub(json.dumps(value, ensure_ascii=False)))
    parts: list[str] = []
    _write(clean, parts)
    return "".join(parts).encode()


# --- numbers ---------------------------------------------------------------------------------


def _is_double(number: int) -> bool:
    """Return whether a whole number is a double, or the canonical spelling of one."""
    if -_EXACT_MAX <= number <= _EXACT_MAX:
        return True
    try:
        double = float(number)
    except OverflowError:
        return False
    return int(double) == number or _number(double) == str(number)


def _whole_number(number: int) -> str:
    if -_EXACT_MAX <= number <= _EXACT_MAX:
        return int.__repr__(number)
    if not _is_double(number):
        raise NotCanonical("a whole number is too large to be a double")
    return _number(float(number))


def _number(number: float) -> str:
    """Return a double as ECMAScript's Number::toString writes it."""
    if not math.isfinite(number):
        raise NotCanonical(f"{number} is no number of JSON")
    if number == 0:
        return "0"
    sign, digits, point = _shortest(number)
    count = len(digits)
    if count <= point <= _POINT_DIGITS_MAX:
        text = digits + "0" * (point - count)
    elif 0 < point <= _POINT_DIGITS_MAX:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -_ZEROS_MAX < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        fraction = f".{digits[1:]}" if count > 1 else ""
        text = f"{digits[0]}{fraction}e{point - 1:+d}"
    return sign + text


def _shortest(number: float) -> tuple[str, str, int]:
    """Return the sign, the fewest digits that identify the double, without trailing zeros, and the
    number of digits before the decimal point, which may be negative.
    """
    negative, digits, exponent = Decimal(float.__repr__(number)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    return "-" if negative else "", text.rstrip("0"), len(text) + exponent
