"""What the first run needs is imported once the daemon has had a moment for itself, or not at all."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon import first_run


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which it was imported."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(first_run, "_import", lambda: threads.append(threading.current_thread()))
    return threads


async def test_it_is_imported_after_a_moment_and_beside_the_loop(
    importing: list[threading.Thread], autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    await first_run.import_for_first_run(trio.Event())
    assert trio.current_time() - start >= first_run.QUIET_SECONDS
    [thread] = importing
    assert thread is not threading.current_thread()


async def test_a_daemon_that_is_told_to_stop_does_not_wait_for_it(
    importing: list[threading.Thread], autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    closing = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first_run.import_for_first_run, closing)
        await trio.sleep(first_run.QUIET_SECONDS / 2)
        closing.set()
    assert trio.current_time() - start < first_run.QUIET_SECONDS
    assert importing == []


def test_the_tools_are_among_it() -> None:
    argv = [sys.executable, "-c", _AMONG]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "False True\n")


_AMONG = """
import sys
from nousd.daemon import first_run
before = "nousd.tools.builtins" in sys.modules
first_run._import()
print(before, "nousd.tools.builtins" in sys.modules)
"""
