"""The verbs of ``nousctl`` that follow events, and ``raw``. They return the exit code.

Each subscribes before its request, or from a cursor, so that it cannot miss the first events.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from nousd.cli.client_options import Options
from nousd.cli.output import DONE, FAILED, harmless, print_line, say
from nousd.cli.render.run_printer import RunPrinter, trouble_text
from nousd.client.answers import ReceivedEvent, decode_answer
from nousd.client.blocking import Connection
from nousd.errors import Refused

# --- prompts ---------------------------------------------------------------------------------


def payload_of(daemon: Connection, values: dict[str, Any]) -> dict[str, Any]:
    """Return the payload for the values of a command line. Reads or uploads attached files."""
    if "attachments" not in values:
        return values
    from nousd.cli.nousctl.artifacts import with_attachments

    return with_attachments(daemon, values)


def prompt_stream(options: Options, payload: dict[str, Any]) -> int:
    """Start a run and show its events until its end."""
    with (
        options.subscribe({"types": "v1"}) as events,
        options.connect() as daemon,
    ):
        answer = daemon.request("prompt", payload_of(daemon, {**payload, "wait": False}))
        tell_hooks(options, answer.payload)
        if "handled_by" in answer.payload:
            if options.json:
                print(json.dumps(answer.payload))
            else:
                print(harmless(answer.payload["reply"]))
            return DONE
        run_id = answer.payload["run_id"]
        try:
            code = _show_until_end(_of_run(events, run_id), options)
        except KeyboardInterrupt:
            tell_how_to_abort(run_id, payload.get("session_id"))
            raise
        if sys.stdout.isatty():
            with suppress(Refused):  # the session may be deleted
                daemon.request("mark_seen", {"session_id": answer.payload["session_id"]})
        return code


def tell_how_to_abort(run: str, session_id: str | None) -> None:
    """Tell the user that an interrupted command has not ended its run."""
    option = "" if session_id is None else f" --session {session_id}"
    say(f"\n{run} goes on; stop it with: nousctl abort{option}")


def tell_hooks(options: Options, payload: Mapping[str, Any]) -> None:
    """Print warnings about extensions."""
    for warning in payload.get("warnings", ()):
        say(trouble_text("warning", warning, verbose=options.verbose))


def _of_run(events: Iterable[ReceivedEvent], run_id: str) -> Iterator[ReceivedEvent]:
    """Yield the events of one run up to its end."""
    for event in events:
        if event.payload.get("run_id") == run_id:
            yield event
            if event.type == "agent_end":
                return


def _show_until_end(events: Iterable[ReceivedEvent], options: Options) -> int:
    status = ""
    printer = RunPrinter(tells_requests=True, verbose=options.verbose)
    for event in events:
        if options.json:
            print_line(event.line)
        else:
            printer.show(event)
        if event.type == "agent_end":
            status = event.payload.get("status", "")
    return DONE if status == "completed" else FAILED


# --- trace and events ------------------------------------------------------------------------


def trace(options: Options, values: dict[str, Any]) -> int:
    """Print every event of a run, from its start to its end."""
    run_id = values["run_id"]
    with options.connect() as daemon:
        daemon.request("get_run", {"run_id": run_id})  # refused for an unknown run
    query = {"after": "evt-0", "run_id": run_id, "types": "all"}
    with options.subscribe(query) as events:
        for event in _of_run(events, run_id):
            print_line(event.line)
    return DONE


def events(options: Options, values: dict[str, Any]) -> int:
    """Print the events after a cursor, up to now; with ``follow``, forever."""
    follow = values.pop("follow", False)
    query = values if "view" in values else {"types": "v1"} | values
    if "view" in values and values.get("after", "").isdecimal():
        query["after_seq"] = int(query.pop("after"))
    if follow:
        with options.subscribe(query) as subscription:
            for event in subscription:
                print_line(event.line)
    for past_event in up_to_now(options, query):
        print_line(_encode_event(past_event))
    return DONE


def up_to_now(options: Options, query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the events after a cursor, up to the one that was newest at the first request."""
    with options.connect() as daemon:
        page = daemon.request("get_events", query).payload
        head = _number(page["head"])
        while page["events"]:
            for event in page["events"]:
                if "id" in event and _number(event["id"]) > head:
                    return
                yield event
            if "view" in query and _number(page["next"]) >= head:
                return
            rest = {key: value for key, value in query.items() if key != "after_seq"}
            page = daemon.request("get_events", {**rest, "after": page["next"]}).payload


def _encode_event(event: Mapping[str, Any]) -> bytes:
    line = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return line.encode("utf-8", "replace")


def _number(event_id: str) -> int:
    return int(event_id.removeprefix("evt-"))


# --- raw -------------------------------------------------------------------------------------


def raw(options: Options, values: dict[str, Any]) -> int:
    """Send lines unchanged, one after the other, and print the response to each."""
    line = values.get("line")
    refused = False
    with options.connect() as daemon:
        for sent in sys.stdin.buffer if line is None else os.fsencode(line).split(b"\n"):
            answer = daemon.exchange(sent.removesuffix(b"\n") + b"\n")
            refused |= decode_answer(answer).refusal is not None
            print_line(answer)
    return FAILED if refused else DONE
