"""The daemon's sockets: creation, permissions, stale sockets and removal."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.ops.systemd import PassedSockets
from nousd.daemon.transport.sockets import open_listeners, socket_paths
from nousd.errors import ConfigError
from nousd.net.unix_sockets import SUN_PATH_BYTES
from nousd.runtime_paths.locks import lock_socket
from tests.harness.daemon import WAIT_SECONDS

SERVE = """
import sys
from pathlib import Path
import trio
from nousd.runtime_paths.locks import lock_socket
from nousd.daemon.transport.sockets import open_listeners

async def main():
    path = Path(sys.argv[1])
    with lock_socket(path):
        async with open_listeners(path):
            print("listening", flush=True)
            await trio.sleep_forever()

trio.run(main)
"""

Plant = Callable[[Path], object]


def events_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.events")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def inode(path: Path) -> int:
    return path.lstat().st_ino


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def listening_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(1)
    return sock


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> socket.socket:
    """Replace the socket by that of another program."""
    path.unlink()
    return listening_socket(path)


def run_daemon_and_kill_it(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(path)], stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"listening\n"
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(WAIT_SECONDS)


async def try_to_open(path: Path) -> None:
    async with open_listeners(path):
        pass


async def converse(path: Path, listener: trio.SocketListener) -> bytes:
    """Send a line from a new client to the listener and return what arrived there."""
    with trio.fail_after(WAIT_SECONDS):
        async with await trio.open_unix_socket(path) as client, await listener.accept() as stream:
            await client.send_all(b"hello\n")
            return bytes(await stream.receive_some())


async def test_both_sockets_accept_connections(socket_path: Path) -> None:
    async with open_listeners(socket_path) as listeners:
        assert await converse(socket_path, listeners.command) == b"hello\n"
        assert await converse(events_of(socket_path), listeners.events) == b"hello\n"


async def test_both_sockets_are_private_under_any_umask(socket_path: Path, any_umask: int) -> None:
    async with open_listeners(socket_path):
        assert mode(socket_path) == 0o600
        assert mode(events_of(socket_path)) == 0o600
    assert os.umask(any_umask) == any_umask


async def test_a_socket_is_private_from_its_bind_on(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Observed(socket.socket):
        def bind(self, address: str) -> None:  # type: ignore[override]
            super().bind(address)
            seen.append(mode(Path(address)))

    monkeypatch.setattr(socket, "socket", Observed)
    async with open_listeners(socket_path):
        assert seen == [0o600, 0o600]


async def test_the_event_socket_is_bound_before_the_command_socket(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = []

    class Observed(socket.socket):
        def bind(self, address: str) -> None:  # type: ignore[override]
            super().bind(address)
            bound.append(address)

    monkeypatch.setattr(socket, "socket", Observed)
    async with open_listeners(socket_path):
        assert bound == [str(events_of(socket_path)), str(socket_path)]


async def test_closing_removes_both_sockets_and_ends_pending_accepts(
    short_folder: Path, socket_path: Path
) -> None:
    async def wait_for_end(listener: trio.SocketListener) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery, open_listeners(socket_path) as listeners:
            nursery.start_soon(wait_for_end, listeners.command)
            nursery.start_soon(wait_for_end, listeners.events)
            await wait_all_tasks_blocked()
    assert names_in(short_folder) == []


@pytest.mark.parametrize("path_of", [Path, events_of], ids=["command", "events"])
async def test_closing_does_not_remove_a_socket_that_has_replaced_ours(
    socket_path: Path, path_of: Callable[[Path], Path]
) -> None:
    taken = path_of(socket_path)
    async with open_listeners(socket_path):
        other = replace(taken)
        theirs = inode(taken)
    with closing(other):
        assert inode(taken) == theirs
        with trio.fail_after(WAIT_SECONDS):
            await (await trio.open_unix_socket(taken)).aclose()
    assert names_in(socket_path.parent) == [taken.name]


async def test_closing_tolerates_a_socket_that_was_removed(socket_path: Path) -> None:
    async with open_listeners(socket_path):
        remove(socket_path)
    assert names_in(socket_path.parent) == []


async def test_sockets_left_by_a_killed_daemon_are_replaced(socket_path: Path) -> None:
    await trio.to_thread.run_sync(run_daemon_and_kill_it, socket_path)
    assert names_in(socket_path.parent) == ["nous.sock", "nous.sock.events", "nous.sock.lock"]
    with lock_socket(socket_path):
        async with open_listeners(socket_path) as listeners:
            assert await converse(socket_path, listeners.command) == b"hello\n"
            assert await converse(events_of(socket_path), listeners.events) == b"hello\n"
    assert names_in(socket_path.parent) == ["nous.sock.lock"]


async def test_a_second_daemon_is_refused_and_the_first_continues(socket_path: Path) -> None:
    with lock_socket(socket_path):
        async with open_listeners(socket_path) as listeners:
            before = inode(socket_path), inode(events_of(socket_path))
            with pytest.raises(ConfigError, match="another daemon"), lock_socket(socket_path):
                pytest.fail("both hold the lock")
            assert (inode(socket_path), inode(events_of(socket_path))) == before
            assert await converse(socket_path, listeners.command) == b"hello\n"


@pytest.mark.parametrize("path_of", [Path, events_of], ids=["command", "events"])
async def test_a_listening_socket_without_a_lock_is_refused_and_not_replaced(
    socket_path: Path, path_of: Callable[[Path], Path]
) -> None:
    taken = path_of(socket_path)
    with closing(listening_socket(taken)):
        theirs = inode(taken)
        with pytest.raises(ConfigError, match=f"already listens on the socket {taken}$"):
            await try_to_open(socket_path)
        assert inode(taken) == theirs
        assert names_in(socket_path.parent) == [taken.name]


async def test_a_listening_socket_with_a_full_backlog_is_not_considered_stale(
    socket_path: Path,
) -> None:
    with closing(listening_socket(socket_path)) as busy:
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(socket_path))
            with trio.fail_after(WAIT_SECONDS), pytest.raises(ConfigError, match="already listens"):
                await try_to_open(socket_path)


def datagram_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(path))
    return sock


async def test_a_datagram_socket_is_not_considered_stale(socket_path: Path) -> None:
    with closing(datagram_socket(socket_path)):
        with pytest.raises(ConfigError, match="already listens"):
            await try_to_open(socket_path)
        assert names_in(socket_path.parent) == ["nous.sock"]


def regular_file(path: Path) -> None:
    path.write_text("kept")


def folder(path: Path) -> None:
    path.mkdir()


def named_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_dead_socket(path: Path) -> None:
    target = path.with_name("target")
    dead_socket(target)
    path.symlink_to(target)


def link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("path_of", [Path, events_of], ids=["command", "events"])
@pytest.mark.parametrize(
    "plant", [regular_file, folder, named_pipe, link_to_a_dead_socket, link_to_nowhere]
)
async def test_a_file_that_is_not_a_socket_is_refused_and_not_replaced(
    socket_path: Path, path_of: Callable[[Path], Path], plant: Plant
) -> None:
    taken = path_of(socket_path)
    plant(taken)
    before = inode(taken), names_in(socket_path.parent)
    with pytest.raises(ConfigError, match=f"^{taken} exists and is not a socket"):
        await try_to_open(socket_path)
    assert (inode(taken), names_in(socket_path.parent)) == before


async def test_a_stale_socket_stays_while_something_else_blocks_the_other_path(
    socket_path: Path,
) -> None:
    dead_socket(events_of(socket_path))
    regular_file(socket_path)
    with pytest.raises(ConfigError):
        await try_to_open(socket_path)
    assert names_in(socket_path.parent) == ["nous.sock", "nous.sock.events"]


@pytest.mark.usefixtures("as_root")
async def test_a_stale_socket_of_another_user_is_refused_and_not_removed(socket_path: Path) -> None:
    dead_socket(socket_path)
    os.chown(socket_path, 65_534, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        await try_to_open(socket_path)
    assert names_in(socket_path.parent) == ["nous.sock"]


async def test_the_error_for_a_missing_folder_names_the_path(short_folder: Path) -> None:
    path = short_folder / "missing" / "nous.sock"
    with pytest.raises(ConfigError, match=f"{path}.* cannot be created: No such file"):
        await try_to_open(path)


async def test_the_first_socket_is_removed_if_the_second_cannot_be_bound(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailsForCommands(socket.socket):
        def bind(self, address: str) -> None:  # type: ignore[override]
            if address == str(socket_path):
                raise OSError(28, "No space left on device")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", FailsForCommands)
    with pytest.raises(ConfigError, match=f"{socket_path} cannot be created: No space left"):
        await try_to_open(socket_path)
    assert names_in(socket_path.parent) == []


def path_of_length(folder: Path, length: int) -> Path:
    return folder / ("x" * (length - len(str(folder)) - 1))


async def test_the_longest_path_that_fits_works_and_one_byte_more_is_refused(
    short_folder: Path,
) -> None:
    longest = path_of_length(short_folder, SUN_PATH_BYTES - 1 - len(".events"))
    async with open_listeners(longest) as listeners:
        assert await converse(events_of(longest), listeners.events) == b"hello\n"
    with pytest.raises(
        ConfigError, match=f"too long: {SUN_PATH_BYTES} bytes, at most {SUN_PATH_BYTES - 1}$"
    ):
        socket_paths(Path(f"{longest}x"))


def test_the_length_of_a_path_is_counted_in_bytes(short_folder: Path) -> None:
    longest = path_of_length(short_folder, SUN_PATH_BYTES - 1 - len(".events"))
    with pytest.raises(ConfigError, match=f"{SUN_PATH_BYTES} bytes"):
        socket_paths(Path(f"{str(longest)[:-1]}\N{LATIN SMALL LETTER E WITH ACUTE}"))


async def test_passed_sockets_are_used_and_never_removed(socket_path: Path) -> None:
    passed = PassedSockets(listening_socket(socket_path), listening_socket(events_of(socket_path)))
    async with open_listeners(socket_path, passed) as listeners:
        assert await converse(socket_path, listeners.command) == b"hello\n"
        assert await converse(events_of(socket_path), listeners.events) == b"hello\n"
    assert names_in(socket_path.parent) == ["nous.sock", "nous.sock.events"]
    assert passed.command.fileno() == passed.events.fileno() == -1
