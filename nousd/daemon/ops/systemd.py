"""Socket activation and readiness notification for systemd.

Both are small protocols over the environment, so neither needs a library. Without systemd the
environment has no such variables, and nothing here has an effect. The variables are removed once read,
because they are meant for this process and not for its children.

Units for socket activation: one ``.socket`` unit with two ``ListenStream=`` (``PATH`` and
``PATH.events``), or two units with ``FileDescriptorName=command`` and ``FileDescriptorName=events``;
``SocketMode=0600`` in both cases.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import Final, NamedTuple

from nousd.errors import ConfigError

_FIRST_FD: Final = 3
"""Passed descriptors start after standard input, output and error: sd_listen_fds(3)."""

_logger: Final = logging.getLogger(__name__)


class PassedSockets(NamedTuple):
    """Listening Unix stream sockets that systemd created and will remove."""

    command: socket.socket
    events: socket.socket


def take_passed_sockets(
    environ: MutableMapping[str, str] = os.environ,
) -> PassedSockets | None:
    """Return the sockets that were passed to this process; None if it was not started by a socket unit.

    They are identified by the names ``command`` and ``events``, else by their paths.

    Raises:
        ConfigError: not exactly one command and one event socket were passed.
    """
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit() or int(count) == 0:
        return None
    if int(count) != len(PassedSockets._fields):
        raise ConfigError(
            f"systemd passed {count} sockets; a command and an event socket are needed"
        )
    sockets = [_adopt(_FIRST_FD + index) for index in range(int(count))]
    if sorted(names) == sorted(PassedSockets._fields):
        return PassedSockets(**dict(zip(names, sockets, strict=True)))
    return _identify_by_path(sockets)


def _adopt(descriptor: int) -> socket.socket:
    """Take over one descriptor, so that children do not inherit it."""
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(f"descriptor {descriptor} from systemd is not a socket") from error
    if (
        sock.family != socket.AF_UNIX
        or sock.type != socket.SOCK_STREAM
        or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        sock.close()
        raise ConfigError(
            f"descriptor {descriptor} from systemd is not a listening Unix stream socket"
        )
    return sock


def _identify_by_path(sockets: Sequence[socket.socket]) -> PassedSockets:
    command, events = sorted(sockets, key=lambda sock: len(_path(sock)))
    if _path(events) != f"{_path(command)}.events":
        raise ConfigError(
            "the sockets from systemd are neither named command and events"
            " nor bound to PATH and PATH.events"
        )
    return PassedSockets(command, events)


def _path(sock: socket.socket) -> str:
    return os.fsdecode(sock.getsockname())


class Notifier:
    """Reports the daemon's state to the service manager (``Type=notify``, sd_notify(3)).

    No method waits or fails: a daemon does not stop because its manager does not listen.

    Args:
        address: path of the manager's datagram socket, ``@`` in front for an abstract one; None or
            empty if notifications are off.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address

    def ready(self, status: str) -> None:
        """Report that the sockets accept connections. ``status`` is shown to people."""
        self._send("READY=1", f"STATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """Report the daemon's state for people."""
        self._send(f"STATUS={_one_line(text)}")

    def stopping(self) -> None:
        """Report that the daemon has begun to stop."""
        self._send("STOPPING=1")

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(errors="replace"), address)
        except OSError as error:
            _logger.warning("the service manager cannot be notified: %s", error.strerror or error)


def take_notifier(environ: MutableMapping[str, str] = os.environ) -> Notifier:
    """Return a notifier for ``$NOTIFY_SOCKET``, and remove that variable from the environment."""
    return Notifier(environ.pop("NOTIFY_SOCKET", None))


def _one_line(text: str) -> str:
    """Replace line feeds, which would begin another assignment."""
    return " ".join(text.split())
