"""A request's body as JSON that every server can read: lone surrogates become U+FFFD. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from nousd.wire.codec.envelope import scrub


def encode_body(body: dict[str, Any]) -> bytes:
    """Return the body as JSON; equal bodies give equal bytes. Parts that are JSON already
    (``msgspec.Raw``) stay as they are.
    """
    return _encode(body)


def encode_items(items: list[dict[str, Any]]) -> bytes:
    """Return items of a list as ``encode_body`` encodes them, separated by commas, without brackets."""
    return _encode(items)[1:-1]


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_scrub_value(value))


def _scrub_value(value: Any) -> Any:
    match value:
        case str():
            return scrub(value)
        case dict():
            return {scrub(key): _scrub_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_scrub_value(item) for item in value]
        case _:
            return value


def json_text(value: Any) -> str:
    """Return a value as JSON text, for dialects that put it into a string of the body."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False)
