"""The environment variables that a tool and its processes see.

A list of allowed names, not of forbidden ones: a secret under an unexpected name stays in the daemon.
The names of the locale are listed for the same reason.
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
"""Set in the environment of everything that the daemon starts, and in its own: a client that finds it
starts no daemon.
"""


def filter_environment() -> dict[str, str]:
    """Return the allowed part of the daemon's environment, and ``INSIDE``."""
    found = {name: os.environ[name] for name in ALLOWED_VARIABLES if name in os.environ}
    found.setdefault("PATH", os.defpath)
    return {**found, INSIDE: "1"}
