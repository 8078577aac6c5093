"""Plays NDJSON conversations: requests and expected responses.

A conversation is a text file (``fixtures/conversations/*.ndjson``); the first characters of a line say
what it is:

    # behaviour: ping_answers_pong     a header; see ``HEADERS``. Headers come before the first step.
    # any other text                   a comment
    > {"v":"1",...}                    is sent on the command socket, with an LF
    >b "...\\xff"                       the same for raw bytes, as a Python bytes literal, no LF added
    < {"v":"1",...}                    the next answer on the command socket
    * {"v":"1",...}                    the next event on the event socket
    *~ {"v":"1",...}                   the next event that matches; those before it are skipped
    *> {"v":"1",...}                   is sent on the event socket, with an LF (a subscription)

``>`` lines that follow each other go out in one write. Before the next ``>``, everything expected
before it must have arrived. Answers are compared in order, events are compared in order; how the two
interleave is not compared. A conversation without event lines looks at no event.

Matching is exact, key for key, except for:

    "$NAME"         any string; the same NAME must be the same string again, and may be used in
                    ``>`` lines further down
    "$*"            any JSON value
    "a-$*-$NAME"    the same inside a string (``$*`` is any text)
    {"...": ""}     an object with this key may have other keys, too
    [..., "..."]    an array that ends so may go on

Everything here works on an ``Exchange``, an object that carries bytes; it does not know sockets.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import trio

from tests.harness.daemon import WAIT_SECONDS

HEADERS = ("behaviour", "daemon", "pipelined")
"""``behaviour``: an id that this conversation proves (may come again). ``daemon``: ``setting=value``
that the daemon needs (may come again). ``pipelined: no``: the steps depend on time passing."""

Pace = Literal["lines", "bytes", "pipelined"]
"""``lines``: one write per group of lines. ``bytes``: one write per byte. ``pipelined``: groups that
need nothing from the answers before them go out in one write."""


class Exchange(Protocol):
    """Both sockets of a daemon as one client sees them. Lines come with their LF."""

    async def send(self, data: bytes) -> None: ...
    async def send_event(self, data: bytes) -> None: ...
    async def receive_answer(self) -> bytes: ...
    async def receive_event(self) -> bytes: ...


@dataclass(frozen=True)
class Step:
    """A line of the file. ``content`` is text for ``>``, bytes for ``>b``, else parsed JSON."""

    number: int
    kind: Literal[">", ">b", "<", "*", "*~", "*>"]
    content: Any


@dataclass(frozen=True)
class Conversation:
    name: str
    headers: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    @property
    def behaviours(self) -> list[str]:
        return self.header("behaviour")

    @property
    def settings(self) -> dict[str, str]:
        """The settings to start the daemon with, from ``# daemon: name=value``."""
        return dict(setting.split("=", 1) for setting in self.header("daemon"))

    @property
    def requests(self) -> dict[str, str]:
        """id -> type of every well-formed request."""
        return dict(found for step in self.steps if (found := _request(step)))

    @property
    def may_be_pipelined(self) -> bool:
        return self.header("pipelined") != ["no"]

    @property
    def looks_at_events(self) -> bool:
        return any(step.kind in ("*", "*~", "*>") for step in self.steps)


def _request(step: Step) -> tuple[str, str] | None:
    try:
        request = json.loads(step.content) if step.kind == ">" else None
        return (request["id"], request["type"]) if isinstance(request, dict) else None
    except (ValueError, KeyError):
        return None


# --- reading ---------------------------------------------------------------------------------

_HEADER = re.compile(r"# ?([a-z_]+): *(\S.*)")
_STEP = re.compile(r"(>b|>|<|\*~|\*>|\*) (.*)")


def load(path: Path) -> Conversation:
    """Read a file.

    Raises:
        ValueError: names the file and the line.
    """
    return parse(path.read_bytes().decode("utf-8"), name=path.stem)


def parse(text: str, *, name: str = "conversation") -> Conversation:
    headers: list[tuple[str, str]] = []
    steps: list[Step] = []
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        if line.startswith("#"):
            header = _HEADER.fullmatch(line)
            if header and not steps:
                if header[1] not in HEADERS:
                    raise ValueError(f"{where}: unknown header {header[1]!r}")
                headers.append((header[1], header[2]))
        elif line:
            steps.append(_parse_step(line, number, where))
    return Conversation(name, tuple(headers), tuple(steps))


