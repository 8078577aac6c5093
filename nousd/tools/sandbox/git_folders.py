"""Finds the directories of a repository, and its files that make git run programs.

A worktree or a submodule has a *file* ``.git``, which names a directory elsewhere. A file that comes
with a repository could name any directory, so naming a directory is not enough to open it: it must name
the workspace in turn, which requires write access to it.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from nousd.tools.fs.lexical_paths import lies_in
from nousd.tools.fs.regular_file import beginning_of

WORKTREES: Final = ".worktrees"
"""The folder of a workspace in which nousd makes worktrees."""

_COMMON: Final = "commondir"

_EXECUTING_NAMES: Final = ("config", "config.worktree", _COMMON, "hooks", "modules")
"""Names in a git directory that make git run programs. Modules have their own configs and hooks, and so
has another common directory."""

_LINKING_NAMES: Final = (_COMMON, "config.worktree", "gitdir")

_TEXT_BYTES_MAX: Final = 64 * 1024

CONFIG_BYTES_MAX: Final = 256 * 1024
"""The largest config that is read completely."""

NAMED_MAX: Final = 100
"""Maximum paths and programs that are read from one config, and links that are read from hooks."""

WORKTREES_MAX: Final = 100

_CONFIGS_MAX: Final = 30
"""Maximum configs that are read: those of the repository and of its user, and those they include."""

_WORDS_MAX: Final = 10_000
"""Maximum words of one config that are looked up in the workspace."""

_PLACE_CHARS_MAX: Final = 1000
_NAME_CHARS_MAX: Final = 200

_PATH_SETTINGS: Final = re.compile(
    r"^[ \t]*(?:\[[^\n\]]*\][ \t]*)?(?:(hookspath|path)|attributesfile)[ \t]*=(.+)",
    re.MULTILINE | re.IGNORECASE,
)
"""A line that names hooks or a config (the key is then in the first group) or attributes."""

_BETWEEN_WORDS: Final = re.compile(r"[\s\"'=!;|&<>()]+")

_VALUE: Final = re.compile(r"=(.*(?:\\\n.*)*)")
"""The rest of a line after the first ``=``, including its continuation lines."""

_WORKTREE: Final = re.compile(r"^[ \t]*worktree[ \t]*=(.+)", re.MULTILINE)


class ObeyedByGit(NamedTuple):
    """Paths that git obeys; ``is_partial`` if there may be more."""

    paths: tuple[Path, ...] = ()
    is_partial: bool = False


def find_closed_git_paths(folder: Path, *tops: Path) -> ObeyedByGit:
    """Return the paths of a workspace or git directory that must not change, existing or not.

    Args:
        tops: further work trees of the git directory ``folder``.
    """
    git = folder / ".git"
    if _is_of_git(folder):
        return _find_closed_in_git_folder(folder, folder.parent, *tops)
    worktrees, is_partial = _first((folder / WORKTREES).glob("*/.git"), WORKTREES_MAX)
    if _is_of_git(git) and not git.is_symlink():
        closed = _find_closed_in_git_folder(git, folder)
    else:
        named = find_paths_named_in(folder)
        closed = ObeyedByGit((git, *named.paths), named.is_partial)
    return ObeyedByGit((*closed.paths, *worktrees), closed.is_partial or is_partial)


def git_folders_among(closed: Iterable[str]) -> frozenset[str]:
    """Return the git directories that ``find_closed_git_paths`` has closed in part."""
    name = f"/{_COMMON}"
    return frozenset(path.removesuffix(name) for path in closed if path.endswith(name))


def _find_closed_in_git_folder(git: Path, *tops: Path) -> ObeyedByGit:
    """Return the closed paths of a git directory, including those elsewhere that its configs name."""
    worktrees, are_many = _first((git / "worktrees").glob("*"), WORKTREES_MAX)
    # If there are too many, none may change, and no other one may be made.
    of_worktrees = (
        [git / "worktrees"]
        if are_many
        else [
            folder / name
            for folder in worktrees
            for name in _LINKING_NAMES
            if os.path.isdir(folder)  # noqa: PTH112
        ]
    )
    named = find_paths_named_by(git, *tops)
    return ObeyedByGit(
        (*(git / name for name in _EXECUTING_NAMES), *of_worktrees, *named.paths), named.is_partial
    )


def find_paths_named_in(folder: Path) -> ObeyedByGit:
    """Return the files and directories elsewhere that git obeys because a folder contains ``.git``,
    which may be a file that names the git directory of a worktree or submodule.
    """
    found = [find_paths_named_by(git, folder) for git in _git_folders_of(folder)]
    paths = dict.fromkeys(path for each in found for path in each.paths)
    return ObeyedByGit(tuple(paths), any(each.is_partial for each in found))


def find_paths_named_above(workdir: Path) -> ObeyedByGit:
    """Like ``find_paths_named_in``, for the repository that contains a folder without ``.git``. If none
    does, for the one that the folder may become, because the user's config applies to each.
    """
    if os.path.lexists(workdir / ".git"):
        return ObeyedByGit()
    holders = (parent for parent in workdir.parents if os.path.lexists(f"{parent}/.git"))
    holder = next(holders, None)
    if holder is None:
        return find_paths_named_by(workdir / ".git", workdir)
    return find_paths_named_in(holder)


def _git_folders_of(folder: Path) -> tuple[Path, ...]:
    """Return the git directory of a folder, and for a worktree the common one."""
    if _is_of_git(git := folder / ".git"):
        return (git,)
    named = _read_named_folder(git, "gitdir:", folder)
    common = None if named is None else _read_named_folder(named / "commondir", "", named)
    return tuple(found for found in (named, common) if found is not None)


def find_paths_named_by(git: Path, *tops: Path) -> ObeyedByGit:
    """Return the files and directories outside of a git directory that git obeys when it uses it: paths
    named in its configs, in the user's configs and in configs that these include, the user's and
    included configs themselves, and configs and hooks that are links.

    Args:
        tops: the work trees that the git directory may have.
    """
    of_user = _configs_of_user()
    configs = deque([git / "config", git / "config.worktree", *of_user])
    hooks = [git / "hooks"]
    found = {path: None for path in (*configs, *hooks) if path in of_user or _is_link(path)}
    is_partial = False
    for _ in range(_CONFIGS_MAX):
        if not configs:
            break
        config = configs.popleft()
        text, is_whole = _config(config)
        paths, are_all = _places_in(text, (config.parent, git, *tops))
        for named, is_read in paths:
            if named not in found:
                found[named] = None
                # Unlike the methods of Path, these work in directories that we cannot read.
                if is_read and os.path.exists(named):  # noqa: PTH110
                    (hooks if os.path.isdir(named) else configs).append(named)  # noqa: PTH112
        programs, are_looked_up = _programs_in(text, tops)
        found |= dict.fromkeys(programs)
        is_partial |= not (is_whole and are_all and are_looked_up)
    for folder in hooks:
        links, are_many = _first(_links_in(folder), NAMED_MAX)
        found |= dict.fromkeys(links)
        is_partial |= are_many
    return ObeyedByGit(tuple(found), is_partial or bool(configs))


def _configs_of_user() -> tuple[Path, ...]:
    """Return the configs and attributes that git reads in every repository. Relative paths in them apply
    to each, and the files may be links into a workspace.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 - accepts a user without a home
    config_home = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    git = f"{config_home}/git"
    configs = ("/etc/gitconfig", f"{home}/.gitconfig", f"{git}/config", f"{git}/attributes")
    return tuple(map(Path, filter(os.path.lexists, configs)))


