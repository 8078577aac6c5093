"""The examples run as a user would run them: each a process beside a real daemon."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from nousd.client.connection import connect
from nousd.wire.commands import GetEvents, Prompt
from nousd.wire.responses import Result
from tests.daemon.process_harness import Place, running
from tests.harness.fake_daemon import FakeDaemon, ok
from tests.harness.validation import check_event

EXAMPLES = Path(__file__).resolve().parents[2] / "fixtures" / "examples"
SECONDS = 60


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield Place(folder, permission_mode="ask")
    shutil.rmtree(folder)


def test_the_readme_links_every_example_and_its_python_lines_run(folder: Path) -> None:
    readme = (EXAMPLES.parents[1] / "README.md").read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f"(fixtures/examples/{example.name})" in readme
    (lines,) = re.findall(r"\*\*Python.\*\* .*?```python\n(.*?)```", readme, re.DOTALL)
    with FakeDaemon(folder) as daemon:
        answer = {"output": "files", "events": [], "session_id": "s", "run_id": "r"}
        daemon.on["prompt"] = ok("result", {**answer, "status": "completed"})
        program, places = re.subn(r'Path\(".*"\)', f"Path({str(daemon.socket_path)!r})", lines)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=SECONDS)
    assert (places, done.stdout, done.stderr) == (1, b"files\n", b"")


async def run_example(name: str, *argv: object) -> subprocess.CompletedProcess[bytes]:
    """Run an example to its end."""
    with trio.fail_after(SECONDS):
        return await trio.run_process(
            [sys.executable, EXAMPLES / name, *map(str, argv)],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )


@pytest.mark.slow
async def test_the_ask_example_prints_the_answer(place: Place) -> None:
    async with running(place):
        done = await run_example("ask.py", place.socket, "what", "is", "this?")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == b"mock response: user: what is this?\n"


@pytest.mark.slow
async def test_the_ask_example_repeated_with_its_id_starts_one_run(place: Place) -> None:
    async with running(place):
        for _ in range(2):
            done = await run_example("ask.py", "--id", "q1", place.socket, "once?")
            assert done.stdout == b"mock response: user: once?\n"
        async with connect(place.socket) as daemon:
            page = await daemon.ask(GetEvents(types=("agent_start",), after="evt-0"))
    assert len(page.events) == 1


async def test_the_ask_example_reports_a_missing_daemon_and_a_refusal(place: Place) -> None:
    done = await run_example("ask.py", place.socket, "anybody?")
    assert done.returncode == 3
    assert done.stderr.startswith(b"no daemon listens on ")
    async with running(place):
        done = await run_example("ask.py", place.socket, " ")
    assert (done.returncode, done.stderr) == (1, b"refused: text is required\n")


@pytest.mark.slow
async def test_the_drive_run_example_streams_and_steers_a_run(place: Place) -> None:
    text = '[[text One moment.]] [[tool write {"path": "a.txt", "content": "x"}]]'
    async with running(place):
        steer = "[[text Steered.]]"
        done = await run_example(
            "drive_run.py", place.socket, text, "--steer", steer, "--allow", "write"
        )
    assert (done.returncode, done.stderr) == (0, b"")
    said = done.stdout.decode()
    assert said.startswith("One moment.")
    assert said.endswith("Steered.\n[completed]\n")


@pytest.mark.slow
async def test_the_drive_run_example_completes_although_its_steering_is_refused(
    place: Place,
) -> None:
    async with running(place):
        done = await run_example("drive_run.py", place.socket, "[[text Done.]]", "--steer", " ")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"Done.\n[refused: text is required]\n\n[completed]\n"


@pytest.mark.slow
async def test_the_drive_run_example_runs_only_allowed_tools(place: Place) -> None:
    call = '[[tool write {"path": "a.txt", "content": "x"}]] [[then]] [[text Done.]]'
    async with running(place):
        refused = await run_example("drive_run.py", place.socket, call)
        assert not (place.work / "a.txt").exists()
        allowed = await run_example("drive_run.py", place.socket, call, "--allow", "write")
        assert (place.work / "a.txt").read_text() == "x"
    request = "[write {'path': 'a.txt', 'content': 'x'}: %s]\n"
    assert refused.stdout.decode() == f"\n{request % 'deny'}Done.\n[completed]\n"
    assert allowed.stdout.decode() == f"\n{request % 'once'}\n[write ran]\nDone.\n[completed]\n"


@pytest.mark.slow
async def test_the_follow_log_example_misses_nothing_over_restarts_of_daemon_and_follower(
    place: Place,
) -> None:
    copied = CopiedLog()
    async with trio.open_nursery() as nursery:
        async with running(place) as daemon:
            follower = await nursery.start(copied.run_follower, place)
            await _prompt(place, "one")
            await copied.until((await _log(place))[0])  # the follower runs and has connected
            await daemon.kill()
        async with running(place):
            await _prompt(place, "two")
            last = (await _log(place))[-1]
            await copied.until(last)
            await _wait_for_cursor(place, last)
            follower.send_signal(signal.SIGINT)
            with trio.fail_after(SECONDS):
                assert await follower.wait() == 0
            await _prompt(place, "three")
            follower = await nursery.start(copied.run_follower, place)
            logged = await _log(place)
            await copied.until(logged[-1])
            follower.send_signal(signal.SIGINT)
    assert copied.lines == logged
    assert sum(b'"type":"agent_start"' in check_line(line) for line in logged) == 3


def check_line(line: bytes) -> bytes:
    check_event(line)
    return line


class CopiedLog:
    """The complete lines that successive followers have printed."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._more = trio.Event()

    async def until(self, line: bytes) -> None:
        """Wait for a line."""
        with trio.fail_after(SECONDS):
            while line not in self.lines:
                self._more = trio.Event()
                await self._more.wait()

    async def run_follower(self, place: Place, task_status: trio.TaskStatus[trio.Process]) -> None:
        program = EXAMPLES / "follow_log.py"
        process = await trio.lowlevel.open_process(
            [sys.executable, str(program), str(place.socket), str(place.folder / "cursor")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            task_status.started(process)
            assert process.stdout is not None
            rest = b""
            async for chunk in process.stdout:
                *whole, rest = (rest + chunk).split(b"\n")
                self.lines += [line + b"\n" for line in whole]
                self._more.set()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def _wait_for_cursor(place: Place, line: bytes) -> None:
    """Wait until the follower has stored its cursor; stopped earlier, it prints the line again."""
    event = json.loads(line)["id"]
    with trio.fail_after(SECONDS):
        while (place.folder / "cursor").read_text() != event:  # noqa: ASYNC110 - another process writes
            await trio.sleep(0.01)


async def _prompt(place: Place, text: str) -> None:
    with trio.fail_after(SECONDS):
        async with connect(place.socket) as daemon:
            await daemon.ask(Prompt(text=text), Result)


async def _log(place: Place) -> list[bytes]:
    """Return every event of the log."""
    lines: list[bytes] = []
    async with connect(place.socket) as daemon:
        page = await daemon.ask(GetEvents(after="evt-0", types="all"))
        while page.events:
            lines += [bytes(event) + b"\n" for event in page.events]
            page = await daemon.ask(GetEvents(after=page.next, types="all"))
    return lines
