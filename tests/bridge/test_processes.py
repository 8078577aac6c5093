"""The server as a process, inside the daemon and beside it: start and stop."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nousd.bridge.http.listen_address import place_of
from nousd.cli.nousd import http_settings
from nousd.client.blocking import Connection
from nousd.errors import ConfigError
from tests.harness.daemon import WAIT_SECONDS

STOP_SECONDS = 20
"""Far longer than the grace period, and far shorter than the write timeout of a stalled client."""


class Process:
    """``nousd serve`` or ``nousd bridge`` with HTTP on a Unix socket of ``folder`` or on a port."""

    def __init__(self, folder: Path, verb: str, place: str, **environ: str) -> None:
        where = ["--socket", str(folder / "s"), "--state-dir", str(folder / "state")]
        if verb == "serve":
            where += ["--workdir", str(folder), "--provider", "mock"]
        self.log = folder / f"{verb}.log"
        self.token_file = folder / "state" / "http-token"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "dev", "-m", "nousd", verb, *where, "--http", place],
                env={**os.environ, "NOUSD_CONFIG": "", "XDG_CONFIG_HOME": str(folder), **environ},
                stderr=log,
            )

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sent)
        return self.process.wait(STOP_SECONDS)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=WAIT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_SECONDS)
        self.sock.connect(os.fspath(self._path))


Answer = tuple[int, Any]


def ask(where: Path | int, path: str, token: str = "", method: str = "GET") -> Answer:
    """Return the status and JSON of a response; wait for a server that is starting."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        if isinstance(where, Path):
            connection: http.client.HTTPConnection = UnixConnection(where)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", where, timeout=WAIT_SECONDS)
        try:
            connection.request(method, path, headers={"x-tandem-token": token})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (ConnectionError, FileNotFoundError):
            assert time.monotonic() < until
            time.sleep(0.01)
        finally:
            connection.close()


def ask_until(status: int, where: Path, path: str, token: str) -> Any:
    until = time.monotonic() + WAIT_SECONDS
    while (answer := ask(where, path, token))[0] != status:
        assert time.monotonic() < until, answer
    return answer[1]


def token_of(folder: Path) -> str:
    return (folder / "state" / "http-token").read_text().strip()


@contextmanager
def running(folder: Path, verb: str, place: str, **environ: str) -> Iterator[Process]:
    process = Process(folder, verb, place, **environ)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
        process.process.wait()


@pytest.fixture
def folder(short_folder: Path) -> Path:
    (short_folder / "state").mkdir(mode=0o700)
    return short_folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def open_stream(port: int, token: str, stack: ExitStack) -> socket.socket:
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"GET /event HTTP/1.1\r\nhost: localhost\r\nx-tandem-token: {token}\r\n\r\n"
    client.sendall(head.encode())
    assert client.recv(12) == b"HTTP/1.1 200"
    return client


@pytest.mark.slow
def test_a_daemon_with_open_clients_stops_cleanly_and_restarts_on_its_port(
    folder: Path,
) -> None:
    port = free_port()
    with ExitStack() as clients:
        with running(folder, "serve", f"127.0.0.1:{port}") as daemon:
            assert ask(port, "/global/health")[0] == 200
            token = token_of(folder)
            session = ask(port, "/session", token, "POST")[1]["id"]
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            open_stream(port, token, clients)  # reads nothing more
            prompt = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            body = json.dumps({"parts": [{"type": "text", "text": "[[say 100000]]"}]})
            prompt.sendall(
                f"POST /session/{session}/prompt_sync HTTP/1.1\r\nhost: localhost\r\n"
                f"x-tandem-token: {token}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n{body}".encode()
            )
            until = time.monotonic() + WAIT_SECONDS
            while ask(port, f"/session/{session}/run", token)[1]["active"] is None:
                assert time.monotonic() < until
            shown = Path(f"/proc/{daemon.process.pid}/cmdline")
            assert not shown.exists() or token.encode() not in shown.read_bytes()
            assert daemon.stop() == 0
            assert prompt.recv(9) == b"HTTP/1.1 ", "a waiting client receives a response"
        with running(folder, "serve", f"127.0.0.1:{port}") as daemon:
            assert ask(port, "/session", token)[0] == 200, "the same token as before"
            assert daemon.stop(signal.SIGINT) == 0
    log = daemon.log.read_text()
    assert '"stopped"' in log
    for sign in ("Traceback", "Warning", token):
        assert sign not in log


@pytest.mark.slow
def test_tools_cannot_read_the_token(folder: Path) -> None:
    """The state directory may be inside the workspace, as it is here."""
    with running(folder, "serve", f"unix:{folder / 'http'}") as daemon:
        assert ask(folder / "http", "/global/health")[0] == 200
        token = token_of(folder)
        for tool, arguments in (
            ("read", {"path": "state/http-token"}),
            ("read", {"path": str(daemon.token_file)}),
            ("grep", {"pattern": re.escape(token)}),
        ):
            call = ["-m", "nousd.cli.nousctl.main", "--socket", str(folder / "s"), "call", tool]
            done = subprocess.run(
                [sys.executable, *call, json.dumps(arguments)],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=WAIT_SECONDS,
                check=False,
            )
            assert token not in done.stdout + done.stderr
            assert re.search("path_outside_workdir|No matches found", done.stdout + done.stderr)
        assert daemon.stop() == 0


@pytest.mark.slow
def test_the_service_manager_is_notified_when_http_accepts_connections(folder: Path) -> None:
    path, port = folder / "notify", free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(os.fspath(path))
        manager.settimeout(WAIT_SECONDS)
        place = f"127.0.0.1:{port}"
        with running(folder, "serve", place, NOTIFY_SOCKET=os.fspath(path)) as daemon:
            assert manager.recv(1024).startswith(b"READY=1")
            socket.create_connection(("127.0.0.1", port)).close()
            assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["serve", "bridge"])
