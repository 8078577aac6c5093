"""The environment variables that a tool and its processes see.

Names are allowed rather than forbidden, so that a secret under an unexpected name stays in the daemon.
The locale variables are listed one by one for the same reason.
"""

from __future__ import annotations

import os
from typing import Final

ALLOWED_VARIABLES: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TZ",
    "TMPDIR",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_ADDRESS",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_IDENTIFICATION",
    "LC_MEASUREMENT",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NAME",
    "LC_NUMERIC",
    "LC_PAPER",
    "LC_TELEPHONE",
    "LC_TIME",
)


INSIDE: Final = "NOUSD_INSIDE"
"""A variable in the environment of the daemon and of every process that it starts: a client that finds
it does not start a daemon.
"""


def filter_environment() -> dict[str, str]:
    """Return the allowed part of the daemon's environment, and ``INSIDE``."""
    found = {name: os.environ[name] for name in ALLOWED_VARIABLES if name in os.environ}
    found.setdefault("PATH", os.defpath)
    return {**found, INSIDE: "1"}
