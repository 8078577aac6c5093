"""Plays conversations with older daemons of v1 again, against a daemon of today.

A recording (``fixtures/v1-recordings/*.ndjson``) has a line for each thing that happened:

    > {...}             sent on the command socket
    >b '...\\xff'        the same as a Python bytes literal, with its LF
    >deep N {... $}     the same, with N arrays inside each other at the dollar sign
    < {...}             the answer
    * {...}             an event

Ids are numbered in the order in which they occur. The mock model answered, or a model that
``RecordedModel`` stands for.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from nousd.extensions.loader import load_extensions
from nousd.machine.context.model_input import ModelInput, ToolResultMessage, UserMessage
from nousd.providers.interface import (
    NO_BLOBS,
    Blobs,
    Finished,
    Receive,
    TextDelta,
    ToolCallPiece,
)
from nousd.providers.setup.registry import make_provider
from nousd.wire.objects.entries import Usage
from tests.daemon.scripted import OneModel
from tests.harness.daemon import Client, Events, memory_daemon
from tests.harness.validation import check_response

Line = dict[str, Any]

WAIT_SECONDS: Final = 15
"""The time limit for one step; only a failing test reaches it."""

_ID: Final = re.compile(r"(sess|msg|cmp|run|sync|user|assistant)-[0-9]+|call_[0-9]+_[0-9]+")


@dataclass(frozen=True)
class Exchange:
    """A line that was sent, its answer, and the events up to the next line."""

    sent: bytes
    answer: Line
    events: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Recording:
    """A conversation with an older daemon."""

    name: str
    exchanges: tuple[Exchange, ...]

    @property
    def events(self) -> list[Line]:
        return [event for exchange in self.exchanges for event in exchange.events]


def load(path: Path) -> Recording:
    """Read a recording."""
    exchanges: list[Exchange] = []
    for step in path.read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        kind, _, rest = step.partition(" ")
        if kind.startswith(">"):
            exchanges.append(Exchange(_line_of(kind, rest), {}))
        elif kind == "<":
            exchanges[-1] = replace(exchanges[-1], answer=json.loads(rest))
        else:
            assert kind == "*", f"{path.name}: {step}"
            events = (*exchanges[-1].events, json.loads(rest))
            exchanges[-1] = replace(exchanges[-1], events=events)
    return Recording(path.stem, tuple(exchanges))


def _line_of(kind: str, rest: str) -> bytes:
    if kind == ">b":
        return bytes(ast.literal_eval("b" + rest))
    if kind == ">deep":
        depth, _, rest = rest.partition(" ")
        rest = rest.replace("$", "[" * int(depth) + "]" * int(depth))
    return rest.encode() + b"\n"


# --- ids ---------------------------------------------------------------------------------------


class Names:
    """Which id of today stands for which recorded one."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}

    def match(self, recorded: str, ours: str) -> bool:
        """Return whether the two are ids of the same thing; the first two that meet are."""
        return self._ours.setdefault(recorded, ours) == ours

    def learn(self, recorded: Any, ours: Any) -> None:
        """Learn the ids of two answers that have the same shape."""
        if isinstance(recorded, dict) and isinstance(ours, dict):
            for key in recorded.keys() & ours.keys():
                self.learn(recorded[key], ours[key])
        elif isinstance(recorded, list) and isinstance(ours, list) and len(recorded) == len(ours):
            for one, other in zip(recorded, ours, strict=True):
                self.learn(one, other)
        elif is_id(recorded) and isinstance(ours, str):
            self._ours.setdefault(recorded, ours)

    def translated(self, line: bytes) -> bytes:
        """Return a recorded line with the ids of today."""
        return re.sub(
            rb'"(?:sess|msg|cmp)-[0-9]+"',
            lambda found: json.dumps(self._ours.get(found[0].decode()[1:-1], "unknown")).encode(),
            line,
        )


