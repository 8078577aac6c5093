"""``nousctl status``, ``logs``, ``stop`` and ``restart`` with a real daemon, and the log of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nousd.cli.nousctl import daemon_log
from nousd.cli.nousctl.daemon_process import DaemonProcess
from tests.cli.conftest import Nousctl
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.fake_daemon import FakeDaemon

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Background:
    """A daemon that was started in the background, with its log in a file."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "s"
        self.log = folder / "daemon.log"
        (folder / "work").mkdir(exist_ok=True)
        environ = {**os.environ, "NOUSD_CONFIG": "", "XDG_CONFIG_HOME": str(folder)}
        where = ["--socket", str(self.socket), "--state-dir", str(folder / "state")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nousd", "serve", "--provider", "mock", *where, *options],
                cwd=folder / "work",
                env=environ,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdout=log,
                start_new_session=True,
            )
        assert self.process.stderr is not None
        self.first = self.process.stderr.readline()


@pytest.fixture
def background(folder: Path) -> Iterator[Background]:
    running = Background(folder, "--log-file", "../own.log")
    try:
        assert b"listening" in running.first
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait(WAIT_SECONDS)
        assert running.process.stderr is not None
        running.process.stderr.close()


@pytest.mark.slow
def test_a_daemon_is_shown_restarted_and_stopped(
    background: Background, nousctl: Nousctl, folder: Path
) -> None:
    at = str(background.socket)
    facts = json.loads(nousctl("status", "--json", at=at).out)
    assert facts["pid"] == background.process.pid
    assert (facts["sessions"], facts["runs"], facts["session_here"]) == (0, 0, None)
    lines = nousctl("status", at=at).out.splitlines()
    assert lines[0].startswith("nousd ")
    assert f", pid {background.process.pid}, up " in lines[0]
    assert lines[-1] == f"socket    {at}"
    assert "listening on" in nousctl("logs", at=at).out

    outcome = nousctl("restart", at=at)
    assert outcome.code == 0, outcome.err
    assert background.process.wait(WAIT_SECONDS) == 0
    again = json.loads(nousctl("status", "--json", at=at).out)["pid"]
    assert outcome.out == f"started nousd, pid {again}\n"
    assert again != background.process.pid
    assert Path(f"/proc/{again}/cwd").readlink() == (folder / "work").resolve()

    assert json.loads(nousctl("stop", "--json", at=at).out) == {"stopped": again}
    assert nousctl("status", at=at).code == 3
    messages = [json.loads(line)["message"] for line in _lines(folder / "own.log")]
    assert messages.count("stopped") == 2


@pytest.mark.slow
def test_a_restart_that_fails_says_why(folder: Path, nousctl: Nousctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = folder / "config.toml"
        settings.write_text("")
        running = Background(folder, "--config", str(settings))
        settings.write_text(f'http = "{place}"\n')
        outcome = nousctl("restart", at=str(running.socket))
    assert running.process.wait(WAIT_SECONDS) == 0
    assert running.process.stderr is not None
    running.process.stderr.close()
    assert outcome.code == 3
    first, *rest = outcome.err.splitlines()
    assert (first, rest[1:]) == (f"stopped nousd, pid {running.process.pid}", [])
    assert rest[0].startswith("the daemon did not start: nousd: http: ")
    assert f"{place}: Address already in use by another program" in rest[0]


@pytest.mark.slow
def test_a_daemon_goes_on_if_the_settings_allow_no_other(folder: Path, nousctl: Nousctl) -> None:
    settings = folder / "config.toml"
    settings.write_text("")
    running = Background(folder, "--config", str(settings))
    settings.write_text("allow_exce = true\n")
    outcome = nousctl("restart", at=str(running.socket))
    assert (outcome.code, outcome.out) == (1, "")
    assert f"so pid {running.process.pid} goes on: " in outcome.err
    assert "allow_exce" in outcome.err
    assert nousctl("ping", at=str(running.socket)).code == 0
    settings.write_text("")
    assert nousctl("stop", at=str(running.socket)).code == 0
    assert running.process.wait(WAIT_SECONDS) == 0
    assert running.process.stderr is not None
    running.process.stderr.close()


def test_a_log_that_has_no_name_any_more_is_not_written_to(folder: Path) -> None:
    """What the kernel shows of a deleted file is a name that anybody could have created."""
    with tempfile.TemporaryFile(dir=folder) as output:
        process = subprocess.Popen(["sleep", "60"], stderr=output)
        try:
            target = Path(f"/proc/{process.pid}/fd/2").readlink()
            assert DaemonProcess(process.pid, -1, ()).log_output is None
            target.write_text("")
            assert DaemonProcess(process.pid, -1, ()).log_output is None
        finally:
            process.kill()
            process.wait()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_socket_of_another_program_is_not_stopped(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    """The fake daemon is a thread of this process, which no ``nousd serve`` is."""
    for verb in ("stop", "restart"):
        outcome = nousctl(verb)
        assert outcome.code == 1
        assert "another process made the daemon's socket" in outcome.err
        assert f"systemctl --user {verb} nousd.socket" in outcome.err


def test_a_service_whose_socket_systemd_made_is_restarted_and_its_log_named(
    daemon: FakeDaemon, nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$2" = is-active ] && echo active\necho "$*" >> "$SAID"\n')
    program.chmod(0o755)
    (tmp_path / "systemd/user").mkdir(parents=True)
    (tmp_path / "systemd/user/nousd.service").touch()
    (tmp_path / "nousd").mkdir()
    (tmp_path / "nousd/config.toml").write_text(f'socket = "{daemon.socket_path}"\n')
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert nousctl("restart").out == "restarted nousd.service\n"
    assert "--user restart nousd.service" in (tmp_path / "said").read_text().splitlines()
    assert nousctl("logs").err == "systemd keeps its log: journalctl --user -u nousd.service\n"


def test_the_log_of_a_daemon_behind_a_forwarded_socket_is_where_it_runs(
    daemon: FakeDaemon, nousctl: Nousctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    outcome = nousctl("logs")
    assert outcome.code == 1
    assert "such as systemd or ssh" in outcome.err
    assert "look at its log where it runs" in outcome.err


# --- the log -------------------------------------------------------------------------------------


LINE = '{"ts":"2026-01-02T03:04:05Z","level":"info","logger":"x","message":"m","count":1}'


def test_the_last_lines_of_a_log_are_shown_for_people_or_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"first\nTraceback\n{LINE}\nhalf")
    daemon_log.show(log, 2, follow=False, json=False)
    assert capsys.readouterr().out == "Traceback\n2026-01-02 03:04:05 info m count=1\n"
    daemon_log.show(log, 1, follow=False, json=True)
    assert capsys.readouterr().out == f"{LINE}\n"
    daemon_log.show(log, 0, follow=False, json=True)
    assert capsys.readouterr().out == ""


def test_a_followed_log_goes_on_in_the_file_that_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text("one\nhal")
    steps = iter(("f\n", None, "three\n"))

    def step(_: float) -> None:
        written = next(steps, "end")
        if written == "end":
            raise KeyboardInterrupt
        if written is None:
            log.rename(tmp_path / "log.1")
            log.write_text("two\n")
        else:
            with log.open("a") as file:
                file.write(written)

    monkeypatch.setattr("nousd.cli.nousctl.daemon_log.time.sleep", step)
    with pytest.raises(KeyboardInterrupt):
        daemon_log.show(log, 10, follow=True, json=True)
    assert capsys.readouterr().out == "one\nhalf\ntwo\nthree\n"
