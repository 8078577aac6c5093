"""A pytest plugin: notes how every test ended, or runs the tests that reach a fault, fault by fault.

For the second, pytest collects once; each fault is then switched on in a fork of that process, several
at a time, and a fork that says nothing for too long has a fault that makes it hang.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import pytest

from .switches import ACTIVE

SILENCE_SECONDS_MAX: Final = 90.0
"""The longest test takes a third of it on a busy machine."""

_MEMORY_BYTES_MAX: Final = 6 << 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="write a line of JSON for each test to this file")
    parser.addoption("--plan", help="run the tests of this plan, fault by fault")
    parser.addoption("--results", help="write a line of JSON for each fault to this file")
    parser.addoption("--forks", type=int, default=os.cpu_count(), help="faults at a time")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--outcomes") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes(Path(config.getoption("--outcomes"))))


class Limits(NamedTuple):
    """For how long the tests of one fault run.

    Args:
        every_seconds: all of them until then, afterwards only to the first that fails.
        seconds_max: to the end of the test that is running then, also if none has failed.
    """

    every_seconds: float
    seconds_max: float


class _Outcomes:
    """Writes which tests passed and how long they took, in seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
        self._bad: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.outcome != "passed":
            self._bad.add(name)
        if report.when == "teardown":
            line = {
                "test": name,
                "seconds": self._seconds.pop(name),
                "passed": name not in self._bad,
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if session.config.getoption("--plan") is None:
        return None
    plan = json.loads(Path(session.config.getoption("--plan")).read_text(encoding="utf-8"))
    items = {item.nodeid: item for item in session.items}
    results = Path(session.config.getoption("--results"))

    def start(entry: dict[str, Any]) -> _Child:
        tests = [items[name] for name in entry["tests"] if name in items]
        limits = Limits(entry["every_seconds"], entry["seconds_max"])
        return _Child(session.config, entry["fault"], tests, limits)

    with results.open("a", encoding="utf-8") as file:
        for result in _run_all(plan, start, session.config.getoption("--forks")):
            file.write(json.dumps(result) + "\n")
            file.flush()
    return True


def _run_all(
    plan: Sequence[dict[str, Any]], start: Callable[[dict[str, Any]], _Child], forks: int
) -> Iterator[dict[str, Any]]:
    waiting = list(reversed(plan))
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < forks:
                child = start(waiting.pop())
                selector.register(child.pipe, selectors.EVENT_READ, child)
            for key, _ in selector.select(1.0):
                key.data.read()
            for key in list(selector.get_map().values()):
                if key.data.is_over:
                    # Before it is closed: another fork may hold the pipe open, and its number is
                    # used again.
                    selector.unregister(key.fileobj)
                    yield key.data.finish()


class _Child:
    """A fork with one fault switched on, seen from its parent."""

    def __init__(
        self,
        config: pytest.Config,
        fault: int,
        tests: Sequence[pytest.Item],
        limits: Limits,
    ) -> None:
        self.pipe, theirs = os.pipe()
        self._fault = fault
        self._failed: list[str] = []
        self._passed: list[str] = []
        self._running = ""
        self._rest = b""
        self._heard_at = self._began_at = time.monotonic()
        self._ended = False
        self._folder = tempfile.mkdtemp(prefix="mutation-")
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.pipe)
            os.environ |= {ACTIVE: str(fault), "PYTEST_DEBUG_TEMPROOT": self._folder}
            _run_in_fork(config, fault, tests, theirs, limits)
        os.close(theirs)

    def read(self) -> None:
        chunk = os.read(self.pipe, 1 << 16)
        self._heard_at = time.monotonic()
        self._ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            word, _, test = line.decode().partition(" ")
            if word == "begin":
                self._running = test
            else:
                (self._passed if word == "passed" else self._failed).append(test)
                self._running = ""

    @property
    def is_over(self) -> bool:
        """True if the fork has ended, or hangs."""
        return self._ended or time.monotonic() - self._heard_at > SILENCE_SECONDS_MAX

    def finish(self) -> dict[str, Any]:
        """End everything that runs under the fault, and return the result."""
        _kill_all_of(self._pid, self._folder)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._running:
            self._failed.append(self._running)
        return {
            "fault": self._fault,
            "failed": self._failed,
            "passed": self._passed,
            "seconds": time.monotonic() - self._began_at,
        }


def _run_in_fork(
    config: pytest.Config,
    fault: int,
    tests: Sequence[pytest.Item],
    pipe: int,
    limits: Limits,
) -> NoReturn:
    """Run the tests up to the limits."""
    from nousd import mutation_switch  # type: ignore[attr-defined]  # only in the copy

    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    mutation_switch.active = fault
    begun = time.monotonic()
    has_failed = False

    def say(word: str, test: str) -> None:
        os.write(pipe, f"{word} {test}\n".encode())

    failures = _Failures()
    config.pluginmanager.register(failures)
    for item, following in zip(tests, [*tests[1:], None], strict=True):
        say("begin", item.nodeid)
        failures.found = False
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        say("failed" if failures.found else "passed", item.nodeid)
        has_failed |= failures.found
        passed = time.monotonic() - begun
        if passed > (limits.every_seconds if has_failed else limits.seconds_max):
            break
    os._exit(0)


class _Failures:
    found = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found |= report.outcome == "failed"


def _kill_all_of(pid: int, folder: str) -> None:
    """Kill a fork and every process that has its temporary folder in the environment."""
    mark = folder.encode()
    os.kill(pid, signal.SIGKILL)
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
