"""The directories of a repository, and its files that make git run programs.

The workdir of a worktree or a submodule has a *file* ``.git``, which names a folder elsewhere. A file
that a repository brings along could name any folder, so the name alone opens nothing: the folder has
to name the workdir in its turn, and only somebody who may write there can have written that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

WORKTREES: Final = ".worktrees"
"""Where in a workdir our worktrees are."""

_RUNS: Final = ("config", "config.worktree", "commondir", "hooks", "modules")
"""What makes git run programs, in a folder of git's. Modules have configs and hooks of their own, and
another common folder brings its own as well."""

_LEADS: Final = ("commondir", "config.worktree", "gitdir")

_TEXT_BYTES_MAX: Final = 64 * 1024

NAMED_MAX: Final = 100
"""Places, and programs, that are taken from one config."""

_PLACE_CHARS_MAX: Final = 1000
_NAME_CHARS_MAX: Final = 200

_ELSEWHERE: Final = re.compile(
    r"^[ \t]*(?:hookspath|path)[ \t]*=(.+)", re.MULTILINE | re.IGNORECASE
)
_BETWEEN_WORDS: Final = re.compile(r"[\s\"'=!;|&<>()]+")

_WORKTREE: Final = re.compile(r"^[ \t]*worktree[ \t]*=(.+)", re.MULTILINE)


def closed_in(folder: Path) -> tuple[Path, ...]:
    """Return the paths of a workspace or git directory that must not change, whether they exist or
    not.
    """
    git = folder / ".git"
    if _is_of_git(folder):
        return _closed_of_git(folder)
    of_worktrees = tuple((folder / WORKTREES).glob("*/.git"))
    if _is_of_git(git) and not git.is_symlink():
        return (*_closed_of_git(git), *of_worktrees)
    return (git, *of_worktrees)


def _closed_of_git(git: Path) -> tuple[Path, ...]:
    """The folder of a worktree names the config that counts there, wherever that is."""
    of_worktrees = [
        folder / name
        for folder in (git / "worktrees").glob("*")
        for name in _LEADS
        if os.path.isdir(folder)  # noqa: PTH112
    ]
    return (*(git / name for name in _RUNS), *of_worktrees, *_named_in_config(git))


def _named_in_config(git: Path) -> Iterator[Path]:
    """Yield where hooks and more of the config are, if they are elsewhere, and the programs that git is
    told to run. What such a name starts from depends on what it is of; both are taken. A program in the
    workdir is named with a slash, and may be any word of a command.
    """
    config = _text(git / "config")
    places = [place for found in _ELSEWHERE.findall(config) if (place := _value(found))]
    programs = [word for word in _BETWEEN_WORDS.split(config) if "/" in word]
    for place in places[:NAMED_MAX]:
        # Unlike Path.expanduser, this leaves an unknown user as it is.
        expanded = os.path.expanduser(place)  # noqa: PTH111
        yield from (git / expanded, git.parent / expanded)
    named = (git.parent / program for program in programs[:NAMED_MAX])
    # Unlike Path.is_file, this bears whatever stands there.
    yield from (path for path in named if os.path.isfile(path))  # noqa: PTH113


def _value(found: str) -> str:
    """Return the value of a config line; empty if it cannot be a path."""
    value = found.strip().strip('"')
    is_long = len(value) > _PLACE_CHARS_MAX or any(
        len(name) > _NAME_CHARS_MAX for name in value.split("/")
    )
    return "" if is_long or "\0" in value else value


def _is_of_git(folder: Path) -> bool:
    # Unlike those of Path, these bear loops of links and folders that are closed to us.
    return os.path.isfile(folder / "HEAD") and (  # noqa: PTH113
        os.path.isdir(folder / "objects") or os.path.isfile(folder / "commondir")  # noqa: PTH112, PTH113
    )


def outer_git_folders(workdir: Path, hidden: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return the folders outside of the workdir that are its repository: none for most.

    Args:
        hidden: what is never among them.
    """
    named = _named(workdir / ".git", "gitdir:", workdir)
    if named is None or not _leads_back(named, workdir):
        return ()
    common = _named(named / "commondir", "", named) or named
    found = dict.fromkeys((common, named))
    outside = [path for path in found if not path.is_relative_to(workdir)]
    if any(_meets(path, closed) for path in outside for closed in hidden):
        return ()
    return tuple(outside)


def _named(file: Path, prefix: str, base: Path) -> Path | None:
    """Return the folder that a file names, None if there is no such file or folder."""
    text = _text(file)
    if not text.startswith(prefix):
        return None
    place = _value(text.removeprefix(prefix))
    found = Path(os.path.realpath(base / place))
    return found if place and _is_of_git(found) else None


def _leads_back(folder: Path, workdir: Path) -> bool:
    """Whether a folder of git's says that it belongs to the workdir."""
    of_worktree = _value(_text(folder / "gitdir"))
    if of_worktree:
        return os.path.realpath(folder / of_worktree) == str(workdir / ".git")
    of_submodule = _WORKTREE.search(_text(folder / "config"))
    return of_submodule is not None and os.path.realpath(folder / _value(of_submodule[1])) == str(
        workdir
    )


def _text(file: Path) -> str:
    try:
        if not file.is_file() or file.is_symlink():
            return ""
        with file.open("rb") as opened:
            return opened.read(_TEXT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def _meets(path: Path, other: Path) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)
