"""Requests as a client sends them."""

from __future__ import annotations

import json
from typing import Any

from nousd.wire.codec.envelope import Request, decode_payload, decode_request
from nousd.wire.commands import Command


def decode(line: bytes | str) -> Command:
    return decode_payload(decode_request(line.encode() if isinstance(line, str) else line))


def request(type_: str, payload: Any) -> Request:
    return decode_request(
        json.dumps({"v": "1", "id": "a", "type": type_, "payload": payload}).encode()
    )
