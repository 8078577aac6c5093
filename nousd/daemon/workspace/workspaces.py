"""The directories that sessions work in, and the objects that depend on a directory.

A session names its directory in the log; a session of an older log names none and works in the daemon's
default. A directory is checked again before each use: it may have been removed, be a link now, or no
longer be allowed. ``settings`` builds a workspace.

The user, who alone can connect to the Unix sockets, may choose any directory except a few. A server that
passes on commands of others is restricted to the roots that the settings allow. Callers have resolved
links.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from nousd.daemon.workspace.agents import ReadAgents, no_agents
from nousd.daemon.workspace.folder_threads import in_folder_thread
from nousd.daemon.workspace.instructions import no_instructions
from nousd.daemon.workspace.project import Project
from nousd.daemon.workspace.session_memo import SessionMemo
from nousd.daemon.workspace.trust import Trust
from nousd.errors import CommandRejected, ConfigError, InvalidPayload
from nousd.machine.context.prompt_sections import SourceText
from nousd.machine.session.state import SessionState
from nousd.runtime_paths.filesystems import is_local
from nousd.runtime_paths.locations import is_utf8
from nousd.tools.fs.outside_paths import KERNEL_PLACES, is_kernels
from nousd.tools.fs.path_sandbox import PathSandbox

WORKSPACES_MAX: Final = 256
"""Maximum number of unused workspaces to remember; the least recently used one is dropped."""

_ALLOW_MORE: Final = "nousd serve --workspace FOLDER, or the setting workspaces, allows another"
_IS_LINK: Final = "a folder on the way there is a link now"


class Workspace(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """A directory with the objects that depend on it.

    Args:
        path_sandbox: decides which files its sessions may access.
        project: the project's settings and rules.
        instructions: the instructions of each session, as they were when it started.
        read_agents: reads the current agents.
        system_prompt: replaces the daemon's default prompt; None keeps it.
        is_local: whether lookups in the directory are always fast.
    """

    path_sandbox: PathSandbox
    project: Project = msgspec.field(default_factory=Project)
    instructions: SessionMemo[Sequence[SourceText]] = msgspec.field(
        default_factory=lambda: SessionMemo(no_instructions)
    )
    read_agents: ReadAgents = no_agents
    system_prompt: SourceText | None = None
    is_local: bool = True

    @property
    def path(self) -> str:
        """The directory, absolute, with links resolved."""
        return str(self.path_sandbox.workdir)

    def forget(self, session_id: str) -> None:
        """Let a session start again here and read the directory's settings anew."""
        self.project.forget(session_id)
        self.instructions.forget(session_id)


Make = Callable[[Path], Workspace]
"""Builds the workspace of a real directory; blocks."""


