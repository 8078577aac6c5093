"""The text of the systemd user units for this installation.

Paths are those of the running interpreter and systemd's ``%t`` (the user's runtime directory), so the
output is valid on the machine where it was printed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_SERVICE: Final = """\
[Unit]
Description=nousd, a headless agent runtime
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={program} serve
Restart=on-failure
RestartSec=1
# Runs get the time they need to end with balanced events.
TimeoutStopSec=30
KillMode=mixed
# As many connections as the limits of the protocol allow, and room for files.
LimitNOFILE=8192
UMask=0077

[Install]
WantedBy=default.target
"""

_SOCKET: Final = """\
[Unit]
Description=Sockets of nousd

[Socket]
ListenStream=%t/nousd/nousd.sock
ListenStream=%t/nousd/nousd.sock.events
SocketMode=0600
DirectoryMode=0700
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def service_unit() -> str:
    """Return ``nousd.service``."""
    return _SERVICE.format(program=_program())


def socket_unit() -> str:
    """Return ``nousd.socket``, which starts the service at the first connection."""
    return _SOCKET


def _program() -> str:
    """Return the command line of this installation, quoted for systemd."""
    sibling = Path(sys.executable).with_name("nousd")
    if sibling.exists():
        return _quote(str(sibling))
    return f"{_quote(sys.executable)} -m nousd"


def _quote(word: str) -> str:
    # "%" and "$" begin systemd's specifiers and variables, and are escaped by doubling.
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
