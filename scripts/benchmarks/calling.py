"""From the end of a model's tool call to the model's next request."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from nousd.tools.sandbox._bubblewrap_main import ETC, STAGING
from nousd.tools.sandbox.bubblewrap import Bubblewrap
from nousd.tools.sandbox.detect import Detector, SandboxName
from nousd.tools.sandbox.interface import Request
from nousd.tools.sandbox.visible_paths import SandboxChoices

from .client import Commands, Recording, commands, subscription
from .programs import Measure, daemon, folder, helper, in_turns, model_flags
from .report import Row, at_most
from .yardsticks import bare_commits

_ROUNDS: Final = 40
_BASH: Final = "/bin/bash"
_TRUE: Final = {"command": "true"}
_FILES: Final = 20
_LOOKS: Final = 200
_LOOK_SECONDS: Final = 0.1

_MORE_MS: Final[dict[SandboxName, float]] = {"bubblewrap": 5.0, "landlock": 5.0, "none": 4.0}
"""sandbox -> what a call may take besides the bare command and two commits."""

_SEARCH_MORE_MS: Final = 5.0
_READ_MORE_MS: Final = 1.5
"""What they may take besides a ``read``, and that besides two commits."""


class Caller:
    """Prompts the model of one daemon, whose answer is a tool call, in one session."""

    def __init__(self, connection: Commands, events: Any, session_id: str) -> None:
        self._connection = connection
        self._events = events
        self._session_id = session_id

    async def call_ms(self, tool: str, args: dict[str, Any]) -> float:
        """Return the time from the end of the model's call to its next request."""
        text = f"call {tool} {json.dumps(args)}"
        recording = Recording()
        await self._connection.ask("prompt", text=text, wait=False, session_id=self._session_id)
        await recording.until_runs_ended(self._events)
        (took,) = recording.deltas()
        return int(took.delta) / 1e6

    async def until_offered(self, tool: str) -> None:
        """Wait until there is a tool.

        Raises:
            RuntimeError: there is none.
        """
        for _ in range(_LOOKS):
            tools = (await self._connection.ask("list_tools"))["tools"]
            if any(each["name"] == tool for each in tools):
                return
            await trio.sleep(_LOOK_SECONDS)
        raise RuntimeError(f"there is no tool {tool}")


async def rows() -> list[Row]:
    """``bash true`` in each sandbox that works here and in none, beside the bare command, two commits
    and what is allowed on top; ``read``, ``grep`` and ``find`` of a small folder.
    """
    made: list[Row] = []
    for sandbox in _MORE_MS:
        if sandbox == "none" or Detector(sandbox, SandboxChoices())() is not None:
            made += await _rows_of(sandbox)
    return made


async def _rows_of(sandbox: SandboxName) -> list[Row]:
    with folder() as place, helper("model_stub") as api_base:
        work = small_workspace(place)
        flags = (
            *(*model_flags(api_base), "--allow-exec", "--permission-mode", "yolo"),
            *("--sandbox", sandbox, "--workdir", str(work)),
        )
        async with (
            daemon(place, *flags) as running,
            commands(running.socket) as connection,
            subscription(running.events) as events,
        ):
            session = await connection.ask("new_session")
            caller = Caller(connection, events, session["session_id"])
            with (
                bare_commits(place, at_once=1) as commit_us,
                bare_command(sandbox, work) as bare_ms,
            ):
                measures = [
                    partial(caller.call_ms, "bash", _TRUE),
                    partial(caller.call_ms, "read", {"path": "file-1.txt"}),
                    partial(caller.call_ms, "grep", {"pattern": "7"}),
                    partial(caller.call_ms, "find", {"pattern": "*.txt"}),
                ]
                await in_turns(2, *measures)  # the daemon has loaded all it needs
                committed, bare, bash, read, grep, find = await in_turns(
                    _ROUNDS, commit_us, bare_ms, *measures
                )
    commits = 2 * committed / 1e3
    more = _MORE_MS[sandbox]
    name, beside = _names(sandbox)
    rows = [
        Row(
            f"bash true{name}",
            bash,
            bare + commits + more,
            "ms",
            f"{beside} + 2 commits + {more:g} ms",
            at_most(1),
        ),
        Row(f"the same, beside {beside}", bash, bare, "ms", beside),
    ]
    if sandbox == "none":
        ours = f"read + {_SEARCH_MORE_MS:g} ms"
        allowed = f"2 commits + {_READ_MORE_MS:g} ms"
        rows += [
            Row("read of a small file", read, commits + _READ_MORE_MS, "ms", allowed, at_most(1)),
            Row("grep in a small folder", grep, read + _SEARCH_MORE_MS, "ms", ours, at_most(1)),
            Row("find in a small folder", find, read + _SEARCH_MORE_MS, "ms", ours, at_most(1)),
        ]
    return rows


def small_workspace(place: Path) -> Path:
    """Make a workspace of some small files."""
    work = place / "work"
    work.mkdir()
    for number in range(_FILES):
        (work / f"file-{number}.txt").write_text(f"the number {number}\n" * 20)
    return work


def _names(sandbox: SandboxName) -> tuple[str, str]:
    """Return how a sandbox is named in a row, and its yardstick."""
    if sandbox == "bubblewrap":
        return ", bubblewrap", "bare bwrap + bash"
    return (", Landlock" if sandbox == "landlock" else ", no sandbox"), "bare bash"


@contextmanager
def bare_command(sandbox: SandboxName, work: Path) -> Iterator[Measure]:
    """Give the time of the bare command in milliseconds; bubblewrap's with the daemon's arguments."""
    argv = [_BASH, "-c", "true"]
    if sandbox != "bubblewrap":
        yield _run_ms(argv, work)
        return
    found = Detector("bubblewrap", SandboxChoices())()
    assert isinstance(found, Bubblewrap)
    request = Request(argv=argv, env={"PATH": "/usr/bin:/bin"}, workdir=work)
    with found.hold(request) as held:
        yield _run_ms(_without_layout(list(held.argv), work), work, held.descriptors)


def _without_layout(argv: list[str], work: Path) -> list[str]:
    """Return bubblewrap's command line with the folders themselves that the daemon lays out for it."""
    program = next(number for number, word in enumerate(argv) if word.endswith("/bwrap"))
    laid_out = {ETC: "/etc", f"{STAGING}/0": str(work)}
    return [laid_out.get(word, word) for word in argv[program:]]


def _run_ms(argv: list[str], work: Path, descriptors: tuple[int, ...] = ()) -> Measure:
    async def run_ms() -> float:
        for descriptor in descriptors:
            os.lseek(descriptor, 0, os.SEEK_SET)
        start = time.perf_counter()
        # The client has nothing else to do meanwhile.
        subprocess.run(argv, check=True, cwd=work, pass_fds=descriptors)  # noqa: ASYNC221
        return (time.perf_counter() - start) * 1e3

    return run_ms