def _places_in(config: str, bases: Sequence[Path]) -> tuple[list[tuple[Path, bool]], bool]:
    """Return the paths that a config names, each with whether it leads to hooks or a config, and whether
    these are all. The base of a relative path depends on the key, so all bases are used.
    """
    values = [
        (found, bool(key))
        for key, value in _PATH_SETTINGS.findall(config)
        for found in (value, _plain(value))
    ]
    # Unlike Path.expanduser, this leaves an unknown user as it is.
    named = {
        (os.path.expanduser(path), is_read): None  # noqa: PTH111
        for found, is_read in values
        if (path := _value(found))
    }
    kept = islice(named, NAMED_MAX)
    paths = [(base / path, is_read) for path, is_read in kept for base in bases]
    return paths, len(named) <= NAMED_MAX


def _programs_in(config: str, tops: Sequence[Path]) -> tuple[list[Path], bool]:
    """Return the programs in the work trees that git is configured to run, and whether these are all.
    Any word of a value can be one, except a single word without a slash: git looks that up in PATH, or
    it is a branch or a name.
    """
    values = (filter(None, _BETWEEN_WORDS.split(line)) for line in _VALUE.findall(config))
    word_lists = (list(words) for words in values)
    words = dict.fromkeys(word for each in word_lists for word in each if each[1:] or "/" in word)
    folders = [str(top) for top in tops]
    named = [
        os.path.join(folder, word)  # noqa: PTH118 - up to _WORDS_MAX times
        for word in words
        if len(word) <= _PLACE_CHARS_MAX
        for folder in folders
    ]
    # Unlike Path.is_file, this works for anything.
    files = (Path(path) for path in named[:_WORDS_MAX] if os.path.isfile(path))  # noqa: PTH113
    programs, are_many = _first(files, NAMED_MAX)
    return programs, not are_many and len(named) <= _WORDS_MAX


