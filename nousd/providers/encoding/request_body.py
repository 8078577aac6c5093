"""A request's body as JSON that every server can read: lone surrogates become U+FFFD. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from nousd.wire.codec.envelope import scrub


def encode_body(body: dict[str, Any]) -> bytes:
    """Return the body as JSON; equal bodies give equal bytes, and a part gives its part of them. Parts
    that are JSON already (``msgspec.Raw``) stay as they are.
    """
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        text = json.dumps(body, ensure_ascii=False, default=msgspec.json.decode)
        return msgspec.json.encode(msgspec.json.decode(scrub(text)))


def json_text(value: Any) -> str:
    """Return a value as JSON text within a body, for dialects that want it quoted."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False)
