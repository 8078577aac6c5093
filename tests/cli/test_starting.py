"""A client that finds no daemon starts the user's own, or says why it does not."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nousd.cli.nousctl import entry
from tests.harness.daemon import WAIT_SECONDS


class Home:
    """The home of a user whose daemon does not run, with a short path for its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("run", "state", "config/nousd", "project"):
            (folder / name).mkdir(parents=True, mode=0o700)
        (folder / "config/nousd/config.toml").write_text('provider = "mock"\n')

    def nousctl(
        self,
        *argv: str,
        terminal: bool = False,
        cwd: Path | None = None,
        environ: Mapping[str, str] = {},
    ) -> tuple[int, str, str]:
        """Return exit code, output and remarks of ``nousctl``."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("NOUSD_", "XDG_"))}
        whole = {
            **own,
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            **environ,
        }
        master, slave = pty.openpty()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "nousd.cli.nousctl.main", *argv],
                env=whole,
                cwd=cwd or self.folder / "project",
                stdin=slave if terminal else subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=WAIT_SECONDS,
            )
        finally:
            os.close(master)
            os.close(slave)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def home(folder: Path) -> Iterator[Home]:
    place = Home(folder)
    yield place
    place.nousctl("stop")


@pytest.mark.slow
def test_a_prompt_on_a_terminal_starts_the_daemon_and_says_so_once(home: Home) -> None:
    code, out, err = home.nousctl("prompt", "hello", terminal=True)
    assert (code, "mock response: user: hello" in out) == (0, True), err
    assert "started the daemon" in err
    code, out, err = home.nousctl("prompt", "again", terminal=True)
    assert (code, "started the daemon" in err) == (0, False)
    assert "user: hello" in out, "it is the session of this folder"
    code, out, _ = home.nousctl("logs")
    assert (code, "provider mock" in out) == (0, True)


@pytest.mark.slow
def test_the_daemon_takes_its_settings_from_the_file_and_names_what_it_does_not_take(
    home: Home,
) -> None:
    shell = {"NOUSD_PROVIDER": "gemini", "ANTHROPIC_API_KEY": "k", "NOUSD_MODEL": ""}
    code, out, err = home.nousctl("prompt", "hello", terminal=True, environ=shell)
    assert (code, "mock response" in out) == (0, True), err
    assert "not from this shell: ANTHROPIC_API_KEY, NOUSD_PROVIDER" in err
    status = json.loads(home.nousctl("status", "--json")[1])
    environ = Path("/proc", str(status["pid"]), "environ").read_bytes()
    assert b"ANTHROPIC_API_KEY" not in environ
    assert b"NOUSD_PROVIDER" not in environ
    assert Path("/proc", str(status["pid"]), "cwd").readlink() == home.folder


@pytest.mark.slow
def test_a_script_starts_none_unless_it_says_so(home: Home) -> None:
    code, _, err = home.nousctl("prompt", "hello")
    assert (code, "nousctl --start" in err) == (3, True)
    code, out, err = home.nousctl("prompt", "hello", "--start")
    assert (code, out) == (0, "mock response: user: hello\n"), err


@pytest.mark.slow
def test_nothing_that_a_daemon_started_starts_another(home: Home) -> None:
    for argv in (["prompt", "hello"], ["prompt", "hello", "--start"]):
        code, _, err = home.nousctl(*argv, terminal=True, environ={"NOUSD_INSIDE": "1"})
        assert (code, "starts no other" in err) == (3, True)


def test_a_daemon_at_another_socket_is_the_users_to_start(home: Home) -> None:
    other = str(home.folder / "run/other")
    code, _, err = home.nousctl("prompt", "hello", "--socket", other, terminal=True)
    assert (code, f"nousd serve --socket {other}" in err) == (3, True)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["status", "ping", "stop", "logs"])
def test_verbs_about_the_process_start_none(verb: str, home: Home) -> None:
    code, _, err = home.nousctl(verb, "--start", terminal=True)
    assert code in (1, 3)
    assert "started the daemon" not in err


@pytest.mark.slow
def test_a_restart_starts_a_daemon_where_there_is_none(home: Home) -> None:
    code, out, err = home.nousctl("restart")
    assert (code, out[:18]) == (0, "started nousd, pid"), err
    assert "started the daemon, which goes on running" in err
    assert home.nousctl("ping")[0] == 0


CONNECT = """
import os, socket
socket.socket(socket.AF_UNIX).connect(os.environ["XDG_RUNTIME_DIR"] + "/nousd/nousd.sock")
"""

SYSTEMCTL = """#!/bin/sh
echo "$2" >> "$SAID"
case "$2" in
is-active) echo "$STATE";;
"$FAILS") exit 1;;
start)
    "$PYTHON" -m nousd serve >/dev/null 2>&1 &
    until "$PYTHON" -c "$CONNECT" 2>/dev/null; do :; done;;
