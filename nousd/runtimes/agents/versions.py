"""The versions of agent programs with which the adapters were tested (``scripts/runtimes``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nousd.wire.objects.runtimes import VersionRange

TESTED_VERSIONS: Final[Mapping[str, VersionRange]] = {
    "claude": VersionRange(oldest="2.1.329", newest="2.1.332"),
    "codex": VersionRange(oldest="0.171.0", newest="0.171.0"),
    "opencode": VersionRange(oldest="1.18.33", newest="1.18.33"),
}
"""Runtime kind -> versions. ``acp`` has none, because many programs speak that protocol."""
