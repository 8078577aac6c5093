"""The files that a program in a sandbox sees, for every backend: system directories, writable ones, and
denied paths inside.

It lists the visible paths, not the hidden ones, so a forgotten path stays invisible.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from nousd.errors import ToolError
from nousd.tools.fs.hard_links import OtherNames, find_linked_files, other_names, targets_of
from nousd.tools.fs.lexical_paths import lies_in, lies_in_any, lies_in_one_of
from nousd.tools.fs.real_paths import real_paths
from nousd.tools.sandbox.agent_config_guard import AgentConfigGuard
from nousd.tools.sandbox.deny_scan import (
    SHORT_ENTRIES_MAX,
    ClosedByRules,
    FoundFiles,
    Names,
    Search,
)
from nousd.tools.sandbox.git_folders import (
    ObeyedByGit,
    find_closed_git_paths,
    find_paths_named_above,
    outer_git_folders,
)
from nousd.tools.sandbox.interface import Request
from nousd.tools.sandbox.limits import FILE_BYTES_MAX, MEBIBYTE, MEMORY_MB, PROCESSES_MAX, Limits
from nousd.tools.sandbox.obeyed_links import links_among
from nousd.tools.sandbox.trap_watch import ObeyedNames, TrapWatch, names_of

SYSTEM_FOLDERS: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
)
"""Folders of programs and libraries. Some are links into others."""

ETC: Final = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives",
        "bash.bashrc",
        "ca-certificates",
        "ca-certificates.conf",
        "crypto-policies",
        "debian_version",
        "fonts",
        "group",
        "host.conf",
        "hosts",
        "inputrc",
        "java",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "locale.conf",
        "lsb-release",
        "magic",
        "mime.types",
        "nsswitch.conf",
        "os-release",
        "passwd",
        "perl",
        "pki/ca-trust/extracted",
        "pki/tls/certs",
        "protocols",
        "redhat-release",
        "services",
        "shells",
        "ssl/certs",
        "ssl/openssl.cnf",
        "terminfo",
        "timezone",
    )
)
"""Facts about the machine that programs need; none of these files contains keys."""

REPOSITORIES_MAX: Final = 20
"""Maximum repositories in which only files that make git run programs are denied; in others all of
``.git`` is."""

CLOSED_REPOSITORIES_MAX: Final = 200
"""Maximum repositories in which anything is denied, those near the top first: each takes at least one
mount. Changes by a command in others are reported."""

SHOWN_MAX: Final = 64
"""Maximum number of denied paths that an event names."""

PROGRAM_FOLDER: Final = "bin"
"""Directories with this name that the user chose to show are added to PATH."""

ETC_OF_A_NETWORK: Final = ("/etc/gai.conf", "/etc/resolv.conf")

_OF_THE_MACHINE: Final = {name: Path(name) for name in (*SYSTEM_FOLDERS, *ETC)}
_OF_A_NETWORK: Final = {name: Path(name) for name in ETC_OF_A_NETWORK}
_MACHINE: Final = frozenset((_OF_THE_MACHINE | _OF_A_NETWORK).values())
_IN_ETC: Final = frozenset(path for path in _MACHINE if path.is_relative_to("/etc"))


def is_of_the_machine(path: Path) -> bool:
    """Return whether a path is one of the system paths above, which no program can change and which may
    be links.
    """
    return path in _MACHINE


def is_in_etc(path: Path) -> bool:
    """Return whether a path is one of the system paths below ``/etc``."""
    return path in _IN_ETC


class SandboxChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices for every sandbox.

    Args:
        network: whether programs may use the network without approval.
        read_paths: paths that they may read in addition to the system and the workspace; resolved.
            Those named ``bin`` are in their PATH.
        write_paths: paths that they may also write; resolved. A path of either list that has become a
            link, or has a link on its way, is not shown: a program may have made the link, and the user
            did not choose its target.
        protected: names that they must not change in a workspace, nor create at its top, in addition to
            the files that make git run programs: in any directory, or relative to the workspace, with
            ``*`` in the last part, in any case.
        obeyed: the files whose change by a command is reported, including ``protected`` ones.
        known: returns the patterns of a request that only repeat ``protected``.
        reserved: names relative to the workspace that they can neither change nor create, even for the
            duration of a command.
    """

    network: bool = False
    read_paths: tuple[Path, ...] = ()
    write_paths: tuple[Path, ...] = ()
    protected: tuple[str, ...] = ()
    obeyed: tuple[ObeyedNames, ...] = ()
    known: Callable[[], Collection[re.Pattern[str]]] = tuple
    reserved: tuple[str, ...] = ()
    limits: Limits = Limits(
        memory_bytes=MEMORY_MB * MEBIBYTE, processes=PROCESSES_MAX, file_bytes=FILE_BYTES_MAX
    )

    @property
    def names(self) -> Names:
        """The names that are searched for in every directory."""
        return names_of(self.protected, self.obeyed)


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The visible paths of a program. A denied path overrides the one that contains it.

    Args:
        readable: existing files and directories.
        writable: directories that may be changed.
        protected: paths in writable directories that must not change, existing or not.
        hidden: paths that are not visible and cannot be created.
        programs: directories that come first in PATH.
        config_guard: renames new protected files; None if none can be made.
        traps: compares the workspace before and after; None if nothing can change.
        is_partial: whether more protected paths may exist further down.
    """

    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    protected: tuple[Path, ...]
    hidden: tuple[Path, ...]
    programs: tuple[Path, ...] = ()
    config_guard: AgentConfigGuard | None = None
    traps: TrapWatch | None = None
    is_partial: bool = False

    def home_links(self, home: str | None) -> Iterator[tuple[Path, Path]]:
        """Yield (name in the sandbox's home, path) for the visible parts of the user's home."""
        if not home:
            return
        found: list[Path] = []
        # The paths are resolved, but the path of the home may contain a link, such as /home.
        home = os.path.realpath(home)
        shown = {*self.readable, *self.writable}
        for path in sorted(path for path in shown if str(path) != home and lies_in(path, home)):
            if not lies_in_any(path, found):
                yield path.relative_to(home), path
            found.append(path)

    def environment(self, env: Mapping[str, str], *, home: str, temporary: str) -> dict[str, str]:
        """Return a program's environment, with its own home and temporary directory, and a PATH of
        visible directories.

        ``programs`` that PATH lacks come first in it. A daemon started by a service manager has only the
        system's PATH, and launchers such as shims, which may be in PATH instead of a version, are not
        visible.
        """
        shown = {str(path) for path in (*self.readable, *self.writable)}
        folders = [
            folder
            for folder in env.get("PATH", "").split(os.pathsep)
            if lies_in_one_of(folder, shown)
        ]
        more = [folder for folder in map(str, self.programs) if folder not in folders]
        path = os.pathsep.join((*more, *(folders or os.defpath.split(os.pathsep))))
        return {**env, "PATH": path, "HOME": home, "TMPDIR": temporary}

    def describe_mounts(self, temporary: str) -> tuple[str, ...]:
        """Return the visible paths for an event, with at most ``SHOWN_MAX`` denied ones."""
        return (
            *(f"{path}:ro" for path in self.readable if not lies_in(path, "/etc")),
            *(f"{path}:rw" for path in self.writable),
            f"{temporary}:rw",
            *(f"{path}:ro" for path in self.protected[:SHOWN_MAX]),
        )


def places_of(request: Request, chosen: SandboxChoices, search: Search) -> Places:
    """Return the visible paths of a program.

    Args:
        search: the search of the daemon, which remembers earlier results.

    Raises:
        ToolError: the workspace is the root folder, or the search missed paths that must not be read.
    """
    workdir = request.workdir
    if workdir == Path("/"):
        raise ToolError("sandbox_failed: the workdir is the root folder")
    of_the_machine = _OF_THE_MACHINE | _OF_A_NETWORK if request.network else _OF_THE_MACHINE
    own = (workdir, *outer_git_folders(workdir, request.hidden))
    readable = [path for name, path in of_the_machine.items() if os.path.exists(name)]  # noqa: PTH110
    chosen_readable = [*filter(_is_plain, chosen.read_paths)]
    readable += chosen_readable
    writable = [*filter(_is_plain, chosen.write_paths)]
    (readable if request.is_read_only else writable).extend(own)
    config_guard = AgentConfigGuard(workdir, chosen.protected)
    by_rules = search.find_closed_paths(
        workdir,
        request.reading,
        _of_rules(request.writing, chosen),
        chosen.names,
        shown=_of_the_user(chosen),
        may_miss=request.may_miss,
    )
    closed = _select_hidden((*request.hidden, *by_rules.hidden), (*readable, *writable))
    hidden = tuple(dict.fromkeys(closed))
    protected: tuple[Path, ...] = ()
    is_partial = False
    if not request.is_read_only:
        found, is_partial = _find_protected(own, chosen, config_guard, by_rules, hidden)
        protected = tuple(path for path in found if _can_change(path, writable))
    return Places(
        readable=tuple(readable),
        writable=tuple(writable),
        protected=_without(protected, (*hidden, *request.opened)),
        hidden=hidden,
        programs=tuple(path for path in chosen_readable if path.name == PROGRAM_FOLDER),
        config_guard=None if request.is_read_only else config_guard,
        traps=None if request.is_read_only else _traps(own, chosen, search, by_rules.found, hidden),
        is_partial=is_partial,
    )


def _find_protected(
    own: Sequence[Path],
    chosen: SandboxChoices,
    config_guard: AgentConfigGuard,
    by_rules: ClosedByRules,
    hidden: Sequence[Path],
) -> tuple[tuple[Path, ...], bool]:
    """Return the paths that must not change, and whether more may exist.

    Args:
        own: the workspace, and the directories outside of it that belong to its repository.
    """
    workdir = own[0]
    of_git = _find_closed_in_repositories(own, by_rules)
    protected = [
        *config_guard.before,
        *(workdir / name for name in chosen.reserved),
        *of_git.paths,
        *(
            workdir / link.target
            for link in links_among(workdir, by_rules.found.named)
            if chosen.names.closes(link.path)
        ),
    ]
    others = _other_names(protected, hidden, (workdir, *chosen.write_paths))
    is_partial = by_rules.is_partial or of_git.is_partial or others.is_partial
    return (*protected, *others.paths), is_partial


def _find_closed_in_repositories(own: Sequence[Path], by_rules: ClosedByRules) -> ObeyedByGit:
    """Return the paths that must not change because git obeys them, and the other protected paths of the
    workspace.

    Args:
        own: the workspace, and the directories outside of it that belong to its repository.
    """
    workdir = own[0]
    named = [path for path in by_rules.protected if path.name == ".git"]
    others = [
        workdir / repository for repository in by_rules.found.repositories if repository != "."
    ]
    repositories = [*dict.fromkeys((*named, *others))]
    searched = repositories[:REPOSITORIES_MAX]
    # The workspace is usually one of them.
    inner = [folder for folder in dict.fromkeys(map(_holder, searched)) if folder != workdir]
    closed = [
        find_paths_named_above(workdir),
        *(find_closed_git_paths(folder, *(() if folder == workdir else own[:1])) for folder in own),
        *map(find_closed_git_paths, inner),
    ]
    return ObeyedByGit(
        (
            *(path for each in closed for path in each.paths),
            *(path for path in by_rules.protected if path not in searched),
            *repositories[REPOSITORIES_MAX:CLOSED_REPOSITORIES_MAX],
        ),
        any(each.is_partial for each in closed) or len(repositories) > CLOSED_REPOSITORIES_MAX,
    )


def _other_names(
    protected: Sequence[Path], hidden: Sequence[Path], starts: Sequence[Path]
) -> OtherNames:
    """Return other names of protected files, under which they could be written."""
    targets = targets_of(protected, starts)
    linked = find_linked_files(targets, SHORT_ENTRIES_MAX)
    skipped = {str(path) for path in (*targets, *hidden)}
    return other_names(linked, starts, skipped, SHORT_ENTRIES_MAX)


def finds_closed(
    workdir: Path,
    reading: Sequence[re.Pattern[str]],
    writing: Sequence[re.Pattern[str]],
    chosen: SandboxChoices,
    search: Search,
) -> bool:
    """Return whether ``places_of`` would find all paths that are closed to reading."""
    shown = _of_the_user(chosen)
    return search.finds_hidden(
        workdir, reading, _of_rules(writing, chosen), chosen.names, shown=shown
    )


def _of_rules(writing: Sequence[re.Pattern[str]], chosen: SandboxChoices) -> list[re.Pattern[str]]:
    """Return the patterns that do not only repeat the protected names."""
    known = chosen.known()
    return [pattern for pattern in writing if pattern not in known]


def _of_the_user(chosen: SandboxChoices) -> tuple[Path, ...]:
    """Return the visible paths outside of the workspace in which a user's file may have another name."""
    return (*chosen.read_paths, *chosen.write_paths)


def _holder(repository: Path) -> Path:
    """Return the folder that ``find_closed_git_paths`` takes: for ``.git``, its parent."""
    return repository.parent if repository.name == ".git" else repository


def _traps(
    own: Sequence[Path],
    chosen: SandboxChoices,
    search: Search,
    found: FoundFiles,
    hidden: Sequence[Path],
) -> TrapWatch:
    workdir, *outside = own
    closed = {str(path.relative_to(workdir)) for path in hidden if lies_in(path, workdir)}
    return TrapWatch(
        workdir,
        chosen.obeyed,
        lambda: search.look(workdir, chosen.names, closed),
        before=found,
        outside=outside,
    )


def _is_plain(path: Path) -> bool:
    """Return whether a path exists, with no link on the way."""
    # Unlike Path.exists, this works in directories that we cannot read.
    return os.path.exists(path) and os.path.realpath(path) == str(path)  # noqa: PTH110


def _select_hidden(hidden: Sequence[Path], shown: Sequence[Path]) -> Iterator[Path]:
    """Yield the hidden paths that lie in shown ones, except programs in system directories, which every
    user may run.
    """
    absolute = [path.absolute() for path in hidden]
    folders = {str(path) for path in shown}
    for spellings in zip(absolute, map(Path, real_paths(absolute)), strict=True):
        for path in spellings:
            if lies_in_one_of(path, folders) and not _is_of_the_system(path):
                yield path


def _is_of_the_system(path: Path) -> bool:
    if not lies_in_any(path, SYSTEM_FOLDERS):
        return False
    try:
        status = path.stat()
    except OSError:
        return True
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IXOTH)


def _can_change(path: Path, writable: Sequence[Path]) -> bool:
    """Return whether a path lies in a writable one, or is a link that leads into one."""
    return lies_in_any(path, writable) or lies_in_any(os.path.realpath(path), writable)


def _without(protected: Sequence[Path], others: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(path for path in dict.fromkeys(protected) if not lies_in_any(path, others))
