"""``nousctl input``: prints or verifies the exact input of a model call."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from nousd.cli.client_options import Options
from nousd.cli.output import DONE, FAILED, print_line, say
from nousd.client.artifacts import model_input
from nousd.client.blocking import Connection
from nousd.errors import ClientError, InputNotWhole

_EVENT: Final = "evt-"
_CURSOR_DIGITS_MAX: Final = 18


def show(options: Options, id: str, *, verify: bool) -> int:
    """Print or verify the input of a model call.

    Args:
        id: the id of a ``model_input`` event; or of a run, which means its last answer, or all of
            its calls with ``verify``.
    """
    with options.connect() as daemon:
        events = list(_fetch_events(daemon, id))
        if not events:
            raise ClientError(
                f"{id} is neither a model_input event nor a run that has one; list runs with:"
                " nousctl run list"
            )
        if not verify:
            answers = [event for event in events if event["payload"].get("purpose") != "summary"]
            events = (answers or events)[-1:]
        found_all = [_print_input(daemon, event, verify=verify) for event in events]
    return DONE if all(found_all) else FAILED


def _fetch_events(daemon: Connection, id: str) -> Iterator[dict[str, Any]]:
    """Yield the matching events, oldest first."""
    number = id.removeprefix(_EVENT)
    is_event = id.startswith(_EVENT) and number.isdecimal() and number.isascii()
    if is_event and 0 < int(number[: _CURSOR_DIGITS_MAX + 1]) < 10**_CURSOR_DIGITS_MAX:
        query = {"after": f"{_EVENT}{int(number) - 1}", "types": ["model_input"], "limit": 1}
        page = daemon.request("get_events", query).payload
        yield from (event for event in page["events"] if event["id"] == f"{_EVENT}{int(number)}")
        return
    query = {"run_id": id, "types": ["model_input"]}
    page = daemon.request("get_events", {**query, "after": "evt-0"}).payload
    while page["events"]:
        yield from page["events"]
        page = daemon.request("get_events", {**query, "after": page["next"]}).payload


def _print_input(daemon: Connection, event: dict[str, Any], *, verify: bool) -> bool:
    """Print or verify one input; return whether its hash matches the log."""
    payload = event["payload"]
    if "input_ref" not in payload:
        say(f"{event['id']} was logged by a version that did not keep the input")
        return False
    try:
        text, found = model_input(daemon, payload["input_ref"])
    except InputNotWhole as error:
        say(f"{event['id']}: {error}")
        return False
    if found != payload["input_hash"]:
        say(f"{event['id']}: {found} was found, {payload['input_hash']} was logged")
        return False
    if verify:
        print(f"ok {found} {event['id']}", flush=True)
    elif sys.stdout.isatty():
        print(json.dumps(json.loads(text), indent=2))
    else:
        print_line(text)
    return True
