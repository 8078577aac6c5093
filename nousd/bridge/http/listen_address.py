"""The address where the bridge listens: a TCP address, or a Unix socket."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final, NamedTuple

from nousd.errors import ConfigError

_TCP: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})"
)
_PORT_MAX: Final = 65_535


class HttpPlace(NamedTuple):
    """Either ``host`` and ``port`` (0 for any free port), or ``path``, a Unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect."""
        return self.path is not None or self.host == "localhost" or _is_loopback(self.host)

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(text: str, *, remote: bool = False) -> HttpPlace:
    """Parse an address: ``127.0.0.1:8080``, ``[::1]:0``, ``unix:PATH``.

    Args:
        remote: whether other machines may connect.

    Raises:
        ConfigError: the text is not an address, or other machines can reach it and ``remote`` is false.
    """
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise ConfigError(f"http: {text}: the path of a Unix socket is absolute")
        return HttpPlace(path=path)
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > _PORT_MAX:
        raise ConfigError(f"http: {text!r} is neither HOST:PORT nor unix:PATH")
    place = HttpPlace(match["ipv6"] or match["host"], int(match["port"]))
    if not (remote or place.is_local):
        raise ConfigError(
            f"http: {place} can be reached from other machines; say --http-remote if that is meant"
        )
    return place


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
