"""Finds toolchains below the user's home, which no sandbox shows, and proposes paths to show.

A path is proposed only if it contains programs and files that they load. A version manager keeps
credentials and settings next to its programs, so the rows of ``TOOLCHAINS`` name the parts of an
installation, never the whole, and give the reason. No program is run, and the only files read are those
that name the versions in use.

This module does not change what a sandbox shows: the user adds the paths to the setting
``sandbox_paths``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

VERSIONS_MAX: Final = 4
"""Maximum versions of one program that are proposed: those in use, then the newest."""

_IN_USE_BYTES_MAX: Final = 4096

_PATH: Final = "PATH"
"""The name for directories of programs on ``PATH`` that belong to no row."""

_PYTHON: Final = ("bin", "lib", "include")
_NODE: Final = ("bin", "lib")
_ANY: Final = ("bin", "lib", "libexec", "include", "src", "pkg", "conf", "jmods")


class Installations(NamedTuple):
    """The installations of a toolchain, and the parts of each that are shown.

    Args:
        folder: the directory of a program, as a pattern relative to the home.
        parts: the names in an installation that are shown, if they exist.
        versions: the pattern of installations in ``folder``; empty if ``folder`` is the only one.
    """

    folder: str
    parts: tuple[str, ...]
    versions: str = ""


class ToolchainRow(NamedTuple):
    """One version manager or toolchain.

    Args:
        root: its own directory below the home; directories on ``PATH`` in it belong to this row.
        where: its installations.
        reason: why no further parts are shown.
        proof: a path below the home that exists if the toolchain is installed; empty if any of its parts
            proves that.
        in_use: a file below the home that names the versions in use.
    """

    name: str
    root: str
    where: tuple[Installations, ...]
    reason: str
    proof: str = ""
    in_use: str = ""


TOOLCHAINS: Final = (
    ToolchainRow(
        "rust",
        ".cargo",
        (
            Installations(".cargo", ("bin",)),
            Installations(".rustup", ("toolchains", "settings.toml")),
        ),
        "~/.cargo holds credentials.toml and config.toml; its programs look up the default toolchain in"
        " settings.toml, which holds versions and nothing else",
    ),
    ToolchainRow(
        "nvm",
        ".nvm",
        (Installations(".nvm/versions/node", _NODE, "*"),),
        "etc/npmrc of a version may hold the token of a registry",
        in_use=".nvm/alias/default",
    ),
    ToolchainRow(
        "fnm",
        ".local/share/fnm",
        (Installations(".local/share/fnm/node-versions", _NODE, "*/installation"),),
        "as nvm",
    ),
    ToolchainRow(
        "volta",
        ".volta",
        (Installations(".volta/tools/image/node", _NODE, "*"),),
        "as nvm; ~/.volta/bin holds launchers, which need all of ~/.volta",
    ),
    ToolchainRow(
        "pyenv",
        ".pyenv",
        (Installations(".pyenv/versions", _PYTHON, "*"),),
        "pip.conf of a version may hold the password of an index; ~/.pyenv/shims holds launchers, which"
        " need all of ~/.pyenv and write there",
        in_use=".pyenv/version",
    ),
    ToolchainRow(
        "rbenv",
        ".rbenv",
        (Installations(".rbenv/versions", _PYTHON, "*"),),
        "etc/gemrc of a version may hold the password of a source; for the launchers see pyenv",
        in_use=".rbenv/version",
    ),
    ToolchainRow(
        "uv",
        ".local/share/uv",
        (
            Installations(".local", ("bin",)),
            Installations(".local/share/uv", ("python", "tools")),
        ),
        "~/.local/share/uv/credentials holds passwords of indexes; ~/.local/bin links to the others",
        proof=".local/bin/uv",
    ),
    ToolchainRow(
        "asdf",
        ".asdf",
        (Installations(".asdf/installs/*", _ANY, "*"),),
        "an installation may hold npmrc, pip.conf or the credentials of cargo",
        in_use=".tool-versions",
    ),
    ToolchainRow(
        "mise",
        ".local/share/mise",
        (Installations(".local/share/mise/installs/*", _ANY, "*"),),
        "as asdf",
    ),
    ToolchainRow(
        "sdkman",
        ".sdkman",
        (Installations(".sdkman/candidates/java", _ANY, "*"),),
        "only Java: conf/settings.xml of Maven and init.d of Gradle may hold passwords",
    ),
    ToolchainRow(
        "go",
        "sdk",
        (
            Installations("go", ("bin",)),
            Installations("sdk", ("bin", "lib", "pkg", "src"), "go*"),
        ),
        "~/go/pkg and ~/go/src hold the sources of other, perhaps private, projects",
    ),
    ToolchainRow("deno", ".deno", (Installations(".deno", ("bin",)),), "programs only"),
    ToolchainRow("bun", ".bun", (Installations(".bun", ("bin",)),), "programs only"),
    ToolchainRow(
        "pnpm",
        ".local/share/pnpm",
        (Installations(".local/share/pnpm", ("bin",)),),
        "programs only",
    ),
    *(
        ToolchainRow(
            name,
            name,
            (Installations(name, (*_PYTHON, "ssl")),),
            ".condarc may hold the token of a channel",
        )
        for name in ("miniconda3", "miniforge3", "mambaforge", "anaconda3")
    ),
)


class Toolchain(NamedTuple):
    """A toolchain that was found.

    Args:
        paths: the paths that a command needs to see: existing, absolute, in the order for ``PATH``.
        left_out: the number of versions that ``paths`` does not contain.
    """

    name: str
    paths: tuple[Path, ...]
    left_out: int = 0

    def list_hidden_paths(self, shown: Collection[Path]) -> list[Path]:
        """Return the paths that do not lie in any of the ``shown`` paths, which are resolved."""
        return [
            path
            for path in self.paths
            if not any(_real(path).is_relative_to(folder) for folder in shown)
        ]


def find_toolchains(home: Path, path: str, closed: Iterable[Path] = ()) -> list[Toolchain]:
    """Return the toolchains below the user's home, those of the table first.

    Args:
        path: the variable ``PATH``, whose directories below the home are searched too.
        closed: paths that commands must never see; a path around or in one of them is left out.
    """
    finder = _Finder(home, [_real(each) for each in closed])
    rows = [row for row in TOOLCHAINS if (home / row.proof).exists()]
    found = [toolchain for row in rows if (toolchain := finder.look(row)).paths]
    roots = [home / row.root for row in rows]
    known = {path for toolchain in found for path in toolchain.paths}
    others = [folder for folder in finder.program_folders(path, roots) if folder not in known]
    return [*found, *([Toolchain(_PATH, tuple(others))] if others else [])]


class _Finder:
    def __init__(self, home: Path, closed: Collection[Path]) -> None:
        self._home = home
        self._closed = closed

    def look(self, row: ToolchainRow) -> Toolchain:
        in_use = self._in_use(row)
        paths: list[Path] = []
        left_out = 0
        for installation in row.where:
            for program in sorted(self._home.glob(installation.folder)):
                versions = [
                    shown
                    for version in _versions(program, installation.versions, in_use)
                    if (
                        shown := [*filter(self._is_open, map(version.joinpath, installation.parts))]
                    )
                ]
                for shown in versions[:VERSIONS_MAX]:
                    paths += shown
                left_out += len(versions[VERSIONS_MAX:])
        return Toolchain(row.name, tuple(paths), left_out)

    def program_folders(self, path: str, roots: Collection[Path]) -> Iterator[Path]:
        """Yield the directories named ``bin`` on PATH, below the home and not below the roots.

        A virtual environment is left out: it belongs to a workspace, which shows it.
        """
        for folder in dict.fromkeys(map(Path, path.split(os.pathsep))):
            if (
                folder.name == "bin"
                and folder.is_relative_to(self._home)
                and self._is_open(folder)
                and not any(folder.is_relative_to(root) for root in roots)
                and not (folder.parent / "pyvenv.cfg").exists()
            ):
                yield folder

    def _in_use(self, row: ToolchainRow) -> list[str]:
        if not row.in_use:
            return []
        try:
            with (self._home / row.in_use).open("rb") as file:
                return file.read(_IN_USE_BYTES_MAX).decode("utf-8", "replace").split()
        except OSError:
            return []

    def _is_open(self, path: Path) -> bool:
        """Return whether a path exists and may be shown: not, for example, a link to the home."""
        real = _real(path)
        return (
            path.exists()
            and _is_utf8(path)
            and not _real(self._home).is_relative_to(real)
            and not any(
                real.is_relative_to(closed) or closed.is_relative_to(real)
                for closed in self._closed
            )
        )


def _versions(program: Path, pattern: str, in_use: Collection[str]) -> list[Path]:
    """Return the installations of a program: those in use first, then the newest."""
    if not pattern:
        return [program]

    def name(version: Path) -> str:
        return version.relative_to(program).parts[0]

    def rank(version: Path) -> tuple[bool, list[int]]:
        numbers = re.findall(r"\d{1,9}", name(version))
        return any(_is_named(name(version), word) for word in in_use), [*map(int, numbers)]

    # A link is another name of a version, such as "latest" or "20".
    found = [each for each in program.glob(pattern) if not (program / name(each)).is_symlink()]
    return sorted(found, key=rank, reverse=True)


def _is_named(version: str, word: str) -> bool:
    """Return whether a word such as ``20`` or ``v20.1`` names a version such as ``v20.1.0``."""
    return f"{version.removeprefix('v')}.".startswith(f"{word.removeprefix('v')}.")


def _is_utf8(path: Path) -> bool:
    """Return whether a settings file can hold the path."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _real(path: Path) -> Path:
    # Unlike Path.resolve, this accepts loops.
    return Path(os.path.realpath(path))