def is_id(value: Any) -> bool:
    """Return whether a recorded value is an id that was counted."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


# --- the model ---------------------------------------------------------------------------------


_USAGE: Final = Usage(input=3, output=2, total=5)


class RecordedModel(OneModel):
    """The model of the recordings: the newest text of the user says what it answers.

    ``[[slow:N:S]]`` is a stream of N words, ``[[tools:A;;B]]`` calls tools, anything else is answered
    with ``stub-reply``. It says no more than ``words_max`` words of a slow stream.
    """

    name: Final = "recorded"
    default_model = "recorded-model"

    def __init__(self) -> None:
        self.words_max: float = math.inf
        self._may_speak = trio.lowlevel.ParkingLot()

    def allow(self, words: float) -> None:
        """Say slow streams up to that many words."""
        self.words_max = words
        self._may_speak.unpark_all()

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        text = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
        last = request.messages[-1]
        if slow := re.fullmatch(r"\[\[slow:([0-9]+):[0-9.]+\]\]", text):
            await self._speak_slowly(int(slow[1]), receive)
        elif tools := re.fullmatch(r"\[\[tools:(.*)\]\]", text, re.DOTALL):
            calls = tools[1].split(";;")
            if isinstance(last, ToolResultMessage):
                await receive(TextDelta(f"after-tools({len(calls)})"))
                await receive(Finished("stop"))
            else:
                await _call(calls, receive)
        else:
            for word in ("stub-", "reply"):
                await receive(TextDelta(word))
            await receive(Finished("stop", _USAGE))

    async def _speak_slowly(self, words: int, receive: Receive) -> None:
        for number in range(words):
            while number >= self.words_max:
                await self._may_speak.park()
            await receive(TextDelta(f"tok{number} "))
        while self.words_max < math.inf:
            await self._may_speak.park()
        await receive(Finished("stop", _USAGE))


async def _call(calls: list[str], receive: Receive) -> None:
    await receive(TextDelta("calling tools "))
    for number, call in enumerate(calls):
        name, _, given = call.partition(" ")
        # A second is no time to steer in; the player says when the command may end.
        given = given.replace("sleep 1;", "until [ -e steered ]; do sleep 0.01; done;")
        arguments = given if given.startswith("{") else json.dumps({"command": given})
        await receive(ToolCallPiece(f"call_1_{number}", name, arguments))
    await receive(Finished("tool_use", Usage(input=7, output=5, total=12)))


# --- the player --------------------------------------------------------------------------------


@dataclass
class Played:
    """What a daemon of today answered and reported."""

    answers: list[Line]
    events: list[Line]
    names: Names


async def play(recording: Recording, folder: Path) -> Played:
    """Send the lines of a recording, each when as much has happened as had happened then.

    A client that sends nothing on the event socket reads the events.
    """
    model = RecordedModel()
    is_mock = not any(b"[[" in exchange.sent for exchange in recording.exchanges)
    extensions = load_extensions((), demo=True)
    async with (
        memory_daemon(
            workdir=folder,
            provider=make_provider("mock") if is_mock else model,
            tools=extensions.tools,
            extension_commands=extensions.commands,
            hooks=extensions.hooks,
        ) as daemon,
        trio.open_nursery() as nursery,
    ):
        watcher = _Watcher(await daemon.listen())
        nursery.start_soon(watcher.watch)
        client = await daemon.connect()
        if b"new_session" not in recording.exchanges[0].sent:
            # Its daemon had an active session from before.
            await client.request("new_session")
        player = _Player(client, model, watcher, folder)
        for exchange in recording.exchanges:
            await player.play(exchange)
        nursery.cancel_scope.cancel()
    return Played(player.answers, watcher.events, player.names)


class _Watcher:
    """Collects events."""

    def __init__(self, stream: Events) -> None:
        self.events: list[Line] = []
        self._stream = stream
        self._came = trio.lowlevel.ParkingLot()

    async def watch(self) -> None:
        while True:
            # No time limit of its own: between two lines of a recording nothing may happen.
            self.events.append(await self._stream.receive(seconds=math.inf))
            self._came.unpark_all()

    async def wait_until(self, condition: Callable[[list[Line]], bool]) -> None:
        with trio.fail_after(WAIT_SECONDS):
            while not condition(self.events):
                await self._came.park()


class _Player:
    def __init__(
        self, client: Client, model: RecordedModel, watcher: _Watcher, folder: Path
    ) -> None:
        self.answers: list[Line] = []
        self.names = Names()
        self._client = client
        self._model = model
        self._watcher = watcher
        self._folder = folder
        self._recorded: list[Line] = []

    async def play(self, exchange: Exchange) -> None:
        self._recorded += exchange.events
        streams = bool(self._recorded) and self._recorded[-1]["type"] == "message_update"
        self._model.allow(_words_of_run(self._recorded) if streams else math.inf)
        await self._client.send(self.names.translated(exchange.sent))
        answer = check_response(await self._client.receive_line())
        self.answers.append(answer)
        self.names.learn(exchange.answer, answer)
        if answer["payload"].get("command") == "steer":
            (self._folder / "steered").touch()
        if answer["payload"].get("command") == "abort":
            # An older daemon had ended the run when the next line came.
            await self._watcher.wait_until(_has_ended)
        else:
            await self._watcher.wait_until(self._has_happened)

    def _has_happened(self, events: list[Line]) -> bool:
        """Return whether as much has happened as in the recording up to here."""
        if not self._recorded:
            return True
        last = self._recorded[-1]["type"]
        if last == "message_update":
            return _text_of(events).endswith(_text_of(self._recorded[-1:]))
        return _count(events, last) >= _count(self._recorded, last)


def _count(events: list[Line], type: str) -> int:
    return sum(event["type"] == type for event in events)


def _words_of_run(events: list[Line]) -> int:
    """Return how many words the newest run has said."""
    start = max(n for n, event in enumerate(events) if event["type"] == "agent_start")
    return _count(events[start:], "message_update")


def _has_ended(events: list[Line]) -> bool:
    return _count(events, "agent_end") == _count(events, "agent_start")


def _text_of(events: list[Line]) -> str:
    return "".join(e["payload"]["delta"] for e in events if e["type"] == "message_update")
