"""Imports of the first run happen once the daemon is idle, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon.ops import process
from nousd.tools.process.fork_server import ForkServer
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import WAIT_SECONDS


async def _nothing(_: ForkServer) -> None:
    pass


class Importing:
    """Imports for the first run, which note the threads in which they ran."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> Importing:
    monkeypatch.setattr(ForkServer, "prepare", _nothing)
    return Importing()


async def test_imports_happen_after_a_delay_in_another_thread(
    importing: Importing, autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    await process.prepare_first_run(trio.Event(), importing)
    assert trio.current_time() - start >= process.QUIET_SECONDS
    [thread] = importing.threads
    assert thread is not threading.current_thread()


async def test_a_stopping_daemon_does_not_wait_for_imports(
    importing: Importing, autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    closing = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.prepare_first_run, closing, importing)
        await trio.sleep(process.QUIET_SECONDS / 2)
        closing.set()
    assert trio.current_time() - start < process.QUIET_SECONDS
    assert importing.threads == []


def test_the_imports_include_the_builtin_tools_what_runs_need_and_every_handler() -> None:
    argv = [sys.executable, "-c", _AMONG]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n[]\n")


_AMONG = """
import sys
from nousd.daemon.commands import MODULES
from nousd.daemon.serve import load_late_modules
late = {"nousd.tools.builtin.catalog", "nousd.daemon.runs.run_host", "nousd.daemon.runs.run_loop"}
late |= {f"nousd.daemon.commands.{name}" for name in MODULES.values()}
some = {"nousd.tools.builtin.catalog", "nousd.daemon.runs.run_host", "nousd.daemon.commands.inputs"}
print(sorted(some & set(sys.modules)))
load_late_modules()
print(sorted(late - set(sys.modules)))
"""


@pytest.mark.slow
async def test_a_failed_import_breaks_only_the_commands_that_need_it(
    short_folder: Path,
) -> None:
    place = BrokenPlace(short_folder)
    (short_folder / "sitecustomize.py").write_text(_BROKEN)
    os.mkfifo(short_folder / "tried")
    async with running(place) as daemon:
        with trio.fail_after(WAIT_SECONDS):
            assert await trio.Path(short_folder / "tried").read_text() == "beside the loop"
        client = await place.connect()
        assert (await client.request("ping"))["message"] == "pong"
        assert (await client.refusal("list_tools"))["code"] == "internal_error"
        assert await daemon.stop() == 0


class BrokenPlace(Place):
    """A place whose daemons cannot import our own tools, and report it through a pipe."""

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(
            PYTHONPATH=str(self.folder), TRIED=f"{self.folder}/tried", **more
        )


_BROKEN = """
import os, sys, threading

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name != "nousd.tools.builtin.catalog":
            return
        if threading.current_thread() is not threading.main_thread():
            with open(os.environ["TRIED"], "w") as pipe:
                pipe.write("beside the loop")
        raise ImportError("it cannot be read now")

sys.meta_path.insert(0, Broken())
"""
