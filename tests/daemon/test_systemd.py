"""Sockets passed by systemd, and notifications to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import pytest

from nousd.daemon.ops.systemd import Notifier, take_notifier, take_passed_sockets
from tests.harness.daemon import WAIT_SECONDS

STARTED_BY_SOCKET = """
import fcntl, os, sys
spare = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 50) for word in sys.argv[1].split(",")]
for position, descriptor in enumerate(spare):
    os.dup2(descriptor, 3 + position)
os.environ["LISTEN_PID"] = str(os.getpid())

from nousd.daemon.ops.systemd import take_passed_sockets
from nousd.errors import ConfigError
try:
    passed = take_passed_sockets()
except ConfigError as error:
    sys.exit(f"ConfigError: {error}")
print(passed.command.getsockname(), passed.events.getsockname())
print([os.get_inheritable(sock.fileno()) for sock in passed])
print([name for name in os.environ if name.startswith("LISTEN_")])
"""
"""A program that puts the descriptors where systemd would, and prints the sockets that it takes."""


def start_with(
    *sockets: socket.socket | TextIO, names: str | None = None
) -> subprocess.CompletedProcess[str]:
    descriptors = [sock.fileno() for sock in sockets]
    environ = os.environ | {"LISTEN_FDS": str(len(sockets))}
    if names is not None:
        environ["LISTEN_FDNAMES"] = names
    return subprocess.run(
        [sys.executable, "-c", STARTED_BY_SOCKET, ",".join(map(str, descriptors))],
        pass_fds=descriptors,
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def listening_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


@pytest.fixture
def first(short_folder: Path) -> Iterator[socket.socket]:
    with closing(listening_socket(short_folder / "a")) as sock:
        yield sock


@pytest.fixture
def second(short_folder: Path) -> Iterator[socket.socket]:
    with closing(listening_socket(short_folder / "a.events")) as sock:
        yield sock


def test_passed_sockets_are_distinguished_by_their_paths_in_either_order(
    first: socket.socket, second: socket.socket
) -> None:
    expected = f"{first.getsockname()} {second.getsockname()}"
    for order in ([first, second], [second, first]):
        # One unit with two ListenStream= gives both the unit's name.
        started = start_with(*order, names="nousd.socket:nousd.socket")
        assert started.stdout.splitlines()[0] == expected, started.stderr


def test_names_take_precedence_over_paths(first: socket.socket, second: socket.socket) -> None:
    started = start_with(first, second, names="events:command")
    expected = f"{second.getsockname()} {first.getsockname()}"
    assert started.stdout.splitlines()[0] == expected, started.stderr


def test_children_inherit_neither_the_sockets_nor_the_environment(
    first: socket.socket, second: socket.socket
) -> None:
    started = start_with(first, second, names="command:events")
    assert started.stdout.splitlines()[1:] == ["[False, False]", "[]"], started.stderr


def test_a_single_passed_socket_is_refused(first: socket.socket) -> None:
    assert "ConfigError: systemd passed 1 sockets" in start_with(first).stderr


def test_sockets_that_cannot_be_distinguished_are_refused(
    first: socket.socket, short_folder: Path
) -> None:
    with closing(listening_socket(short_folder / "b")) as other:
        assert (
            "ConfigError: the sockets from systemd are neither" in start_with(first, other).stderr
        )


def test_a_socket_of_another_family_is_refused(first: socket.socket) -> None:
    with closing(socket.socket(socket.AF_INET)) as other:
        started = start_with(first, other, names="command:events")
    assert "ConfigError: descriptor 4 from systemd is not a listening Unix" in started.stderr


def test_a_socket_that_does_not_listen_is_refused(first: socket.socket) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as other:
        started = start_with(first, other, names="command:events")
    assert "ConfigError: descriptor 4 from systemd is not a listening Unix" in started.stderr


def test_a_descriptor_that_is_not_a_socket_is_refused(first: socket.socket) -> None:
    with Path(os.devnull).open() as no_socket:
        started = start_with(first, no_socket, names="command:events")
    assert "ConfigError: descriptor 4 from systemd is not a socket" in started.stderr


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "command:events"},
        {"LISTEN_FDS": "2"},
        {"LISTEN_PID": str(os.getpid())},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "two"},
    ],
    ids=["nothing", "another_process", "no_pid", "no_count", "none", "no_number"],
)
def test_invalid_or_foreign_variables_are_ignored_and_removed(environ: dict[str, str]) -> None:
    assert take_passed_sockets(environ) is None
    assert environ == {}


# --- notifications ---------------------------------------------------------------------------


def manager(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(address)
    sock.settimeout(WAIT_SECONDS)
    return sock


def test_the_manager_receives_status_ready_and_stopping(short_folder: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(short_folder / "notify"), "HOME": "/"}
    with closing(manager(environ["NOTIFY_SOCKET"])) as receiver:
        notifier = take_notifier(environ)
        notifier.status("recovering 3 runs")
        notifier.ready("serving")
        notifier.stopping()
        received = [receiver.recv(4096) for _ in range(3)]
    assert received == [b"STATUS=recovering 3 runs", b"READY=1\nSTATUS=serving", b"STOPPING=1"]
    assert environ == {"HOME": "/"}


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets exist only on Linux")
def test_an_abstract_notify_address_is_supported() -> None:
    name = f"nousd-test-{os.getpid()}"
    with closing(manager(f"\0{name}")) as receiver:
        Notifier(f"@{name}").stopping()
        assert receiver.recv(4096) == b"STOPPING=1"


def test_a_line_break_in_a_status_does_not_inject_another_message(short_folder: Path) -> None:
    with closing(manager(str(short_folder / "notify"))) as receiver:
        Notifier(str(short_folder / "notify")).status("one\nREADY=1")
        assert receiver.recv(4096) == b"STATUS=one READY=1"


@pytest.mark.parametrize("address", [None, ""])
def test_a_notifier_without_a_manager_does_nothing(
    address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier(address).ready("serving")
    assert not caplog.records


@pytest.mark.parametrize("address", ["/nowhere/notify", "/" + "x" * 200, "vsock:2:9999"])
def test_an_unreachable_manager_causes_only_a_warning(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier(address).ready("serving")
    assert "cannot be notified" in caplog.text


def test_a_manager_that_does_not_read_never_blocks_the_daemon(
    short_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(socket.socket):
        def sendto(self, *args: Any) -> int:
            assert self.gettimeout() == 0.0, "this could wait"
            return super().sendto(*args)

    with closing(manager(str(short_folder / "notify"))):
        monkeypatch.setattr(socket, "socket", Impatient)
        notifier = Notifier(str(short_folder / "notify"))
        for _ in range(100_000):
            notifier.status("x" * 4000)
            if caplog.records:
                break
    assert "cannot be notified" in caplog.text
