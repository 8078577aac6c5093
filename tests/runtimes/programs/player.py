"""Plays a recording in place of the program that was recorded (``recorder.py``, ``recordings.py``).

Usage: ``player.py FILE MARKS ...``. Whatever the program said is said again, in order; where it was sent
something the player waits until it is sent the same. Ids and paths that are others this time are
replaced in what is said later. Each start plays the next ``life``. At a ``mark`` it
makes a file of that name in the folder MARKS: all that stands before has been said.

Standard library only: it runs alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

SECONDS_MAX = 60.0
LEARNED_CHARS_MIN = 8
"""Shorter texts are words that may stand anywhere."""


def shape(message: Any) -> tuple[Any, ...]:
    """Return what a message is recognized by: what it asks for, or what it answers."""
    if "verb" in message:
        return (message["verb"], message["path"])
    if "method" in message:
        return ("method", message["method"])
    if "type" in message:
        asked = message.get("request", {}).get("subtype")
        return (message["type"], asked, message.get("response", {}).get("request_id"))
    return ("answer", message["id"])


class Received:
    """The messages that nobody has waited for yet."""

    def __init__(self, messages: Iterable[Any]) -> None:
        self._messages: list[Any] = []
        self._changed = threading.Condition()
        self._is_over = False
        threading.Thread(target=self._read, args=[messages], daemon=True).start()

    def _read(self, messages: Iterable[Any]) -> None:
        for message in messages:
            with self._changed:
                self._messages.append(message)
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def like(self, recorded: Any) -> Any:
        """Return the first message that is like a recorded one, waiting for it."""
        wanted = shape(recorded)
        deadline = time.monotonic() + SECONDS_MAX
        with self._changed:
            while True:
                for index, message in enumerate(self._messages):
                    if shape(message) == wanted:
                        return self._messages.pop(index)
                left = deadline - time.monotonic()
                if self._is_over or left <= 0 or not self._changed.wait(left):
                    sys.exit(f"player: nothing was sent like {json.dumps(recorded)[:300]}")


class Player:
    """Plays one recording.

    Args:
        to: what the program is sent.
    """

    def __init__(self, marks: Path, to: Received | None = None) -> None:
        self._marks = marks
        self._to = to or Received(_messages(sys.stdin.buffer))
        self._names: dict[str, str] = {}
        self._ids: dict[Any, Any] = {}
        self._tools: IO[bytes] | None = None
        self._tools_from: Received | None = None
        self._server: tuple[list[str], dict[str, str]] = ([], {})

    def play(self, entries: Iterable[dict[str, Any]]) -> None:
        """Play entries, and then wait for the end of the input."""
        for entry in entries:
            ((name, what),) = entry.items()
            match name:
                case "from":
                    self._say(self._as_now(what))
                case "to":
                    self._learn(what, self._to.like(what))
                case "tools_to":
                    _send(self._started_tools(), self._as_now(what))
                case "tools_from":
                    assert self._tools_from is not None
                    self._tools_from.like(what)
                case "mark":
                    (self._marks / what).touch()
        self._wait_for_the_end()

    def _say(self, message: Any) -> None:
        _send(sys.stdout.buffer, message)

    def _wait_for_the_end(self) -> None:
        self._to.like({"type": "the end of the input"})

    def _as_now(self, recorded: Any) -> Any:
        text = json.dumps(recorded)
        for before, now in sorted(self._names.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(before, now)
        message = json.loads(text)
        if "method" not in message and message.get("id") in self._ids:
            message["id"] = self._ids[message["id"]]
        return message

    def _learn(self, recorded: Any, actual: Any) -> None:
        if "method" in recorded and "id" in recorded:
            self._ids[recorded["id"]] = actual["id"]
        servers = actual.get("params", {}).get("mcpServers") if "params" in actual else None
        if isinstance(servers, list) and servers:
            (server,) = servers
            variables = {each["name"]: each["value"] for each in server["env"]}
            self._server = ([server["command"], *server["args"]], variables)
        for before, now in _differences(recorded, actual):
            self._names.setdefault(json.dumps(before)[1:-1], json.dumps(now)[1:-1])

    def _started_tools(self) -> IO[bytes]:
        if self._tools is None:
            command, variables = self._server
            program = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **variables},
            )
            assert program.stdin is not None
            assert program.stdout is not None
            self._tools, self._tools_from = program.stdin, Received(_messages(program.stdout))
        return self._tools


def _messages(stream: IO[bytes]) -> Iterator[Any]:
    return (json.loads(line) for line in stream)


def _differences(recorded: Any, actual: Any) -> Iterator[tuple[str, str]]:
    """Yield texts at the same place of two messages that differ."""
    if isinstance(recorded, dict) and isinstance(actual, dict):
        for key in recorded.keys() & actual.keys():
            yield from _differences(recorded[key], actual[key])
    elif isinstance(recorded, list) and isinstance(actual, list):
        for before, now in zip(recorded, actual, strict=False):
            yield from _differences(before, now)
    elif recorded != actual and _is_learned(recorded) and isinstance(actual, str):
        yield recorded, actual


def _is_learned(recorded: Any) -> bool:
    return isinstance(recorded, str) and len(recorded) >= LEARNED_CHARS_MIN


def _send(stream: IO[bytes], message: Any) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def main(player: Callable[[Path], Player], path: str, marks: str) -> None:
    """Play the next life that was recorded; the rest of the file is what came of it."""
    lives: list[list[dict[str, Any]]] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "life" in entry:
            lives.append([])
        elif "event" not in entry:
            lives[-1].append(entry)
    for number, entries in enumerate(lives):
        with contextlib.suppress(FileExistsError):
            (Path(marks) / f"life-{number}").touch(exist_ok=False)
            player(Path(marks)).play(entries)
            return
    sys.exit("player: it was not started so often")


if __name__ == "__main__":
    main(Player, sys.argv[1], sys.argv[2])
