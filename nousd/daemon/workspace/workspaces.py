"""The directories that sessions work in, and everything that depends on the directory.

A session names its directory in the log; one of an older log names none and works in the daemon's
default. An allowed directory is checked again each time something is about to happen in it: it may be
gone by now, be a link, or lie outside of the allowed ones. ``settings`` builds a workspace.

The user, who alone can connect to the Unix sockets, may choose any directory but a few. A server that
passes on commands of others is held to the roots that the settings allow. Callers have resolved links.
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
    """A directory with everything that depends on it.

    Args:
        path_sandbox: decides which files its sessions may access.
        project: the project's settings, rules and agents.
        instructions: the instructions of each session, as it found them.
        read_agents: reads the current agents.
        system_prompt: replaces the daemon's own; None keeps that.
        is_local: whether looking at the directory cannot take long.
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
        """Let a session start again here, with the directory's current settings."""
        self.project.forget(session_id)
        self.instructions.forget(session_id)


Make = Callable[[Path], Workspace]
"""Builds the workspace of a real directory; blocks."""


class Workspaces:
    """All workspaces of one daemon.

    Args:
        default: the default workspace, which is always allowed.
        roots: decides which other directories are allowed to everybody; None for none.
        make: builds their workspaces.
        own: decides what is allowed to the user; None for the roots.
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
        # A workspace in use is held by its users, and found here for as long.
        self._known = WeakValueDictionary[str, Workspace]() if known is None else known
        self._recent: OrderedDict[str, Workspace] = OrderedDict()

    def restrict_to_roots(self) -> Workspaces:
        """Return the same workspaces for clients that may not be the user: only roots are allowed."""
        return Workspaces(self.default, self.roots, self._make, known=self._known)

    def require_allowed(self, state: SessionState) -> None:
        """Raise CommandRejected ``workspace_not_allowed`` for a session whose directory is not allowed;
        does not look at the directory.
        """
        # Mostly the user has chosen it, or it is the default one.
        if self._own is None and state.workspace not in (None, self.default.path):
            assert state.workspace is not None
            self._require_allowed(state.workspace, state.workspace)

    def is_wide(self, workspace: Workspace) -> bool:
        """Return whether a session in a workspace should ask about each call at first."""
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
        """Return the workspace of a session for something that is about to happen in it.

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
        """Return the workspace of a session, or the refusal if nothing can happen in it."""
        try:
            return await self.of(state)
        except CommandRejected as refused:
            return refused

    async def open_named(self, given: str | None) -> Workspace:
        """Return the workspace that a client names; the default one if it names none.

        Raises:
            InvalidPayload: it is not an absolute path.
            CommandRejected: ``workspace_not_found``, ``workspace_not_allowed`` or
                ``folders_do_not_answer``.
        """
        return (
            self.default
            if given is None
            else await self._open(await self.normalize_path(given), given)
        )

    async def normalize_path(self, given: str) -> str:
        """Return the spelling in the log of a directory that a client names, whether or not it exists
        or is allowed.

        Raises:
            InvalidPayload: it is not an absolute path, or resolves to a name that no log can hold.
        """
        _check_path(given)
        real = await in_folder_thread(os.path.realpath, given)
        if not is_utf8(real):
            raise InvalidPayload("workspace leads to a folder whose path is not UTF-8")
        return real

    async def _open(self, real: str, given: str) -> Workspace:
        made = await in_folder_thread(self._check_and_build, real, given, self._in_memory(real))
        return self._remember(made)

    # --- blocking ------------------------------------------------------------------------------

    def _check_and_build(self, real: str, given: str, known: Workspace | None) -> Workspace:
        self._require(real, given)
        return self._build(real, given) if known is None else known

    def _build(self, real: str, given: str) -> Workspace:
        try:
            made = self._make(Path(real))
        except ConfigError as error:
            raise _not_found(given, str(error)) from None
        if made.path != real:
            raise _not_found(given, _IS_LINK)
        return made

    def _require(self, real: str, given: str) -> None:
        """Raise CommandRejected unless a folder of that real path is there and may be a workspace."""
        self._require_allowed(real, given)
        if os.path.realpath(real) != real:
            raise _not_found(given, _IS_LINK)
        if not os.path.isdir(real):  # noqa: PTH112
            raise _not_found(given, "there is no such folder")

    def _require_allowed(self, real: str, given: str) -> None:
        allowed = self._own or self.roots
        fault = None if real == self.default.path else allowed.fault(Path(real))
        if fault is not None:
            raise CommandRejected(
                "workspace_not_allowed", cause=fault, details={"workspace": given}
            )

    # --- in memory -----------------------------------------------------------------------------

    def _in_memory(self, path: str) -> Workspace | None:
        if path == self.default.path:
            return self.default
        if path in self._recent:
            self._recent.move_to_end(path)
        return self._known.get(path)

    def _remember(self, made: Workspace) -> Workspace:
        """Remember a workspace. Another caller may have built the same one meanwhile: the
        first counts.
        """
        if made is self.default:
            return made
        kept = self._known.setdefault(made.path, made)
        self._recent[made.path] = kept
        self._recent.move_to_end(made.path)
        if len(self._recent) > WORKSPACES_MAX:
            self._recent.popitem(last=False)
        return kept


def _plain(folder: Path) -> Workspace:
    return Workspace(path_sandbox=PathSandbox(folder), is_local=is_local(folder))


def _check_path(given: str) -> None:
    if not given.startswith("/") or "\0" in given:
        raise InvalidPayload("workspace must be an absolute path")


def _not_found(given: str, cause: str) -> CommandRejected:
    return CommandRejected("workspace_not_found", cause=cause, details={"workspace": given})


class Roots:
    """The allowed directories besides the default one. The default is the user's choice and not
    checked.

    Args:
        allowed: each with everything below; at least one.
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
        around = [root for root in self.allowed if real.is_relative_to(root)]
        if not around:
            return f"it must lie in {' or '.join(map(str, self.allowed))}; {_ALLOW_MORE}"
        # It shows the keys in the daemon's environment. /dev/shm belongs to anybody.
        if is_kernels(real) and not any(map(is_kernels, around)):
            return _KERNELS
        return _within(self._hidden, real) or _around(self._hidden, real)


class OwnFolders:
    """The directories that the user may work in: all but what belongs to the daemon or the kernel.

    Args:
        hidden: as for ``Roots``.
        home: the user's home directory. It and what is above it contain what belongs to the daemon, but
            no tool opens that; so these are allowed where they are named, and are called wide.
    """

    def __init__(self, hidden: Iterable[Path], home: Path) -> None:
        self._hidden = _expand_spellings(hidden)
        self._home = home.resolve()

    def fault(self, real: Path) -> str | None:
        """See ``Roots.fault``."""
        if is_kernels(real) or any(place.is_relative_to(real) for place in KERNEL_PLACES):
            return _KERNELS
        within = _within(self._hidden, real)
        return within or (None if self.is_wide(real) else _around(self._hidden, real))

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