def _links_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_symlink())
    except OSError:
        return


def _first(paths: Iterator[Path], count_max: int) -> tuple[list[Path], bool]:
    """Return the first ``count_max`` paths, and whether there are more."""
    first = list(islice(paths, count_max + 1))
    return first[:count_max], len(first) > count_max


def _is_link(path: Path) -> bool:
    # Unlike Path.is_symlink, this works in directories that we cannot read.
    return os.path.islink(path)  # noqa: PTH114


def _config(file: Path) -> tuple[str, bool]:
    """Return the text of a config, and whether it is complete."""
    data = beginning_of(file, CONFIG_BYTES_MAX + 1, follow=True)
    return data[:CONFIG_BYTES_MAX].decode("utf-8", "replace"), len(data) <= CONFIG_BYTES_MAX


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
    # Unlike the methods of Path, these accept loops of links and unreadable directories.
    return os.path.isfile(f"{folder}/HEAD") and (  # noqa: PTH113
        os.path.isdir(f"{folder}/objects") or os.path.isfile(f"{folder}/commondir")  # noqa: PTH112, PTH113
    )


def outer_git_folders(workdir: Path, hidden: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return the directories outside of the workspace that belong to its repository, usually none.

    Args:
        hidden: paths that they must not contain or lie in; if one does, return none.
    """
    named = _read_named_folder(workdir / ".git", "gitdir:", workdir)
    if named is None or not _leads_back(named, workdir):
        return ()
    common = _read_named_folder(named / "commondir", "", named) or named
    found = dict.fromkeys((common, named))
    outside = [path for path in found if not lies_in(path, workdir)]
    if any(_meets(path, closed) for path in outside for closed in hidden):
        return ()
    return tuple(outside)


def _read_named_folder(file: Path, prefix: str, base: Path) -> Path | None:
    """Return the git directory that a file names; None if there is no such file or directory."""
    text = _text(file)
    if not text.startswith(prefix):
        return None
    path = _value(text.removeprefix(prefix))
    found = Path(os.path.realpath(base / path))
    return found if path and _is_of_git(found) else None


def _leads_back(folder: Path, workdir: Path) -> bool:
    """Return whether a git directory names the workspace as its work tree."""
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
    return lies_in(path, other) or lies_in(other, path)