class Workspaces:
    """All workspaces of one daemon.

    Args:
        default: the default workspace, which is always allowed.
        roots: decides which other directories are allowed to every client; None for none.
        make: builds their workspaces.
        own: decides which directories are allowed to the user; None to apply the roots.
        known: the workspaces in use, by directory; shared with another object.
    """

    def __init__(
        self,
        default: Workspace,
        roots: Roots | None = None,
        make: Make | None = None,
        own: OwnFolders | None = None,
        *,
        known: WeakValueDictionary[str, Workspace] | None = None,
    ) -> None:
        self.default = default
        self.roots = Roots((default.path_sandbox.workdir,)) if roots is None else roots
        self._own = own
        self._make = _plain if make is None else make
        # Weak references: a workspace is found here for as long as it is in use.
        self._known = WeakValueDictionary[str, Workspace]() if known is None else known
        self._recent: OrderedDict[str, Workspace] = OrderedDict()

    def restrict_to_roots(self) -> Workspaces:
        """Return the same workspaces for clients that may not be the user: only roots are allowed."""
        return Workspaces(self.default, self.roots, self._make, known=self._known)

    def require_allowed(self, state: SessionState) -> None:
        """Raise CommandRejected ``workspace_not_allowed`` for a session whose directory is not allowed.
        The directory itself is not looked at.
        """
        # A directory that the user has chosen, and the default one, need no check.
        if self._own is None and state.workspace not in (None, self.default.path):
            assert state.workspace is not None
            self._require_allowed(state.workspace, state.workspace)

    def is_wide(self, workspace: Workspace) -> bool:
        """Return whether a new session in a workspace should start in permission mode ``ask``."""
        return self._own is not None and self._own.is_wide(Path(workspace.path))

    @property
    def trust(self) -> Trust:
        """The trusted files of all projects."""
        return self.default.project.trust

    def path_of(self, state: SessionState) -> str:
        """Return the directory of a session, whether it exists or not."""
        return self.default.path if state.workspace is None else state.workspace

    def find_in_memory(self, state: SessionState) -> Workspace | None:
        """Return the workspace of a session if it is in memory, without looking at the directory."""
        return self._in_memory(self.path_of(state))

    async def of(self, state: SessionState) -> Workspace:
        """Return the workspace of a session for immediate use, after checking its directory.

        Raises:
            CommandRejected: ``workspace_not_found``, ``workspace_not_allowed`` or
                ``folders_do_not_answer``.
        """
        path = self.path_of(state)
        known = self._in_memory(path)
        if known is not None and known.is_local:
            self._require(path, path)
            return known
        return await self._open(path, path)

    async def look_up(self, state: SessionState) -> Workspace | CommandRejected:
        """Return the workspace of a session, or the refusal if it cannot be used."""
        try:
            return await self.of(state)
        except CommandRejected as refused:
            return refused

    async def open_named(self, requested: str | None) -> Workspace:
        """Return the workspace that a client names; the default one if it names none.

        Raises:
            InvalidPayload: as ``normalize_path``.
            CommandRejected: ``workspace_not_found``, ``workspace_not_allowed`` or
                ``folders_do_not_answer``.
        """
        return (
            self.default
            if requested is None
            else await self._open(await self.normalize_path(requested), requested)
        )

    async def normalize_path(self, requested: str) -> str:
        """Return the real path of a directory that a client names, as it is logged. The directory need
        not exist or be allowed.

        Raises:
            InvalidPayload: the path is not absolute, or its real path is not UTF-8.
            CommandRejected: ``folders_do_not_answer``.
        """
        _check_path(requested)
        real = await in_folder_thread(os.path.realpath, requested)
        if not is_utf8(real):
            raise InvalidPayload("workspace leads to a folder whose path is not UTF-8")
        return real

    async def _open(self, real: str, requested: str) -> Workspace:
        workspace = await in_folder_thread(
            self._check_and_build, real, requested, self._in_memory(real)
        )
        return self._remember(workspace)

    # --- blocking ------------------------------------------------------------------------------

    def _check_and_build(self, real: str, requested: str, known: Workspace | None) -> Workspace:
        self._require(real, requested)
        return self._build(real, requested) if known is None else known

    def _build(self, real: str, requested: str) -> Workspace:
        try:
            workspace = self._make(Path(real))
        except ConfigError as error:
            raise _not_found(requested, str(error)) from None
        if workspace.path != real:
            raise _not_found(requested, _IS_LINK)
        return workspace

    def _require(self, real: str, requested: str) -> None:
        """Raise CommandRejected unless a directory with that real path exists and is allowed."""
        self._require_allowed(real, requested)
        if os.path.realpath(real) != real:
            raise _not_found(requested, _IS_LINK)
        if not os.path.isdir(real):  # noqa: PTH112
            raise _not_found(requested, "there is no such folder")

    def _require_allowed(self, real: str, requested: str) -> None:
        allowed = self._own or self.roots
        fault = None if real == self.default.path else allowed.fault(Path(real))
        if fault is not None:
            raise CommandRejected(
                "workspace_not_allowed", cause=fault, details={"workspace": requested}
            )

    # --- in memory -----------------------------------------------------------------------------

    def _in_memory(self, path: str) -> Workspace | None:
        if path == self.default.path:
            return self.default
        if path in self._recent:
            self._recent.move_to_end(path)
        return self._known.get(path)

    def _remember(self, workspace: Workspace) -> Workspace:
        """Remember a workspace. Another caller may have built the same one meanwhile: the
        first counts.
        """
        if workspace is self.default:
            return workspace
        kept = self._known.setdefault(workspace.path, workspace)
        self._recent[workspace.path] = kept
        self._recent.move_to_end(workspace.path)
        if len(self._recent) > WORKSPACES_MAX:
            self._recent.popitem(last=False)
        return kept


