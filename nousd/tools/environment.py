"""Which environment variables a tool and its processes see.

A list of what is allowed, not of what is forbidden: a secret under a name that nobody thought of
stays in the daemon. The names of the locale are spelled out for the same reason.
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


def allowed_environment() -> dict[str, str]:
    """Return the daemon's environment without everything that is not on the list."""
    found = {name: os.environ[name] for name in ALLOWED_VARIABLES if name in os.environ}
    found.setdefault("PATH", os.defpath)
    return found
