"""Behaviour of a separate process: imports, shell completion, the demonstration."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nousd.cli import demo
from tests.harness.fake_daemon import FakeDaemon, ok

HEAVY = {"msgspec", "anyio", "trio", "apsw", "httpx2", "rich", "asyncio", "platformdirs"}
"""None of these is needed to ask one question."""

_PING = """
import sys
sys.argv = ["nousctl", "ping"]
from nousd.cli.nousctl.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_ping_imports_nothing_heavy(daemon: FakeDaemon) -> None:
    done = run("-c", _PING, NOUSD_SOCKET=str(daemon.socket_path))
    assert (done.returncode, done.stdout) == (0, "pong\n")
    assert HEAVY & set(done.stderr.split()) == set()


@pytest.mark.slow
def test_nousctl_reads_the_socket_path_from_the_settings_file(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    """Settings that only the daemon needs, such as a provider without a key, do no harm."""
    file = tmp_path / "nousd" / "config.toml"
    file.parent.mkdir()
    file.write_text(f'socket = "{daemon.socket_path}"\nprovider = "openai"')
    environ = {"NOUSD_SOCKET": "", "NOUSD_CONFIG": "", "OPENAI_API_KEY": ""}
    for place in ({"XDG_CONFIG_HOME": str(tmp_path)}, {"NOUSD_CONFIG": str(file)}):
        done = run("-m", "nousd.cli.nousctl.main", "ping", **{**environ, **place})
        assert (done.returncode, done.stdout, done.stderr) == (0, "pong\n", "")
    done = run("-m", "nousd.cli.nousctl.main", "ping", **environ, XDG_CONFIG_HOME="/nowhere")
    assert done.returncode == 3


def test_an_invalid_settings_file_is_a_one_line_error(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("not toml")
    done = run("-m", "nousd.cli.nousctl.main", "ping", NOUSD_SOCKET="", NOUSD_CONFIG=str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"config: file {file} is not TOML: ")
    assert done.stderr.count("\n") == 1


def test_a_ping_without_a_settings_file_does_not_read_settings(tmp_path: Path) -> None:
    done = run("-c", _PING, NOUSD_SOCKET="", NOUSD_CONFIG="", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 3
    assert {"nousd.config.settings", "tomllib", "msgspec"} & set(done.stderr.split()) == set()


# --- an idle daemon ------------------------------------------------------------------------------


NOT_FOR_IDLENESS = """
anyio asyncio httpx2 httpcore2 http.client http.cookiejar hypercorn justhtml mcp mcp_types
multiprocessing pickle prometheus_client pydantic rich starlette tomllib urllib.request email.utils
logging.handlers
nousd.admin nousd.bridge nousd.client nousd.mcp_server nousd.providers.http.connections nousd.replay
nousd.providers.anthropic.provider nousd.providers.gemini.provider nousd.tools.mcp.session
nousd.tools.sandbox.landlock nousd.tools.sandbox.bubblewrap
"""
"""Modules that an idle daemon does not need. Each costs memory for as long as it runs."""

NOT_FOR_A_FIRST_ANSWER = """
typer click nousd.cli.nousd.app nousd.cli.nousd.serve_flags nousd.config.report
nousd.daemon.commands.accepting nousd.daemon.commands.inputs nousd.daemon.commands.mcp
nousd.daemon.commands.sessions nousd.daemon.runs.run_host
nousd.extensions.api nousd.extensions.demo nousd.tools.builtin.bash nousd.tools.builtin.task
nousd.tools.builtin.catalog nousd.tools.builtin.edit
nousd.tools.builtin.git nousd.tools.builtin.grep nousd.tools.builtin.patch
nousd.tools.builtin.read nousd.tools.builtin.web_fetch
"""
"""Modules that are imported after the first answer, if at all; earlier ones delay the start."""

_SERVE = """
import sys
import nousd.daemon.ops.process
nousd.daemon.ops.process.QUIET_SECONDS = 1000
from nousd.cli.nousd.main import main
sys.argv[0] = "nousd"
try:
    main()
finally:
    print("modules:", *sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [["mock"], ["openai", "--api-base", "http://127.0.0.1:9/v1", "--model", "m"]],
    ids=["mock", "hosted"],
)
def test_a_daemon_that_only_answered_a_ping_imports_nothing_for_runs(
    model: list[str], tmp_path: Path
) -> None:
    socket_path = tmp_path / "s"
    places = ("--socket", str(socket_path), "--state-dir", str(tmp_path / "state"))
    argv = ["serve", *places, "--workdir", str(tmp_path), "--provider", *model]
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "NOUSD_CONFIG": ""}
    daemon = subprocess.Popen(
        [sys.executable, "-c", _SERVE, *argv], env=environ, stderr=subprocess.PIPE, text=True
    )
    with daemon:
        assert daemon.stderr is not None
        watchdog = threading.Timer(60, daemon.kill)
        watchdog.start()
        assert any("listening on" in line for line in daemon.stderr)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(socket_path))
            client.sendall(_PING_LINE)
            assert b"pong" in client.recv(4096)
        daemon.terminate()
        *_, told = daemon.stderr
        watchdog.cancel()
    kind, *modules = told.split()
    assert (daemon.returncode, kind) == (0, "modules:")
    assert set(NOT_FOR_IDLENESS.split()) & set(modules) == set()
    assert set(NOT_FOR_A_FIRST_ANSWER.split()) & set(modules) == set()


_PING_LINE = b'{"v":"1","id":"1","type":"ping","payload":{}}\n'


# --- output that cannot be written ---------------------------------------------------------------


_RAW = '{"id":"1","type":"ping","payload":{}}'


def with_output(output: int, *argv: str, socket: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nousd.cli.nousctl.main", "--socket", str(socket), *argv],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_a_full_disk_is_a_one_line_error(daemon: FakeDaemon) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        for argv in (["ping"], ["raw", _RAW], ["--json", "ping"]):
            done = with_output(full.fileno(), *argv, socket=daemon.socket_path)
            told = "the output cannot be written: No space left on device\n"
            assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.slow
def test_a_closed_output_pipe_prints_no_error(daemon: FakeDaemon) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        for argv in (["ping"], ["raw", _RAW], ["--json", "ping"]):
            done = with_output(writer, *argv, socket=daemon.socket_path)
            assert (done.returncode, done.stderr) == (1, "")
    finally:
        os.close(writer)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_for_each_shell(shell: str) -> None:
    done = run("-m", "nousd.cli.nousctl.main", "--show-completion", shell)
    assert done.returncode == 0
    assert f"complete_{shell}" in done.stdout


def test_completion_can_be_installed(tmp_path: Path) -> None:
    done = run("-m", "nousd.cli.nousctl.main", "--install-completion", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    installed = next(tmp_path.rglob("nousctl.sh"))
    assert "_NOUSCTL_COMPLETE" in installed.read_text()


@pytest.mark.slow
def test_completion_offers_the_verbs() -> None:
    done = run(
        "-m",
        "nousd.cli.nousctl.main",
        _NOUSCTL_COMPLETE="complete_bash",
        COMP_WORDS="nousctl s",
        COMP_CWORD="1",
    )
    assert done.stdout.split() == ["steer", "status", "stop", "session"]


def test_completion_offers_the_verbs_of_a_group() -> None:
    done = run(
        "-m",
        "nousd.cli.nousctl.main",
        _NOUSCTL_COMPLETE="complete_bash",
        COMP_WORDS="nousctl queue ",
        COMP_CWORD="2",
    )
    assert done.stdout.split()[:4] == ["list", "edit", "move", "remove"]


@pytest.mark.slow
def test_completion_offers_sessions_and_models_of_the_daemon(daemon: FakeDaemon) -> None:
    rows = [
        {"session_id": "sess-1", "workspace": "/w", "name": "docs", "title": "docs"},
        {"session_id": "sess-2", "workspace": "/w"},
    ]
    daemon.on["list_sessions"] = ok("sessions", {"sessions": rows})
    daemon.on["list_models"] = ok("models", {"models": [{"id": "mock/m", "aliases": ["mine"]}]})
    for words, offered in (
        ("nousctl abort --session s", ["sess-1", "sess-2"]),
        ("nousctl abort --session d", ["docs"]),
        ("nousctl session show sess-2", ["sess-2"]),
        ("nousctl model set m", ["mock/m", "mine"]),
    ):
        done = run(
            "-m",
            "nousd.cli.nousctl.main",
            _NOUSCTL_COMPLETE="complete_bash",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split()) - 1),
            NOUSD_SOCKET=str(daemon.socket_path),
        )
        assert done.stdout.split() == offered, done.stderr


def test_completion_offers_nothing_without_a_daemon() -> None:
    done = run(
        "-m",
        "nousd.cli.nousctl.main",
        _NOUSCTL_COMPLETE="complete_bash",
        COMP_WORDS="nousctl abort --session s",
        COMP_CWORD="3",
        NOUSD_SOCKET="/nowhere",
    )
    assert (done.stdout.split(), done.stderr) == ([], "")


# --- the demonstration ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demonstration_runs_a_prompt_on_a_daemon_of_its_own(tmp_path: Path) -> None:
    done = run("-m", "nousd.cli.demo", "hello", "there", TMPDIR=str(tmp_path), NOUSD_SOCKET="/none")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "> hello there\nmock response: user: hello there\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demonstration_can_print_the_lines_of_the_wire(tmp_path: Path) -> None:
    done = run("-m", "nousd.cli.demo", "--json", "hello", TMPDIR=str(tmp_path))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [events[0]["type"], events[-1]["type"]] == ["agent_start", "agent_end"]


def test_the_demonstration_stops_its_daemon_on_sigterm(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _STUCK, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        daemon_pid = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(daemon_pid, 0)


_STUCK = """
import subprocess, sys, time
from pathlib import Path
from nousd.cli import demo
demo._command = lambda folder, socket: [sys.executable, "-c", "import time; time.sleep(60)"]
demo.wait_until_ready = lambda process, *rest: print(process.pid, flush=True)
demo._leave_in_order_when_told_to()
with demo._daemon(Path(sys.argv[1])):
    time.sleep(60)
"""


def test_the_demonstration_quotes_a_daemon_that_does_not_start(tmp_path: Path) -> None:
    done = run("-c", _BROKEN, str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "the daemon did not start: broken\n"


_BROKEN = """
import sys
from nousd.cli import demo
demo._command = lambda folder, socket: [sys.executable, "-c", "import sys; sys.exit('broken')"]
sys.argv = ["run", "text"]
demo.main()
"""


def test_the_private_folder_is_short_enough_for_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with demo._private_folder() as folder:
        assert len(os.fsencode(folder / "nousd.sock")) <= demo._SOCKET_PATH_BYTES_MAX
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
