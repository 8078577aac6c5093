"""The project of a workspace: reads its settings file, and selects the settings that are in force.

A session keeps the project settings that it started with (``session_memo``). Rules that ask or deny are
always in force; all other settings are in force while the user trusts the file.
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
"""Maximum characters of the regular expressions of a project's rules, because compiling them blocks the
event loop. The last rule may exceed it."""

ReadSettings = Callable[[], Awaitable[ProjectSettings]]
"""Reads a project's current settings."""

_NONE: Final = ProjectSettings()

_ORIGIN: Final = "the project"


async def no_settings() -> ProjectSettings:
    """Return no settings."""
    return _NONE


def reader(root: Path, hidden: tuple[Path, ...] = ()) -> ReadSettings:
    """Return a function that reads the project's settings in a thread, because its directory may be
    remote and not respond. ``reader`` itself blocks briefly to find out whether it is remote.
    """
    path = root / FILE_NAME
    is_near = is_local(root)

    async def read() -> ProjectSettings:
        # Usually there are none, and the lookup costs less than a thread.
        if is_near and not path.exists():
            return _NONE
        return await in_folder_thread(read_settings, root, hidden)

    return read


def read_settings(root: Path, hidden: tuple[Path, ...] = ()) -> ProjectSettings:
    """Return a project file's settings without invalid rules; never raise."""
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
    """Return the bytes of a regular file whose real path is below the root, at most one more than the
    bound.

    Raises:
        OSError, ToolError: the file is not below the root, or cannot be read.
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
        valid = []
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
                valid.append(text)
                cost += meaning_of(text).cost
        kept[decision] = tuple(valid)
    return replace(settings, **kept, problems=tuple(problems[:PROBLEMS_MAX]))


class _StartingSettings(NamedTuple):
    """The settings that a session started with, and their rules."""

    settings: ProjectSettings = _NONE
    restricting: tuple[Rule, ...] = ()
    permitting: tuple[Rule, ...] = ()


async def _remember() -> bool:
    return True


class Project:
    """The project settings of each session that works in the project.

    Args:
        root: the directory of the project; None if it is unknown.
        read: reads its current settings.
        trust: the trusted files of all projects.
    """

    def __init__(
        self, root: Path | None = None, read: ReadSettings = no_settings, trust: Trust | None = None
    ) -> None:
        self.root = root
        self.trust = Trust() if trust is None else trust
        self._read = read
        self._sessions = SessionMemo(self._start)
        self._reported = SessionMemo(_remember)

    async def _start(self) -> _StartingSettings:
        settings = await self._read()
        restricting = rules_in(_ORIGIN, deny=settings.deny, ask=settings.ask)
        return _StartingSettings(settings, restricting, rules_in(_ORIGIN, allow=settings.allow))

    def forget(self, session_id: str) -> None:
        """Let a session read the settings again when it next starts to work."""
        self._sessions.forget(session_id)
        self._reported.forget(session_id)

    async def rules(self, session_id: str) -> tuple[Rule, ...]:
        """Return the project's rules for a session; with "", those for a session that would
        start now.
        """
        started = await (self._sessions.of(session_id) if session_id else self._start())
        permitting = started.permitting if self._is_trusted(started.settings) else ()
        return (*started.restricting, *permitting)

    def mode(self, session_id: str) -> PermissionMode | None:
        """Return the mode that the project sets for a started session, if the file is trusted."""
        started = self._sessions.find(session_id)
        if started is None or not self._is_trusted(started.settings):
            return None
        return started.settings.permission_mode

    async def remark(self, session_id: str) -> str | None:
        """Return a note for people about ignored project settings, once per session; None if there are
        none.
        """
        settings = (await self._sessions.of(session_id)).settings
        ignored = () if self._is_trusted(settings) else settings.adds
        is_reported = self._reported.find(session_id) is not None
        await self._reported.of(session_id)
        if is_reported or not (ignored or settings.problems):
            return None
        remarks = list(settings.problems)
        if ignored:
            remarks.append(f"not trusted, and so without effect: {', '.join(ignored)}")
        return f"{settings.path}: {'; '.join(remarks)}"

    async def read_effective(self) -> ProjectSettings:
        """Return the current settings; if the file is not trusted, without those that need trust."""
        settings = await self._read()
        if self._is_trusted(settings):
            return settings
        return replace(settings, allow=(), permission_mode=None, mcp={})

    async def file(self) -> ProjectFile | None:
        """Return the project's current settings file; None if there is none."""
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
