"""Rows of the contract that only a real program can show: what it does by itself, and what it survives.

``scripts/runtimes`` tries them (``tests/runtimes/conftest.py``).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import struct
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.harness.daemon import Event, of_type
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, process_bench, resumed, said
from tests.runtimes.contracted import Real, RealPlace
from tests.runtimes.real_programs import PLANTED_WORDS, plant
from tests.runtimes.rows import VENDOR_CANNOT

OURS = ("workspace_read", "workspace_write", "patch_apply", "workspace_exec")
WORDS_OF_THE_PROJECT = "words-of-the-project"
CALL = {"call": ["workspace.write", {"path": "once", "content": "x"}]}

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


def picture() -> bytes:
    """Return a PNG of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    chunks = (chunk(b"IHDR", head), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def own(program: Real, command: str) -> dict[str, object]:
    """Return the act of the program's own tool for commands."""
    tool, arguments = program.program.shell
    return {"own": [tool, arguments(command)]}


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("what is noted")
    return folder


def kill(place: RealPlace) -> None:
    """Kill every process of the program."""
    for number in place.programs():
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@pytest.mark.row("only our tools", real=True)
async def test_the_model_is_offered_our_tools_and_no_others(program: Real, workdir: Path) -> None:
    async with program.bench(workdir) as bench:
        (told,) = said(await bench.run({"tools": True}))
    offered = {name.replace(".", "_") for name in told.split()}
    assert {ours for ours in OURS if any(name.endswith(ours) for name in offered)} == set(OURS)
    assert [name for name in offered if not name.endswith(OURS)] == []


@pytest.mark.row("restriction by behaviour", real=True)
async def test_a_forbidden_tool_of_its_own_leaves_no_trace(program: Real, workdir: Path) -> None:
    touch = own(program, f"touch {workdir / 'trace'}")
    async with program.bench(workdir) as bench:
        run = await bench.run(touch, {"say": "done"})
        again = await bench.run({"say": "again"})
    assert not (workdir / "trace").exists()
    assert of_type(run, "agent_end")[0]["status"] == "completed"
    assert said(again) == ["again"]


@needs_bubblewrap
@pytest.mark.row("own tools on request", real=True)
@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_a_tool_of_its_own_runs_when_the_user_allows_it(
    program: Real, workdir: Path, decision: str
) -> None:
    touch = own(program, f"touch {workdir / 'trace'}")
    async with program.bench(workdir, mode="ask", own_tools="ask") as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start(touch, {"say": "done"})
            await _answer(bench, decision)
            run = await bench.events.run()
    assert (workdir / "trace").exists() == (decision == "once")
    assert of_type(run, "agent_end")[0]["status"] == "completed"


async def _answer(bench: RuntimeBench, decision: str) -> Event:
    asked: Event = (await bench.events.until("permission_requested"))["payload"]
    named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
    await bench.client.request("confirm_tool", decision=decision, **named)
    return asked


_APPROVES = """
import json, socket, sys
reached = "nothing"
for path in sys.argv[2:]:
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        client.sendall(b'{"v":"1","id":"a","type":"ping","payload":{}}\\n')
        reached = client.recv(100).decode()
    except OSError:
        pass
open(sys.argv[1], "w").write(reached)
"""
"""What a program would begin with that approves its own calls: it talks to the daemon."""


@needs_bubblewrap
@pytest.mark.row("self-approval", real=True)
async def test_a_command_of_ours_does_not_see_the_daemons_sockets(
    program: Real, workdir: Path
) -> None:
    async with (
        program.place(workdir, sandbox="bubblewrap") as place,
        process_bench(place, program.name) as bench,
    ):
        words = (
            f"for path in {place.socket} {place.events_socket}; do test -e $path || echo none; done"
        )
        run = await bench.run({"call": ["workspace.exec", {"command": words}]}, {"say": "done"})
    assert of_type(run, "tool_execution_end")[0]["result"].split() == ["none", "none"]


@needs_bubblewrap
@pytest.mark.row("self-approval", real=True)
async def test_a_tool_cannot_reach_the_daemon_to_approve_calls(
    program: Real, workdir: Path
) -> None:
    (workdir / "approve.py").write_text(_APPROVES)
    words = [sys.executable, "-I", "-S", "approve.py", "reached"]
    if why_not := program.program.cannot.get("own tools on request"):
        pytest.skip(VENDOR_CANNOT + why_not)
    async with (
        program.place(workdir, mode="ask", own_tools="ask") as place,
        process_bench(place, program.name) as bench,
    ):
        words += [str(place.socket), str(place.events_socket)]
        with trio.fail_after(WAIT_SECONDS):
            await bench.start(own(program, shlex.join(words)), {"say": "done"})
            await _answer(bench, "once")
            await bench.events.run()
    assert (workdir / "reached").read_text() == "nothing"


@pytest.mark.row("implicit sources", real=True)
async def test_instructions_that_the_daemon_did_not_tell_are_not_told(
    program: Real, workdir: Path
) -> None:
    plant(workdir, workdir.parent)
    (workdir / "AGENTS.md").write_text(WORDS_OF_THE_PROJECT)
    async with program.bench(workdir) as bench:
        run = await bench.run({"find": list(PLANTED_WORDS)})
        ours = await bench.run({"find": list(WORDS_OF_THE_PROJECT)})
    assert said(run) == ["0 times"]
    assert said(ours) == ["1 times"]


@pytest.mark.row("planted code", real=True)
async def test_nothing_in_the_workspace_runs_by_itself(program: Real, workdir: Path) -> None:
    async with (
        program.place(workdir) as place,
        process_bench(place, program.name) as bench,
    ):
        plant(workdir, place.planted)
        run = await bench.run({"wait": 2}, CALL, {"say": "done"})
        await bench.run({"say": "again"})
        assert [path.name for path in place.planted.iterdir()] == []
    assert said(run) == ["done"]


@pytest.mark.row("attachments", real=True)
async def test_a_picture_reaches_the_model(program: Real, workdir: Path) -> None:
    (workdir / "pixel.png").write_bytes(picture())
    async with program.bench(workdir) as bench:
        run = await bench.run({"pictures": True}, attachments=[{"path": "pixel.png"}])
    assert said(run) == ["1 pictures"]


@pytest.mark.row("kill of the agent", real=True)
async def test_a_killed_program_is_started_anew_and_told(program: Real, workdir: Path) -> None:
    async with (
        program.place(workdir) as place,
        process_bench(place, program.name) as bench,
    ):
        await bench.run({"say": "one"})
        kill(place)
        with trio.fail_after(WAIT_SECONDS):
            while place.programs():
                await trio.lowlevel.checkpoint()
        between = await bench.run({"say": "two"})
        if of_type(between, "error"):
            # The daemon had not noticed the kill: the text waits for the next program.
            await bench.client.request("resume", session_id=bench.session_id)
            between = await bench.events.run()
        with trio.fail_after(WAIT_SECONDS):
            await bench.start(CALL, {"say": "written"}, {"hold": True})
            await bench.events.until("message_end", text="written")
            kill(place)
            killed = await bench.events.run()
        (workdir / "once").unlink()
        told = await bench.run({"find": list("written")})
    assert resumed(between) == [program.program.after_kill]
    assert of_type(killed, "error")[0]["code"] == "agent_failed"
    assert resumed(told) == ["reconstruct"]
    assert said(told) != ["0 times"]
    assert not (workdir / "once").exists()


@pytest.mark.row("kill of the daemon", real=True)
async def test_a_killed_daemons_sessions_go_on(program: Real, workdir: Path) -> None:
    async with program.place(workdir) as place:
        async with process_bench(place, program.name) as bench:
            await bench.run({"say": "one"})
            await bench.process.kill()
        session_id = bench.session_id
        async with process_bench(place, program.name, session_id=session_id) as bench:
            between = await bench.run({"say": "two"})
            with trio.fail_after(WAIT_SECONDS):
                await bench.start(CALL, {"say": "written"}, {"hold": True})
                await bench.events.until("message_end", text="written")
            await bench.process.kill()
        (workdir / "once").unlink()
        async with process_bench(place, program.name, session_id=session_id) as bench:
            told = await bench.run({"find": list("written")})
    assert resumed(between) == [program.program.after_kill]
    assert resumed(told) == ["reconstruct"]
    assert said(told) != ["0 times"]
    assert not (workdir / "once").exists()