def test_an_address_in_use_is_a_one_line_error_with_exit_code_2(folder: Path, verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with running(folder, verb, place) as process:
            assert process.process.wait(WAIT_SECONDS) == 2
    lines = [line for line in process.log.read_text().splitlines() if not line.startswith("{")]
    (line,) = lines
    assert line.startswith(f"nousd: http: {place}: Address already in use by another program")
    assert "ss -ltnp" in line


@pytest.mark.slow
def test_a_standalone_bridge_outlives_its_daemon(folder: Path) -> None:
    http_socket = folder / "http"
    with running(folder, "bridge", f"unix:{http_socket}") as bridge:
        assert ask(http_socket, "/global/health")[1]["ready"] is False
        token = token_of(folder)
        status, refusal = ask(http_socket, "/session", token)
        assert (status, refusal["code"], refusal["retryable"]) == (503, "ENGINE_STARTING", True)
        for _ in range(2):
            with running(folder, "serve", f"unix:{folder / 'other'}") as daemon:
                assert isinstance(ask_until(200, http_socket, "/session", token), list)
                assert ask(http_socket, "/session", token, "POST")[0] == 200
                assert daemon.stop() == 0
        assert bridge.process.poll() is None
        assert bridge.stop() == 0
    assert not http_socket.exists()
    for sign in ("Traceback", "Warning", token):
        assert sign not in bridge.log.read_text()


@pytest.mark.slow
@pytest.mark.behaviour("others_are_held_to_the_allowed_folders")
@pytest.mark.parametrize("is_alone", [False, True], ids=["embedded", "alone"])
def test_http_clients_are_held_to_the_allowed_workspaces(
    folder: Path, tmp_path: Path, is_alone: bool
) -> None:
    """Only the user, on the Unix socket, may work anywhere."""
    other, inside = tmp_path, folder / "inside"
    inside.mkdir()
    place = folder / "http"
    verb = "bridge" if is_alone else "serve"
    with ExitStack() as stack:
        if is_alone:
            stack.enter_context(running(folder, "serve", f"unix:{folder / 'unused'}"))
        stack.enter_context(running(folder, verb, f"unix:{place}"))
        ask_until(200, place, "/global/health", "")
        token = token_of(folder)
        ask_until(200, place, "/session", token)
        with Connection(folder / "s") as user:
            named = {"workspace": str(other), "activate": False}
            session = user.request("new_session", named).payload["session_id"]
        status, answer = post(place, "/session", token, directory=str(other))
        assert (status, "must lie in" in json.dumps(answer)) == (403, True), answer
        assert post(place, "/session", token, directory=str(inside))[0] == 200
        parts = [{"type": "text", "text": "hi"}]
        assert post(place, f"/session/{session}/prompt_async", token, parts=parts)[0] == 403
        with Connection(folder / "s") as user:
            prompt = {"session_id": session, "text": "hi", "wait": True}
            assert user.request("prompt", prompt).payload["status"] == "completed"


def post(where: Path, path: str, token: str, **body: Any) -> Answer:
    connection = UnixConnection(where)
    headers = {"x-tandem-token": token, "content-type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.mark.slow
def test_a_bridge_that_starts_before_the_first_daemon_creates_the_token(folder: Path) -> None:
    (folder / "state").rmdir()
    http_socket = folder / "http"
    with running(folder, "bridge", f"unix:{http_socket}"):
        assert ask(http_socket, "/global/health")[0] == 200
        token = token_of(folder)
        assert (folder / "state").stat().st_mode & 0o777 == 0o700
        with running(folder, "serve", f"unix:{folder / 'other'}"):
            assert ask_until(200, http_socket, "/session", token) == []


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_bridge_without_a_daemon_stops_on_a_signal(folder: Path, sent: signal.Signals) -> None:
    with running(folder, "bridge", f"unix:{folder / 'http'}") as bridge:
        assert ask(folder / "http", "/global/health")[0] == 200
        assert bridge.stop(sent) == 0


def nousd(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nousd", *argv],
        env={**os.environ, "NOUSD_CONFIG": "", "NOUSD_HTTP": ""},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_a_bridge_without_an_address_is_a_one_line_error(folder: Path) -> None:
    done = nousd("bridge", "--state-dir", str(folder / "state"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("nousd: http: say where to listen")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("0.0.0.0:0", "can be reached from other machines"),
        ("[::]:0", "can be reached from other machines"),
        ("192.0.2.1:80", "can be reached from other machines"),
        ("example.com:80", "can be reached from other machines"),
        ("localhost.example:80", "can be reached from other machines"),
        ("80", "is neither HOST:PORT nor unix:PATH"),
        ("127.0.0.1:65536", "is neither HOST:PORT nor unix:PATH"),
        ("127.0.0.1:-1", "is neither HOST:PORT nor unix:PATH"),
        ("http://127.0.0.1:1", "is neither HOST:PORT nor unix:PATH"),
        ("unix:here", "the path of a Unix socket is absolute"),
    ],
)
def test_an_invalid_or_remote_address_is_refused(place: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        place_of(place)


@pytest.mark.parametrize("place", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:65535", "localhost:80"])
def test_local_addresses_are_accepted_and_remote_ones_only_if_allowed(place: str) -> None:
    assert str(place_of(place)) == place
    assert place_of("192.0.2.1:80", remote=True).host == "192.0.2.1"


def test_a_missing_library_is_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    for missing in ("h11", "starlette"):
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.util,
                "find_spec",
                lambda name, missing=missing: None if name == missing else find(name),
            )
            with pytest.raises(ConfigError, match=r"pip install 'nousd\[http\]'"):
                http_settings.check_installed()
