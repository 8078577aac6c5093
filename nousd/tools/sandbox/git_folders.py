"""The directories of a repository, and its files that make git run programs.

A worktree or a submodule has a *file* ``.git``, which names a directory elsewhere. A file that comes
with a repository could name any directory, so the name alone opens nothing: that directory must name
the workspace in turn, which only somebody with write access there can have done.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

WORKTREES: Final = ".worktrees"
"""Where worktrees of ours are in a workspace."""

_RUNS: Final = ("config", "config.worktree", "commondir", "hooks", "modules")
"""Files that make git run programs, in a git directory. Modules have configs and hooks of their own,
and so has another common directory."""

_LEADS: Final = ("commondir", "config.worktree", "gitdir")

_TEXT_BYTES_MAX: Final = 64 * 1024

NAMED_MAX: Final = 100
"""Maximum paths and programs that are read from one config."""

_CONFIGS_MAX: Final = 10
"""Maximum configs that are read: the first, and those that are included."""

_PLACE_CHARS_MAX: Final = 1000
_NAME_CHARS_MAX: Final = 200

_ELSEWHERE: Final = re.compile(
    r"^[ \t]*(?:\[[^\n\]]*\][ \t]*)?(?:hookspath|path)[ \t]*=(.+)", re.MULTILINE | re.IGNORECASE
)
_BETWEEN_WORDS: Final = re.compile(r"[\s\"'=!;|&<>()]+")

_VALUE: Final = re.compile(r"=(.*(?:\\\n.*)*)")
"""The rest of a line after the first ``=``, with the lines that continue it."""

_WORKTREE: Final = re.compile(r"^[ \t]*worktree[ \t]*=(.+)", re.MULTILINE)


def closed_in(folder: Path) -> tuple[Path, ...]:
    """Return the paths of a workspace or git directory that must not change, existing or not."""
    git = folder / ".git"
    if _is_of_git(folder):
        return _closed_of_git(folder)
    of_worktrees = tuple((folder / WORKTREES).glob("*/.git"))
    if _is_of_git(git) and not git.is_symlink():
        return (*_closed_of_git(git), *of_worktrees)
    return (git, *of_worktrees)


def _closed_of_git(git: Path) -> tuple[Path, ...]:
    """The directory of a worktree names the config that applies there, wherever that is."""
    of_worktrees = [
        folder / name
        for folder in (git / "worktrees").glob("*")
        for name in _LEADS
        if os.path.isdir(folder)  # noqa: PTH112
    ]
    return (*(git / name for name in _RUNS), *of_worktrees, *named_by(git))


def named_by(git: Path) -> tuple[Path, ...]:
    """Return the files and directories elsewhere that a git directory makes git obey: what its config
    and the configs that this includes name, and what its hooks are links to.
    """
    configs = deque([git / "config"])
    hooks = [git / "hooks"]
    found: dict[Path, None] = {}
    for _ in range(_CONFIGS_MAX):
        if not configs:
            break
        config = configs.popleft()
        text = _text(config)
        for place in _places_in(text, (config.parent, git, git.parent)):
            if place not in found:
                found[place] = None
                (hooks if os.path.isdir(place) else configs).append(place)  # noqa: PTH112
        found |= dict.fromkeys(_programs_in(text, git.parent))
    for folder in hooks:
        found |= dict.fromkeys(_links_in(folder))
    return tuple(found)


def _places_in(config: str, bases: Sequence[Path]) -> Iterator[Path]:
    """Yield the paths of hooks and further configs. What a relative name starts from depends on the
    key; all bases are used.
    """
    values = [given for found in _ELSEWHERE.findall(config) for given in (found, _plain(found))]
    places = [place for found in dict.fromkeys(values) if (place := _value(found))]
    for place in places[:NAMED_MAX]:
        # Unlike Path.expanduser, this leaves an unknown user as it is.
        expanded = os.path.expanduser(place)  # noqa: PTH111
        yield from dict.fromkeys(base / expanded for base in bases)


def _programs_in(config: str, folder: Path) -> Iterator[Path]:
    """Yield the programs that git is configured to run: they can be any word of a command. A single
    word without a slash is none of the workspace: it is looked up in PATH, or is a branch or a name.
    """
    values = (filter(None, _BETWEEN_WORDS.split(line)) for line in _VALUE.findall(config))
    several = (list(words) for words in values)
    words = dict.fromkeys(word for each in several for word in each if each[1:] or "/" in word)
    named = (folder / word for word in words if word and len(word) <= _PLACE_CHARS_MAX)
    # Unlike Path.is_file, this works for anything.
    yield from islice((path for path in named if os.path.isfile(path)), NAMED_MAX)  # noqa: PTH113


def _links_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            links = (Path(entry.path) for entry in entries if entry.is_symlink())
            yield from islice(links, NAMED_MAX)
    except OSError:
        return


def _plain(found: str) -> str:
    """Return a value without the comment after it."""
    return re.split(r"[;#]", found, maxsplit=1)[0]


def _value(found: str) -> str:
    """Return the value of a config line; empty if it cannot be a path."""
    value = found.strip().strip('"')
    is_long = len(value) > _PLACE_CHARS_MAX or any(
        len(name) > _NAME_CHARS_MAX for name in value.split("/")
    )
    return "" if is_long or "\0" in value else value


def _is_of_git(folder: Path) -> bool:
    # Unlike those of Path, these work with loops of links and unreadable directories.
    return os.path.isfile(folder / "HEAD") and (  # noqa: PTH113
        os.path.isdir(folder / "objects") or os.path.isfile(folder / "commondir")  # noqa: PTH112, PTH113
    )


def outer_git_folders(workdir: Path, hidden: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return the directories outside of the workspace that belong to its repository: mostly none.

    Args:
        hidden: paths that are never among them.
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
    """Return the directory that a file names; None if there is no such file or directory."""
    text = _text(file)
    if not text.startswith(prefix):
        return None
    place = _value(text.removeprefix(prefix))
    found = Path(os.path.realpath(base / place))
    return found if place and _is_of_git(found) else None


def _leads_back(folder: Path, workdir: Path) -> bool:
    """Return whether a git directory says that it belongs to the workspace."""
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