def _plain(folder: Path) -> Workspace:
    return Workspace(path_sandbox=PathSandbox(folder), is_local=is_local(folder))


def _check_path(requested: str) -> None:
    if not requested.startswith("/") or "\0" in requested:
        raise InvalidPayload("workspace must be an absolute path")


def _not_found(requested: str, cause: str) -> CommandRejected:
    return CommandRejected("workspace_not_found", cause=cause, details={"workspace": requested})


class Roots:
    """The allowed directories other than the default one, which is the user's choice and not checked.

    Args:
        allowed: these directories and all directories below them are allowed; at least one.
        hidden: paths that a workspace must not lie in or contain.
    """

    def __init__(self, allowed: Iterable[Path], hidden: Iterable[Path] = ()) -> None:
        self.allowed = tuple(dict.fromkeys(path.resolve() for path in allowed))
        self._hidden = _expand_spellings(hidden)

    def fault(self, real: Path) -> str | None:
        """Return why a directory may not be a workspace; None if it may.

        Args:
            real: absolute, with its links resolved.
        """
        containing = [root for root in self.allowed if real.is_relative_to(root)]
        if not containing:
            return f"it must lie in {' or '.join(map(str, self.allowed))}; {_ALLOW_MORE}"
        # The kernel's directories show the keys in the daemon's environment; a root below /dev/shm does
        # not.
        if is_kernels(real) and not any(map(is_kernels, containing)):
            return _KERNELS
        return _within(self._hidden, real) or _around(self._hidden, real)


class OwnFolders:
    """The directories that the user may work in: all except those of the daemon and the kernel.

    Args:
        hidden: as for ``Roots``.
        home: the user's home directory. It and the directories above it contain files of the daemon, but
            no tool opens those files; so these directories are allowed, and are called wide.
    """

    def __init__(self, hidden: Iterable[Path], home: Path) -> None:
        self._hidden = _expand_spellings(hidden)
        self._home = home.resolve()

    def fault(self, real: Path) -> str | None:
        """See ``Roots.fault``."""
        if is_kernels(real) or any(place.is_relative_to(real) for place in KERNEL_PLACES):
            return _KERNELS
        reason = _within(self._hidden, real)
        return reason or (None if self.is_wide(real) else _around(self._hidden, real))

    def is_wide(self, real: Path) -> bool:
        """Return whether a directory is the home directory or above it."""
        return self._home.is_relative_to(real)


_KERNELS: Final = "it lies in what the kernel shows of programs and devices"


def _expand_spellings(places: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(spelling for path in places for spelling in (path.absolute(), path.resolve()))


def _within(hidden: Iterable[Path], real: Path) -> str | None:
    inside = any(real.is_relative_to(place) for place in hidden)
    return "it lies in what belongs to the daemon" if inside else None


def _around(hidden: Iterable[Path], real: Path) -> str | None:
    if any(place.is_relative_to(real) for place in hidden):
        return (
            "it contains what belongs to the daemon, such as its settings, its log or an extension's"
            " file; name a folder further down, or move that elsewhere"
        )
    return None
