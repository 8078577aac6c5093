"""Validates the daemon's lines against the published schemas; every test that reads lines uses it.

It deliberately does not import the daemon's own structs: the schemas are what client authors have.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema_rs import Draft202012Validator

SCHEMAS = Path(__file__).resolve().parents[2] / "protocol" / "schemas"


def check_response(line: bytes) -> dict[str, Any]:
    """Assert that ``line`` is a valid answer, and return it."""
    return _check("responses", line)


def check_event(line: bytes) -> dict[str, Any]:
    """Assert that ``line`` is a valid event, and return it."""
    return _check("events", line)


def check_command(line: bytes) -> dict[str, Any]:
    """Assert that ``line`` is a valid command, and return it."""
    return _check("commands", line)


def check_subscription(line: bytes) -> dict[str, Any]:
    """Assert that ``line`` is a valid request for the event socket, and return it."""
    return _check("subscribe", line)


def check_normalized(line: bytes) -> dict[str, Any]:
    """Assert that ``line`` is a valid event of the normalized view, and return it."""
    return _check("normalized", line)


def _check(schema: str, line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n"), f"the line does not end with an LF: {_shown(line)}"
    assert line.count(b"\n") == 1, f"more than one line: {_shown(line)}"
    try:
        value = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise AssertionError(f"not JSON in UTF-8 ({error}): {_shown(line)}") from None
    assert isinstance(value, dict), f"not an object: {_shown(line)}"
    validator = _validators(schema).get(value.get("type", ""))
    assert validator is not None, f"{schema} have no type {value.get('type')!r}: {_shown(line)}"
    fault = next(validator.iter_errors(value), None)
    if fault is not None:
        where = ".".join(str(step) for step in fault.instance_path) or "the line"
        raise AssertionError(f"{schema}: {where}: {fault.message}\n  in {_shown(line)}")
    return value


@functools.cache
def _validators(name: str) -> dict[str, Draft202012Validator]:
    """Return one validator per type, so that an error names the intended type."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return {
        key.removeprefix("line."): Draft202012Validator(
            {"$ref": f"#/$defs/{key}", "$defs": schema["$defs"]}
        )
        for key in schema["$defs"]
        if key.startswith("line.")
    }


def _shown(line: bytes) -> str:
    return repr(line if len(line) <= 500 else line[:500] + b"...")
