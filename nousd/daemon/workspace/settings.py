"""Builds a workspace for a directory from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nousd.config.settings import Settings
from nousd.daemon.workspace import agents
from nousd.daemon.workspace.instructions import Places, project_root
from nousd.daemon.workspace.instructions import reader as instructions_reader
from nousd.daemon.workspace.project import Project
from nousd.daemon.workspace.project import reader as settings_reader
from nousd.daemon.workspace.session_memo import SessionMemo
from nousd.daemon.workspace.trust import Trust
from nousd.daemon.workspace.workspaces import OwnFolders, Roots, Workspace, Workspaces
from nousd.errors import ConfigError
from nousd.machine.context.prompt_sections import SourceText, system_prompt
from nousd.runtime_paths import locations
from nousd.runtime_paths.filesystems import is_local
from nousd.runtime_paths.locks import socket_lock_file
from nousd.tools.fs.path_sandbox import PathSandbox

_SYSTEM_PROMPT: Final = (
    "You are an agent that helps with work on the user's computer. Use the tools to look before you "
    "answer, make the changes that were asked for, and say briefly what you did. The working folder "
    "is {workdir}; relative paths start there."
)
"""The built-in prompt, for daemons without ``--system-prompt``."""


def workspaces_of_settings(settings: Settings, extensions: tuple[Path, ...] = ()) -> Workspaces:
    """Return the workspaces that the settings allow, with the default one built.

    Args:
        extensions: the paths of the extensions' code.

    Raises:
        ConfigError: the default directory cannot be used.
    """
    maker = _Maker(settings, (*_out_of_reach(settings), *extensions))
    roots = Roots((settings.workdir, *settings.workspaces), maker.hidden)
    own = OwnFolders(maker.hidden, Path.home())
    return Workspaces(maker.make(settings.workdir), roots, maker.make, own)


class _Maker:
    """Builds workspaces; they share the user's trust in project files."""

    def __init__(self, settings: Settings, hidden: tuple[Path, ...]) -> None:
        self.hidden = hidden
        self._settings = settings
        self._trust = Trust()

    def make(self, folder: Path) -> Workspace:
        settings, unreadable = self._settings, _out_of_reach(self._settings)
        root = project_root(folder)
        agents_root = root if settings.project_instructions else None
        return Workspace(
            path_sandbox=PathSandbox(folder, self.hidden, hard_links=settings.hard_links),
            project=Project(root, settings_reader(root, unreadable), self._trust),
            instructions=SessionMemo(
                instructions_reader(_instruction_places(settings, folder, unreadable))
            ),
            read_agents=agents.reader(
                agents.AgentPlaces(locations.user_agents_folder(), agents_root, unreadable)
            ),
            system_prompt=_own_prompt(settings, folder),
            is_local=is_local(folder),
        )


def _own_prompt(settings: Settings, folder: Path) -> SourceText | None:
    """Return the built-in prompt for a directory other than the default one; None if the default prompt
    applies.
    """
    if settings.system_prompt is not None or folder == settings.workdir:
        return None
    return system_prompt(render_builtin_prompt(folder))


def render_builtin_prompt(folder: Path) -> str:
    """Return the built-in system prompt for work in a directory."""
    return _SYSTEM_PROMPT.format(workdir=folder)


def default_prompt(settings: Settings) -> str:
    """Return the system prompt in the default workspace.

    Raises:
        ConfigError: the user's own prompt cannot be read.
    """
    path = settings.system_prompt
    if path is None:
        return render_builtin_prompt(settings.workdir)
    if not isinstance(path, Path):
        return ""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"system_prompt: {path} cannot be read: {error}") from error


def _instruction_places(settings: Settings, folder: Path, unreadable: tuple[Path, ...]) -> Places:
    user_file = locations.user_instructions_file()
    return Places(
        workdir=folder,
        user_file=user_file if settings.user_instructions else None,
        project=settings.project_instructions,
        hidden=tuple(path for path in unreadable if path != user_file),
    )


def _out_of_reach(settings: Settings) -> tuple[Path, ...]:
    """Return the paths that no file tool may read or write, even inside a workspace.

    A lock file is one of them because replacing it would defeat the lock. The settings file is one even
    if it does not exist, because the next start would obey a file that a model wrote. The same holds for
    the user's own instructions, a system prompt, an extension, and a program that prints a key.
    """
    http_socket = settings.http_socket
    places = (
        settings.state_dir,
        settings.socket,
        settings.events_socket,
        socket_lock_file(settings.socket),
        http_socket,
        None if http_socket is None else socket_lock_file(http_socket),
        settings.config_file,
        locations.default_config_file(),
        locations.user_instructions_file(),
        locations.user_agents_folder(),
        settings.log_file,
        settings.record,
        settings.system_prompt if isinstance(settings.system_prompt, Path) else None,
        *settings.extension,
        *settings.key_programs,
    )
    return tuple(path for path in places if path is not None)
