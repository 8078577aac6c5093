"""Our own programs that start no process: they run without a supervisor, and end with the daemon's end
of their socket whatever they are doing.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.tools.own_program import own_program
from nousd.tools.process import supervisor
from nousd.tools.process.fork_server import fork_server
from nousd.tools.process.process_table import descendants
from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import another_daemon
from tests.tools.test_searching import CATASTROPHIC
from tests.tools.test_supervisor_windows import LONG_SECONDS, descriptors_of, gone

SEARCH = own_program("nousd.tools.search._search_main")

COMPUTING_TICKS = 5
"""Processor time after which a search is not preparing any more."""

# After so long a grace period the fork server would end it.
DAEMON = f"""
import sys, trio
from pathlib import Path
from nousd.tools.process.supervisor import run_supervised
trio.run(lambda: run_supervised(
    [*{SEARCH!r}, sys.argv[1]],
    cwd=Path("/"), env={{}}, on_output=lambda chunk: None,
    timeout_seconds=60, grace_seconds={LONG_SECONDS},
))
"""


def endless_search(folder: Path) -> str:
    (folder / "a.txt").write_text("a" * 60 + "!\n")
    return json.dumps(
        {
            **CATASTROPHIC,
            "command": "grep",
            "workdir": str(folder),
            "real_workdir": str(folder),
            "hidden": [],
            "hard_links": False,
            "may_miss": False,
            "opened": None,
            "closed": [],
        }
    )


async def searching_below(daemon: int) -> int:
    """Return the process that the fork server of a daemon has forked for a search, once it computes."""
    while True:
        for process in descendants(daemon):
            is_of_the_server = process.parent != daemon
            if is_of_the_server and ticks_of(process.id) >= COMPUTING_TICKS:
                return process.id
        await trio.sleep(0.01)


def fields_of(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def ticks_of(process: int) -> int:
    return int((fields_of(process) or ["0"] * 12)[11])


@asynccontextmanager
async def searching(
    folder: Path, ends: list[ProcessEnd]
) -> AsyncIterator[tuple[int, trio.CancelScope]]:
    """Run a search that never ends; provide its process, and the scope of its call."""

    async def search() -> None:
        ends.append(
            await run_supervised(
                [*SEARCH, endless_search(folder)],
                cwd=folder,
                env={},
                on_output=lambda chunk: None,
                timeout_seconds=10 * WAIT_SECONDS,
            )
        )

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(search)
            yield await searching_below(os.getpid()), nursery.cancel_scope


async def test_it_is_the_child_of_the_fork_server_and_has_no_descriptors_but_its_own(
    tmp_path: Path,
) -> None:
    async with searching(tmp_path, []) as (process, call):
        assert int(fields_of(process)[1]) == fork_server().pid
        opened = descriptors_of(process)
        call.cancel()
    # Its output and its errors share a pipe; beside its socket it has only what it searches.
    others = [each for each in opened if not each.startswith(("/dev/null", "pipe:", "socket:"))]
    assert [sum(each.startswith(kind) for each in opened) for kind in ("pipe:", "socket:")] == [
        2,
        1,
    ]
    assert all(Path(each).is_relative_to(tmp_path) for each in others)


async def test_it_ends_at_once_when_its_call_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ENDING_SECONDS_MAX", LONG_SECONDS)  # then it is killed
    async with searching(tmp_path, []) as (process, call):
        began = trio.current_time()
        call.cancel()
    assert trio.current_time() - began < LONG_SECONDS
    await gone(process)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_it_ends_with_the_daemon(number: int, tmp_path: Path) -> None:
    async with another_daemon(DAEMON, endless_search(tmp_path)) as daemon:
        with trio.fail_after(WAIT_SECONDS):
            process = await searching_below(daemon.pid)
            daemon.send_signal(number)
            await gone(process)


async def test_it_ends_with_the_daemon_though_it_is_stopped(tmp_path: Path) -> None:
    async with another_daemon(DAEMON, endless_search(tmp_path)) as daemon:
        with trio.fail_after(WAIT_SECONDS):
            process = await searching_below(daemon.pid)
            os.kill(process, signal.SIGSTOP)
            daemon.kill()
            await gone(process)


async def test_one_that_is_killed_is_told_as_such_and_the_next_one_starts(tmp_path: Path) -> None:
    ends: list[ProcessEnd] = []
    async with searching(tmp_path, ends) as (process, _):
        os.kill(process, signal.SIGKILL)
    assert ends == [ProcessEnd(failure="lost its supervisor")]
    said: list[bytes] = []
    request: dict[str, Any] = {**json.loads(endless_search(tmp_path)), "pattern": "!"}
    ended = await run_supervised(
        [*SEARCH, json.dumps(request)],
        cwd=tmp_path,
        env={},
        on_output=said.append,
        timeout_seconds=WAIT_SECONDS,
    )
    assert ended == ProcessEnd()
    assert b"".join(said).startswith(b"a.txt:1: aaaa")