def _parse_step(line: str, number: int, where: str) -> Step:
    match = _STEP.fullmatch(line)
    if match is None:
        raise ValueError(f"{where}: neither sent nor expected: {line!r}")
    kind, rest = match.groups()
    try:
        return Step(number, kind, _READERS.get(kind, json.loads)(rest))  # type: ignore[arg-type]
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{where}: {error}") from None


def _raw_bytes(literal: str) -> bytes:
    value = ast.literal_eval(f"b{literal}")
    if not isinstance(value, bytes):
        raise ValueError(f"not a bytes literal: {literal}")
    return value


_READERS: dict[str, Callable[[str], Any]] = {">": str, "*>": str, ">b": _raw_bytes}


# --- matching --------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(r"\$(\*|[A-Z][A-Z0-9_]*)")


class Mismatch(AssertionError):
    """A line that arrived is not the expected one."""


@dataclass
class Bindings:
    """The values bound to the names so far."""

    values: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """Insert the values of names into a line to be sent, escaped as inside of a JSON string."""

        def value(match: re.Match[str]) -> str:
            if match[1] not in self.values:
                raise Mismatch(f"{match[0]} stands for nothing yet")
            return json.dumps(self.values[match[1]])[1:-1]

        return _PLACEHOLDER.sub(value, text)

    def match(self, expected: Any, actual: Any, where: str = "line") -> None:
        """Match a value and bind the names of ``expected``, all or none.

        Raises:
            Mismatch: names the path of the difference.
        """
        attempt = Bindings(dict(self.values))
        attempt._match(expected, actual, where)
        self.values = attempt.values

    def _match(self, expected: Any, actual: Any, where: str) -> None:
        if expected == "$*":
            return
        if isinstance(expected, str) and _PLACEHOLDER.search(expected):
            self._match_text(expected, actual, where)
        elif isinstance(expected, dict) and isinstance(actual, dict):
            self._match_object(expected, actual, where)
        elif isinstance(expected, list) and isinstance(actual, list):
            self._match_array(expected, actual, where)
        elif type(expected) is not type(actual) or expected != actual:
            raise Mismatch(f"{where}: expected {_shown(expected)}, got {_shown(actual)}")

    def _match_object(self, expected: dict[str, Any], actual: dict[str, Any], where: str) -> None:
        missing = [key for key in expected if key != "..." and key not in actual]
        extra = [key for key in actual if key not in expected and "..." not in expected]
        if missing or extra:
            raise Mismatch(f"{where}: keys missing {missing}, not expected {extra}")
        for key, value in expected.items():
            if key != "...":
                self._match(value, actual[key], f"{where}.{key}")

    def _match_array(self, expected: list[Any], actual: list[Any], where: str) -> None:
        wanted = expected
        if expected[-1:] == ["..."]:
            wanted = expected[:-1]
            actual = actual[: len(wanted)]
        if len(wanted) != len(actual):
            raise Mismatch(
                f"{where}: expected {len(wanted)} items, got {len(actual)}: {_shown(actual)}"
            )
        for index, (one, other) in enumerate(zip(wanted, actual, strict=True)):
            self._match(one, other, f"{where}[{index}]")

    def _match_text(self, expected: str, actual: Any, where: str) -> None:
        if not isinstance(actual, str):
            raise Mismatch(f"{where}: expected a string like {expected!r}, got {_shown(actual)}")
        match = re.fullmatch(self._pattern(expected), actual, re.DOTALL)
        if match is None:
            known = {name: value for name, value in self.values.items() if f"${name}" in expected}
            raise Mismatch(f"{where}: expected {expected!r} with {known}, got {actual!r}")
        self.values.update(match.groupdict())

    def _pattern(self, expected: str) -> str:
        new: set[str] = set()
        pieces = []
        end = 0
        for placeholder in _PLACEHOLDER.finditer(expected):
            pieces.append(re.escape(expected[end : placeholder.start()]))
            pieces.append(self._piece(placeholder[1], new))
            end = placeholder.end()
        return "".join(pieces) + re.escape(expected[end:])

    def _piece(self, name: str, new: set[str]) -> str:
        if name == "*":
            return ".*?"
        if name in self.values:
            return re.escape(self.values[name])
        if name in new:
            return f"(?P={name})"
        new.add(name)
        return f"(?P<{name}>.*?)"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:300] + "..."


