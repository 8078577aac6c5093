"""An interactive program is supervised like a command: it outlives neither its use nor the daemon."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from nousd.tools.process.supervisor import open_conversation
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import FAMILY, REPOSITORY, Lifeline, another_daemon
from tests.tools.test_supervisor import ENV

DAEMON = """
import sys, trio
from pathlib import Path
from nousd.tools.process.supervisor import open_conversation
async def talk():
    async with open_conversation(
        ["/bin/sh", "-c", sys.argv[1]], cwd=Path("/"), env={"PATH": sys.argv[2]}, grace_seconds=0.05
    ):
        await trio.sleep(60)
trio.run(talk)
"""


async def test_both_outputs_are_streams_and_end_with_the_program(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", 'read word; echo "got $word"; echo "of $A" >&2; pwd']
    with trio.fail_after(WAIT_SECONDS):
        env = {**ENV, "A": "b"}
        async with open_conversation(argv, cwd=tmp_path, env=env) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            await process.stdin.send_all(b"hello\n")
            assert b"".join([chunk async for chunk in process.stdout]) == (
                b"got hello\n" + bytes(tmp_path) + b"\n"
            )
            assert b"".join([chunk async for chunk in process.stderr]) == b"of b\n"


async def test_a_missing_program_is_reported_on_stderr(tmp_path: Path) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with open_conversation(["/no/such"], cwd=tmp_path, env=ENV) as process:
            assert process.stderr is not None
            errors = b"".join([chunk async for chunk in process.stderr])
    assert errors == b"/no/such: No such file or directory\n"


async def test_the_environment_is_not_in_the_list_of_processes(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]
    with trio.fail_after(WAIT_SECONDS):
        env = {**ENV, "KEY": "s3cret-value"}
        async with open_conversation(argv, cwd=tmp_path, env=env) as process:
            assert process.stdout is not None
            seen = b"".join([chunk async for chunk in process.stdout])
    assert b"cat /proc/" in seen
    assert b"s3cret-value" not in seen


async def test_leaving_the_context_ends_the_program_and_all_its_descendants(line: Lifeline) -> None:
    argv = ["/bin/sh", "-c", FAMILY.format(fifo=line.path)]
    with trio.fail_after(WAIT_SECONDS):
        async with open_conversation(argv, cwd=REPOSITORY, env=ENV, grace_seconds=0.05):
            await line.wait_ready(3)
        await line.wait_gone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_program_and_all_its_descendants_die_with_the_daemon(
    number: int, line: Lifeline
) -> None:
    async with another_daemon(DAEMON, FAMILY.format(fifo=line.path)) as daemon:
        await line.wait_ready(3)
        daemon.send_signal(number)
        await line.wait_gone()
