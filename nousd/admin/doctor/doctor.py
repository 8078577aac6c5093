"""``nousd doctor``: checks everything that a daemon needs, without changing anything.

``EXAMINATIONS`` lists the checks. They are independent, and each runs whether or not others failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from nousd.admin.doctor import daemon as examine_daemon
from nousd.admin.doctor import http as examine_http
from nousd.admin.doctor import models as examine_model
from nousd.admin.doctor import paths as examine_places
from nousd.admin.doctor import tools as examine_tools
from nousd.admin.doctor.examination import About, Check, Examine, World
from nousd.config.models_file import AUTO
from nousd.config.resolve import resolve
from nousd.errors import ConfigError

EXAMINATIONS: Final[Mapping[About, tuple[Examine, ...]]] = {
    "running": (examine_daemon.socket,),
    "both": (
        examine_places.runtime_folder,
        examine_places.state_folder,
        examine_places.files,
        examine_places.disk,
        examine_daemon.locks,
        examine_daemon.database,
        examine_http.token,
        examine_tools.supervisor,
    ),
    "new": (
        examine_places.workdir,
        examine_places.workspaces,
        examine_http.address,
        examine_model.providers,
        examine_tools.rules,
        examine_tools.sandbox,
        examine_tools.toolchains,
    ),
}
"""The checks, in the order of the report."""

_HEADINGS: Final[Mapping[About, str]] = {
    "running": "the daemon that runs:",
    "both": "its files and this machine, for every daemon:",
    "new": "a daemon that starts now, with the settings as they are:",
}


class DoctorReport(msgspec.Struct, frozen=True):
    """The results of all checks, in order; ``failed`` counts those that failed."""

    checks: Sequence[Check]
    failed: int

    def lines(self) -> Iterator[str]:
        """Yield the report for people."""
        for about, heading in _HEADINGS.items():
            yield heading
            yield from (f"  {check}" for check in self.checks if check.about == about)
        yield self.summary

    @property
    def summary(self) -> str:
        """One line for people."""
        warnings = sum(check.status == "warning" for check in self.checks)
        return f"{len(self.checks)} checks: {self.failed} failed, {warnings} warnings"


def doctor(
    flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> DoctorReport:
    """Run all checks. The arguments are those of ``config.resolve.resolve``."""
    checks, world = _settings(flags, environ, config)
    if world is not None:
        checks += [
            msgspec.structs.replace(check, about=about)
            for about, examinations in EXAMINATIONS.items()
            for examine in examinations
            for check in examine(world)
        ]
    return DoctorReport(checks, sum(check.status == "failed" for check in checks))


def _settings(
    flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None
) -> tuple[list[Check], World | None]:
    """Read the settings. A daemon does not start with invalid settings, so nothing else can be checked
    then, unless only the settings of the model server are incomplete.
    """
    try:
        resolved = resolve(flags, environ, config)
    except ConfigError as error:
        failed = Check("settings", "failed", str(error), "a daemon does not start with this")
        try:
            resolved = resolve(flags, environ, config, asks_models=False)
        except ConfigError:
            return [failed], None
        return [failed], World(resolved.settings)
    file = resolved.settings.config_file
    found = f"are read from {file}" if file else "come from no file: there is none"
    chosen = sum(origin != "default" for origin in resolved.origins.values())
    checks = [Check("settings", "ok", f"{found}; {chosen} differ from their defaults")]
    settings = resolved.settings
    if settings.provider == AUTO:
        auto, settings = examine_model.resolve_provider(settings)
        checks.append(auto)
    return checks, World(settings)
