"""Installs pinned programs with npm, each into a folder of its own that later runs find again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.runtimes.real_programs import NODE, RealProgram, binaries, node_folder

_SECONDS_MAX: Final = 900.0


class NotInstalled(Exception):
    """npm is missing, or could not install a package; the text says which."""


def install(program: RealProgram) -> None:
    """Install a program and its Node, unless they are there.

    Raises:
        NotInstalled: they cannot be had.
    """
    if not (binaries(node_folder()) / "node").exists():
        _install(NODE[0], NODE[1], node_folder())
    if not program.path.exists():
        _install(program.package, program.version, program.folder)
    if not program.path.exists():
        raise NotInstalled(f"{program.package}@{program.version} has no program {program.binary}")


def _install(package: str, version: str, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is missing")
    print(f"installing {package}@{version} ...", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    words = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save"]
    # Packages look at the version of Node: with an older one some install an older program instead.
    path = os.pathsep.join([str(binaries(node_folder())), os.environ.get("PATH", os.defpath)])
    try:
        subprocess.run(
            [*words, "--loglevel=error", f"{package}@{version}"],
            env={**os.environ, "PATH": path},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=_SECONDS_MAX,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"npm could not install {package}@{version}: {error}") from error
