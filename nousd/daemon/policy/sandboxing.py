"""Builds, from the settings, the detector that finds the sandbox."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from nousd.config.settings import Settings
from nousd.errors import ConfigError
from nousd.machine.policy.denied_paths import find_denied_paths
from nousd.machine.policy.protected_paths import OBEYED, places_in_sandbox, protection
from nousd.tools.sandbox.deny_scan import Names
from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.limits import FILE_BYTES_MAX, MEBIBYTE, Limits
from nousd.tools.sandbox.obeyed_links import ObeyedLinks
from nousd.tools.sandbox.trap_watch import ObeyedNames, names_of
from nousd.tools.sandbox.visible_paths import SandboxChoices
from nousd.wire.objects.tool_footprint import Access

_RESERVED: Final = (".nousd",)
"""Directories whose files this daemon obeys."""

_OF_GIT: Final = ".git"
"""The sandbox denies only the parts of a repository that run programs, so that commits still work."""


def detector(settings: Settings, hidden: Sequence[Path]) -> Detector:
    """Return a function that finds the sandbox when it is first needed.

    Args:
        hidden: paths that programs must not see.

    Raises:
        ConfigError: a path of the settings would expose a hidden one.
    """
    for name in ("sandbox_paths", "sandbox_write_paths"):
        for path in getattr(settings, name):
            _check(name, path, hidden)
    limits = Limits(
        memory_bytes=settings.sandbox_memory_mb * MEBIBYTE,
        processes=settings.sandbox_processes_max,
        file_bytes=FILE_BYTES_MAX,
    )
    chosen = SandboxChoices(
        network=settings.network,
        read_paths=tuple(path.resolve() for path in settings.sandbox_paths),
        write_paths=tuple(path.resolve() for path in settings.sandbox_write_paths),
        protected=tuple(
            name for name in places_in_sandbox("closed") if name not in (_OF_GIT, *_RESERVED)
        ),
        obeyed=_rows(but=_RESERVED),
        known=_compile_protected,
        reserved=_RESERVED,
        limits=limits,
    )
    return Detector(settings.sandbox, chosen)


def build_obeyed_links() -> ObeyedLinks:
    """Return an object that finds the links under names that programs obey."""
    return ObeyedLinks(compile_obeyed_names)


def compile_obeyed_names() -> Names:
    """Return the names that programs obey. The first call takes milliseconds to compile patterns."""
    return names_of(places_in_sandbox("closed"), _rows())


def _rows(*, but: Collection[str] = ()) -> tuple[ObeyedNames, ...]:
    """Return the table of files that programs obey, without the names in ``but``."""
    return tuple(
        ObeyedNames(
            files.program, files.when, tuple(place for place in files.places if place not in but)
        )
        for files in OBEYED
    )


def _compile_protected() -> Collection[re.Pattern[str]]:
    return find_denied_paths((), (protection(),), "", Access()).writing


def _check(name: str, path: Path, hidden: Sequence[Path]) -> None:
    real = path.resolve()
    if real == Path("/"):
        raise ConfigError(f"{name}: {path} is the whole machine")
    for place in hidden:
        other = place.resolve()
        if real.is_relative_to(other) or other.is_relative_to(real):
            raise ConfigError(f"{name}: {path} would show programs what is the daemon's: {other}")
