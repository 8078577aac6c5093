from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from nousd.daemon.transport.sockets import open_listeners
from nousd.net import accept
from nousd.net.accept import is_own_or_root, peer_uid
from tests.harness.daemon import WAIT_SECONDS

SOMEBODY_ELSE = 65_534

CONNECT_AS_ANOTHER_USER = f"""
import os, socket, sys
os.setuid({SOMEBODY_ELSE})
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
sys.stdin.read()
"""


async def test_a_peer_of_our_own_user_is_accepted() -> None:
    here, there = socket.socketpair()
    with there:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(here)) as stream:
            assert peer_uid(stream) == os.geteuid()
            assert is_own_or_root(stream)


@contextmanager
def connection_of_another_user(path: Path) -> Iterator[None]:
    """Make the socket accessible, as a careless systemd unit would, and connect to it."""
    path.parent.chmod(0o755)
    path.chmod(0o666)
    with subprocess.Popen(
        [sys.executable, "-c", CONNECT_AS_ANOTHER_USER, str(path)], stdin=subprocess.PIPE
    ):
        yield


@pytest.mark.usefixtures("as_root")
async def test_a_peer_of_another_user_is_rejected(socket_path: Path) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with open_listeners(socket_path) as listeners:
            with connection_of_another_user(socket_path):
                async with await listeners.command.accept() as stream:
                    assert peer_uid(stream) == SOMEBODY_ELSE
                    assert not is_own_or_root(stream)


async def test_root_is_accepted_by_a_daemon_of_any_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "peer_uid", lambda stream: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    here, there = socket.socketpair()
    with there:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(here)) as stream:
            assert is_own_or_root(stream)


async def test_a_peer_without_credentials_is_rejected() -> None:
    here, there = socket.socketpair()
    there.close()
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(here))
    await stream.aclose()
    assert not is_own_or_root(stream)


def test_the_credentials_of_bsd_are_decoded() -> None:
    xucred = struct.pack("IIh2x16I", 0, 501, 1, 20, *[0] * 15)
    assert len(xucred) == 76
    assert accept._uid_of_xucred(xucred) == 501
    with pytest.raises(OSError, match="version 7"):
        accept._uid_of_xucred(struct.pack("II", 7, 501))
