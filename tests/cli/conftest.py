from __future__ import annotations

import gc
import io
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nousd.cli.nousctl import main as client_main
from nousd.cli.nousd import main as daemon_main
from tests.client.conftest import daemon, folder
from tests.harness.fake_daemon import FakeDaemon

__all__ = ["daemon", "folder"]


def without_own_name(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a payload without the name that ``nousctl`` gives itself, if the user gives it none."""
    own = ("client_id", "nousctl")
    return {key: value for key, value in payload.items() if (key, value) != own}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Nousctl = Callable[..., Outcome]
Nousd = Callable[..., Outcome]


@pytest.fixture
def nousctl(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Nousctl:
    """Run ``nousctl`` with these arguments, with ``input`` piped in, against ``daemon`` or ``at``."""

    def run(*argv: str, input: str | None = None, at: str | None = None) -> Outcome:
        monkeypatch.setenv("NOUSD_SOCKET", str(daemon.socket_path) if at is None else at)
        monkeypatch.setattr(sys, "argv", ["nousctl", *argv])
        with tempfile.TemporaryFile() as piped:
            if input is not None:
                piped.write(input.encode("utf-8", "surrogateescape"))
                piped.seek(0)
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
            with pytest.raises(SystemExit) as caught:
                client_main.main()
        captured = capsys.readouterr()
        return Outcome(int(caught.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(autouse=True)
def session_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verbs name no session. Which one they choose has tests of its own."""
    monkeypatch.setenv("NOUSD_SESSION", "@default")


@pytest.fixture(autouse=True)
def universal_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show times in UTC, wherever the tests run."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(autouse=True)
def restore_sigint() -> Iterator[None]:
    """Restore the SIGINT handler, which ``nousctl`` disables for good when it exits."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def nousd(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Nousd:
    """Run ``nousd`` with these arguments, for a user without settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*argv: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["nousd", *map(str, argv)])
        with pytest.raises(SystemExit) as caught:
            daemon_main.main()
        gc.enable()  # off while a daemon starts, and none did
        captured = capsys.readouterr()
        return Outcome(int(caught.value.code or 0), captured.out, captured.err)

    return run
