"""Commands that grant, revoke and list the trust in project files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nousd.config.project_file import FILE_NAME
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.daemon.workspace.folder_threads import in_folder_thread
from nousd.daemon.workspace.project import Project, read_inside
from nousd.errors import CommandRejected, InvalidPayload, ToolError
from nousd.wire import commands
from nousd.wire.codec.canonical_json import digest
from nousd.wire.commands.subscribe import cursor
from nousd.wire.objects.trust import ProjectFile
from nousd.wire.responses import Accepted, ProjectFiles

_FOLDER: Final = ".nousd"


async def trust(services: Services, command: commands.Trust) -> Reply:
    """Trust a file with the content that the user has seen; a changed file is refused."""
    project = await _project(services, command.workspace)
    path = _path(project, command.path)
    found = await in_folder_thread(_hash_of, project.root, path)
    if not found:
        raise CommandRejected("project_file_not_found")
    if found != command.hash:
        raise CommandRejected("hash_mismatch", details={"hash": found})
    handle = services.workspaces.trust.update(services.run_services.log, str(path), found)
    handle.when_resolved(lambda _: services.mcp.reread_project())
    return Deferred(handle, Accepted(command="trust", path=str(path)))


async def untrust(services: Services, command: commands.Untrust) -> Reply:
    """Revoke the trust in a file, of any project."""
    trusted = services.workspaces.trust
    path = command.path
    if path is None or path not in trusted.paths():
        path = str(_path(await _project(services, command.workspace), path))
    if path not in trusted.paths():
        raise CommandRejected("not_trusted")
    handle = trusted.update(services.run_services.log, path, None)
    handle.when_resolved(lambda _: services.mcp.reread_project())
    return Deferred(handle, Accepted(command="untrust", path=path))


async def list_trust(services: Services, command: commands.ListTrust) -> Reply:
    """List a project's current settings, then the other trusted files."""
    project = await _project(services, command.workspace)
    own = await project.file()
    files = [] if own is None else [own]
    others = [path for path in services.workspaces.trust.paths() if own is None or path != own.path]
    files += [await in_folder_thread(_other, services, path) for path in others]
    root = "" if project.root is None else str(project.root)
    return ProjectFiles(root=root, files=tuple(files), cursor=cursor(services.hub.head))


async def _project(services: Services, workspace: str | None) -> Project:
    return (await services.workspaces.open_named(workspace)).project


def _path(project: Project, named: str | None) -> Path:
    """Return the file that a command names.

    Raises:
        CommandRejected: ``project_file_not_found``, because the workspace belongs to no project.
        InvalidPayload: the file is not in the project's ``.nousd`` folder.
    """
    root = project.root
    if root is None:
        raise CommandRejected("project_file_not_found")
    path = root / (named or FILE_NAME)
    inside = path.is_relative_to(root / _FOLDER) and ".." not in path.parts
    if not inside or "\0" in str(path):
        raise InvalidPayload(f"path must lie in the folder {_FOLDER} of the project")
    return path


def _hash_of(root: Path | None, path: Path) -> str:
    """Return the hash of a file; "" if it cannot be read."""
    assert root is not None
    try:
        return digest(read_inside(root, str(path)))
    except (OSError, ToolError):
        return ""


def _other(services: Services, path: str) -> ProjectFile:
    """Return the facts about a trusted file other than the project's current settings."""
    root = next((above.parent for above in Path(path).parents if above.name == _FOLDER), None)
    found = "" if root is None or not root.is_dir() else _hash_of(root, Path(path))
    return ProjectFile(path=path, hash=found, trusted=services.workspaces.trust.trusts(path, found))