# --- playing ---------------------------------------------------------------------------------


async def play(
    conversation: Conversation,
    exchange: Exchange,
    *,
    pace: Pace = "lines",
    known: Mapping[str, str] | None = None,
    check_answer: Callable[[bytes], object] = json.loads,
    check_event: Callable[[bytes], object] = json.loads,
) -> dict[str, str]:
    """Play a conversation and return the values of its names.

    Args:
        known: initial values of names.
        check_answer: a function called with every answer, such as ``validation.check_response``.
        check_event: a function called with every event, skipped ones too.

    Raises:
        Mismatch: names the line of the file.
    """
    player = _Player(exchange, Bindings(dict(known or {})), check_answer, check_event)
    for sent, expected in _rounds(conversation, pace):
        await player.send(sent, pace)
        for step in expected:
            try:
                await player.expect(step)
            except Mismatch as error:
                raise Mismatch(f"{conversation.name}:{step.number}: {error}") from None
    return player.bindings.values


_SENT = (">", ">b", "*>")

Round = tuple[list[Step], list[Step]]


def _rounds(conversation: Conversation, pace: Pace) -> Iterator[Round]:
    """Yield the steps sent at once and the steps that must arrive before the next are sent."""
    pipelined = pace == "pipelined" and conversation.may_be_pipelined
    sent: list[Step] = []
    expected: list[Step] = []
    for step in conversation.steps:
        if step.kind not in _SENT:
            expected.append(step)
            continue
        if expected and not (pipelined and _needs_nothing_from(expected, step)):
            yield sent, expected
            sent, expected = [], []
        sent.append(step)
    yield sent, expected


def _needs_nothing_from(expected: list[Step], step: Step) -> bool:
    """Return True if a line can be sent before the lines above it have arrived."""
    if step.kind == "*>" or any(other.kind != "<" for other in expected):
        return False
    return step.kind == ">b" or not _PLACEHOLDER.search(step.content)


@dataclass
class _Player:
    exchange: Exchange
    bindings: Bindings
    check_answer: Callable[[bytes], object]
    check_event: Callable[[bytes], object]

    async def send(self, steps: list[Step], pace: Pace) -> None:
        for target, kinds in (
            (self.exchange.send_event, ("*>",)),
            (self.exchange.send, (">", ">b")),
        ):
            data = b"".join(self._encoded(step) for step in steps if step.kind in kinds)
            pieces = [data[i : i + 1] for i in range(len(data))] if pace == "bytes" else [data]
            for piece in pieces:
                if piece:
                    await target(piece)

    def _encoded(self, step: Step) -> bytes:
        if isinstance(step.content, bytes):
            return step.content
        return self.bindings.fill(step.content).encode() + b"\n"

    async def expect(self, step: Step) -> None:
        if step.kind == "<":
            line = await _received(self.exchange.receive_answer, step)
            self._match(step, line, self.check_answer)
        elif step.kind == "*":
            line = await _received(self.exchange.receive_event, step)
            self._match(step, line, self.check_event)
        else:
            await self._expect_eventually(step)

    async def _expect_eventually(self, step: Step) -> None:
        while True:
            line = await _received(self.exchange.receive_event, step)
            try:
                self._match(step, line, self.check_event)
            except Mismatch:
                continue
            return

    def _match(self, step: Step, line: bytes, check: Callable[[bytes], object]) -> None:
        check(line)
        try:
            self.bindings.match(step.content, json.loads(line))
        except Mismatch as error:
            raise Mismatch(f"{error}\n  in {_shown(json.loads(line))}") from None


async def _received(receive: Callable[[], Awaitable[bytes]], step: Step) -> bytes:
    with trio.move_on_after(WAIT_SECONDS):
        return await receive()
    raise Mismatch(f"nothing came in {WAIT_SECONDS} s, expected {_shown(step.content)}")
