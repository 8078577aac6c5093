"""Prints the events of runs for people while they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from nousd.cli.output import sanitize_output, say, snippet
from nousd.cli.render.refusals import cause_text, provider_hint
from nousd.cli.render.request_lines import waiting_lines
from nousd.client.answers import ReceivedEvent

_REDUNDANT_WARNINGS: Final = frozenset({"provider_aborted", "tool_blocked"})
"""Warnings that add nothing to the end of the run or call, which follows immediately."""

_REASON_CHARS_MAX: Final = 400


_CODES: Final = re.compile(r"tool_error: (?:[a-z]+(?:_[a-z]+)+: (?=.* ))?")


def _without_codes(text: str) -> str:
    """Return the text of a failed call without the leading codes, which are for the model."""
    found = _CODES.match(text)
    return text[found.end() :] if found else text


def _outcome(payload: Mapping[str, Any]) -> str:
    result = payload.get("result", "")
    if payload.get("is_error"):
        return f"failed: {snippet(_without_codes(result), _REASON_CHARS_MAX)}"
    return f"done: {snippet(result)}"


def trouble_text(kind: str, payload: Mapping[str, Any], *, verbose: bool = False) -> str:
    """Return a warning or an error as a line for people.

    Args:
        kind: the first word of the line.
        payload: the event's payload, with ``code``, ``message`` and optionally ``cause``.
        verbose: whether to show the code.
    """
    code, message = payload["code"], payload["message"]
    cause = cause_text(payload.get("cause"))
    if verbose:
        return f"{kind}: {code}: {message}{cause}"
    first, _, rest = message.partition(": ")
    if first == code:
        text = rest if " " in rest else f"{code.replace('_', ' ')}: {rest}"
    else:
        text = message if " " in message else message.replace("_", " ")
    of = "extension " if code.startswith("extension_") else ""
    return f"{kind}: {of}{text}{cause}"


class Output(Protocol):
    """Shows a run. It receives raw texts and must make them harmless."""

    def write(self, text: str) -> None:
        """Show a piece of an answer."""

    def remark(self, text: str) -> None:
        """Show whole lines that are not part of an answer."""


class _Streams:
    """Prints answers to standard output, and remarks to standard error."""

    def write(self, text: str) -> None:
        print(sanitize_output(text), end="", flush=True)

    def remark(self, text: str) -> None:
        say(text)


class RunPrinter:
    """Prints runs for a person.

    Each remark begins on its own line, even in the middle of an answer.

    Args:
        output: by default, answers go to standard output and remarks to standard error.
        tells_requests: whether to print pending requests with the commands that answer them.
        verbose: whether to show the codes of the wire.
    """

    def __init__(
        self, output: Output | None = None, *, tells_requests: bool = False, verbose: bool = False
    ) -> None:
        self._output = output or _Streams()
        self._tells_requests = tells_requests
        self._verbose = verbose
        self._in_line = False

    def show(self, event: ReceivedEvent) -> None:
        """Print one event."""
        payload = event.payload
        match event.type:
            case "message_update":
                self._output.write(payload["delta"])
                self._in_line = not payload["delta"].endswith("\n")
            case "message_end":
                self._end_line()
            case "tool_execution_start":
                args = json.dumps(payload["args"], ensure_ascii=False) if "args" in payload else ""
                self._remark(f"[{payload['tool_name']}] {snippet(args)}")
            case "tool_execution_end":
                self._remark(f"[{payload['tool_name']}] {_outcome(payload)}")
            case "status" if self._tells_requests:
                for line in waiting_lines(payload["message"]):
                    self._remark(line)
            case "warning":
                if payload["code"] not in _REDUNDANT_WARNINGS:
                    self._remark(trouble_text("warning", payload, verbose=self._verbose))
                self._hint(payload)
            case "error":
                self._remark(trouble_text("error", payload, verbose=self._verbose))
                self._hint({"hint": provider_hint(payload["cause"])} | payload)
            case "agent_end" if payload.get("status") != "completed":
                self._remark(f"the run ended: {payload.get('status')}")

    def _hint(self, payload: Mapping[str, Any]) -> None:
        if hint := payload.get("hint"):
            self._remark(hint)

    def _remark(self, text: str) -> None:
        self._end_line()
        self._output.remark(text)

    def _end_line(self) -> None:
        if self._in_line:
            self._output.write("\n")
            self._in_line = False