esac
"""


def with_service(home: Home, **more: str) -> dict[str, str]:
    """Let the user have installed the service, under a systemd that notes what it is asked for."""
    unit = home.folder / "config/systemd/user/nousd.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    program = home.folder / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    said = str(home.folder / "said")
    return {"PATH": path, "SAID": said, "PYTHON": sys.executable, "CONNECT": CONNECT, **more}


@pytest.mark.parametrize(
    ("state", "flags"), [("inactive", ["--start"]), ("activating", [])], ids=["stopped", "login"]
)
@pytest.mark.slow
def test_an_installed_service_is_started_instead_of_a_second_kind_of_daemon(
    home: Home, state: str, flags: list[str]
) -> None:
    environ = with_service(home, STATE=state)
    code, out, err = home.nousctl("prompt", "hello", *flags, environ=environ)
    assert (code, out) == (0, "mock response: user: hello\n"), err
    assert "started nousd.service; its log: journalctl --user -u nousd.service" in err
    assert (home.folder / "said").read_text().split() == ["is-active", "is-active", "start"]


@pytest.mark.slow
def test_a_service_that_does_not_start_is_not_replaced_by_another_daemon(home: Home) -> None:
    environ = with_service(home, STATE="failed", FAILS="start")
    code, _, err = home.nousctl("prompt", "hello", "--start", environ=environ)
    assert (code, "journalctl --user -u nousd.service -n 20" in err) == (3, True), err
    assert "reset-failed" in (home.folder / "said").read_text()
    assert home.nousctl("ping")[0] == 3


@pytest.mark.slow
def test_where_no_systemd_of_the_user_runs_the_daemon_is_started_as_without_a_service(
    home: Home,
) -> None:
    environ = with_service(home, STATE="")
    code, _, err = home.nousctl("prompt", "hello", "--start", environ=environ)
    assert (code, "started the daemon" in err) == (0, True), err


def test_ctrl_c_ends_the_program_in_order_also_while_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pressed:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "nousd.cli.nousctl.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "nousd.cli.nousctl.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 130


@pytest.mark.slow
def test_settings_that_no_daemon_can_start_with_are_quoted(home: Home) -> None:
    (home.folder / "config/nousd/config.toml").write_text('provider = "nonsense"\n')
    code, _, err = home.nousctl("prompt", "hello", terminal=True)
    assert (code, "provider must be" in err) == (3, True)
    (home.folder / "config/nousd/config.toml").write_text('system_prompt = "/missing"\n')
    code, _, err = home.nousctl("prompt", "hello", terminal=True)
    assert (code, "/missing" in err) == (3, True)


@pytest.mark.slow
def test_a_daemon_whose_http_address_is_in_use_is_quoted(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = f'provider = "mock"\nhttp = "{address}"\n'
        (home.folder / "config/nousd/config.toml").write_text(settings)
        code, _, err = home.nousctl("prompt", "hello", terminal=True)
    assert (code, f"{address}: Address already in use" in err) == (3, True), err


@pytest.mark.slow
def test_two_clients_at_once_get_one_daemon(home: Home) -> None:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("NOUSD_", "XDG_"))}
    environ = {
        **own,
        "HOME": str(home.folder),
        **{
            f"XDG_{name}": str(home.folder / place)
            for name, place in (
                ("RUNTIME_DIR", "run"),
                ("STATE_HOME", "state"),
                ("CONFIG_HOME", "config"),
            )
        },
    }
    argv = [sys.executable, "-m", "nousd.cli.nousctl.main", "session", "list", "--start"]
    several = [
        subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=WAIT_SECONDS)[1] for process in several]
    assert [process.returncode for process in several] == [0, 0, 0], said
    assert b"".join(said).count(b"started the daemon") <= 1
    status = json.loads(home.nousctl("status", "--json")[1])
    os.kill(status["pid"], signal.SIGTERM)
    given_up_at = time.monotonic() + WAIT_SECONDS
    while Path("/proc", str(status["pid"]), "exe").exists():
        assert time.monotonic() < given_up_at
        os.sched_yield()
    assert home.nousctl("ping")[0] == 3, "there is no second one"
