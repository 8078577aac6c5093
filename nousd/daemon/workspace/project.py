"""The project around a workspace: its own settings, the part of them that counts, and reading its
files.

Its settings are those that a session started with (``once_per_session``). They may ask and deny at
once, and what else they say counts while the user trusts the file they came from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from nousd.config.project_file import (
    FILE_NAME,
    PROBLEMS_MAX,
    ProjectSettings,
    read_project_settings,
)
from nousd.daemon.workspace.folder_threads import in_folder_thread
from nousd.daemon.workspace.session_memo import SessionMemo
from nousd.daemon.workspace.trust import Trust
from nousd.errors import RuleInvalid, ToolError
from nousd.machine.policy.rules import Rule, RuleDecision, check_rule, meaning_of, rules_in
from nousd.runtime_paths.filesystems import is_local
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.wire.codec.canonical_json import digest
from nousd.wire.limits import PROJECT_FILE_BYTES_MAX
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.trust import ProjectFile

PATTERNS_COST_MAX: Final = 32_768
"""Characters that the patterns of a project's rules have as expressions: others wait while those are
compiled. The last rule may go beyond."""

ReadSettings = Callable[[], Awaitable[ProjectSettings]]
"""Gives a project's settings as they are now."""

_NONE: Final = ProjectSettings()

_ORIGIN: Final = "the project"


async def no_settings() -> ProjectSettings:
    """Provide none."""
    return _NONE


def reader(root: Path, hidden: tuple[Path, ...] = ()) -> ReadSettings:
    """Return a function that reads the project's settings in a thread: its directory may be remote,
    and not answer. Blocks a moment itself, to see whether it is.
    """
    path = root / FILE_NAME
    is_near = is_local(root)

    async def read() -> ProjectSettings:
        # Mostly there is none, and asking costs less than a thread.
        if is_near and not path.exists():
            return _NONE
        return await in_folder_thread(read_settings, root, hidden)

    return read


def read_settings(root: Path, hidden: tuple[Path, ...] = ()) -> ProjectSettings:
    """Return a project file's settings without invalid rules; never fail."""
    path = str(root / FILE_NAME)
    try:
        data = read_inside(root, path, hidden)
    except FileNotFoundError:
        return _NONE
    except (OSError, ToolError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it leads out of the project"
        return ProjectSettings(path=path, problems=(f"it cannot be read: {reason}",))
    return _with_rules_checked(read_project_settings(data, path, digest(data)))


def read_inside(root: Path, path: str, hidden: tuple[Path, ...] = ()) -> bytes:
    """Return the bytes of a regular file that really lies inside of the root, one more than the bound
    if it is longer.

    Raises:
        OSError, ToolError: it does not, or cannot be read.
    """
    with PathSandbox(root, hidden).locate(path) as place, place.open_file() as file:
        return file.read(PROJECT_FILE_BYTES_MAX + 1)


def _with_rules_checked(settings: ProjectSettings) -> ProjectSettings:
    kept: dict[RuleDecision, tuple[str, ...]] = {}
    problems = list(settings.problems)
    cost = 0
    lists: dict[RuleDecision, tuple[str, ...]] = {
        "deny": settings.deny,
        "ask": settings.ask,
        "allow": settings.allow,
    }
    for decision, texts in lists.items():
        good = []
        for text in texts:
            if cost > PATTERNS_COST_MAX:
                problems.append("its patterns stand for too much; what comes behind does not count")
                break
            try:
                check_rule(text, decision)
            except RuleInvalid as error:
                problems.append(str(error))
                cost += len(text)
            else:
                good.append(text)
                cost += meaning_of(text).cost
        kept[decision] = tuple(good)
    return replace(settings, **kept, problems=tuple(problems[:PROBLEMS_MAX]))


class _Started(NamedTuple):
    """The settings that a session started with, and the rules in them."""

    settings: ProjectSettings = _NONE
    restricting: tuple[Rule, ...] = ()
    permitting: tuple[Rule, ...] = ()


async def _remember() -> bool:
    return True


class Project:
    """The project's settings for each session that works in it.

    Args:
        root: where the project begins; None if there is none that could be looked at.
        read: gives its settings as they are now.
        trust: what the user trusts, of all projects.
    """

    def __init__(
        self, root: Path | None = None, read: ReadSettings = no_settings, trust: Trust | None = None
    ) -> None:
        self.root = root
        self.trust = Trust() if trust is None else trust
        self._read = read
        self._sessions = SessionMemo(self._start)
        self._told = SessionMemo(_remember)

    async def _start(self) -> _Started:
        settings = await self._read()
        restricting = rules_in(_ORIGIN, deny=settings.deny, ask=settings.ask)
        return _Started(settings, restricting, rules_in(_ORIGIN, allow=settings.allow))

    def forget(self, session_id: str) -> None:
        """Let a session start anew, with the settings as they are then."""
        self._sessions.forget(session_id)
        self._told.forget(session_id)

    async def rules(self, session_id: str) -> tuple[Rule, ...]:
        """Return the rules of the project that count in a session; with "" in one that would start."""
        started = await (self._sessions.of(session_id) if session_id else self._start())
        permitting = started.permitting if self._is_trusted(started.settings) else ()
        return (*started.restricting, *permitting)

    def mode(self, session_id: str) -> PermissionMode | None:
        """Return the mode that the project gives a session that has started, if it may."""
        started = self._sessions.known(session_id)
        if started is None or not self._is_trusted(started.settings):
            return None
        return started.settings.permission_mode

    async def remark(self, session_id: str) -> str | None:
        """Return a note for people on the project settings that are ignored in a session; once per
        session, None if there are none.
        """
        settings = (await self._sessions.of(session_id)).settings
        ignored = () if self._is_trusted(settings) else settings.adds
        is_told = self._told.known(session_id) is not None
        await self._told.of(session_id)
        if is_told or not (ignored or settings.problems):
            return None
        said = list(settings.problems)
        if ignored:
            said.append(f"not trusted, and so without effect: {', '.join(ignored)}")
        return f"{settings.path}: {'; '.join(said)}"

    async def trusted(self) -> ProjectSettings:
        """Return the present settings, without those that only a trusted file may make if it is not
        trusted.
        """
        settings = await self._read()
        if self._is_trusted(settings):
            return settings
        return replace(settings, allow=(), permission_mode=None, mcp={})

    async def file(self) -> ProjectFile | None:
        """Return the project's settings file as it is now; None if there is none."""
        settings = await self._read()
        if not settings.path:
            return None
        return ProjectFile(
            path=settings.path,
            hash=settings.hash,
            trusted=self._is_trusted(settings),
            restricts=settings.restricts,
            adds=settings.adds,
            problems=settings.problems,
        )

    def _is_trusted(self, settings: ProjectSettings) -> bool:
        return self.trust.trusts(settings.path, settings.hash)
