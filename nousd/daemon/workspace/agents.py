"""Reads agent definitions: those of the user, next to the settings, and those of the project.

Files in a project may have been written by another person, so only regular files whose real path is
inside the project count. ``config.agents`` decides which agents are in force. An unusable file is listed
with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from nousd.config.agents import Agent, AgentSource, Catalogue, parse_agent
from nousd.daemon.workspace.folder_threads import in_folder_thread
from nousd.errors import ConfigError, RuleInvalid, ToolError
from nousd.machine.policy.workers import check_rules
from nousd.runtime_paths.filesystems import is_local
from nousd.tools.fs.path_errors import format_given
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.wire.codec.canonical_json import digest
from nousd.wire.limits import AGENT_FILE_BYTES_MAX, AGENTS_MAX

ReadAgents = Callable[[], Awaitable[Catalogue]]
"""Reads the current agents."""


class AgentPlaces(NamedTuple):
    """The folders of agent files.

    Args:
        user_folder: directory of the user's agents; None to skip them.
        project_root: the project, with agents in ``.nousd/agents``; None to skip them.
        hidden: paths that are never read.
    """

    user_folder: Path | None
    project_root: Path | None
    hidden: tuple[Path, ...] = ()


async def no_agents() -> Catalogue:
    """Return no agents."""
    return Catalogue()


def reader(places: AgentPlaces) -> ReadAgents:
    """Return a function that reads the agents in a thread, because a directory may be remote and not
    respond. ``reader`` itself blocks briefly to find out whether one is remote.
    """
    folders = _folders(places)
    are_near = all(map(is_local, folders))

    async def read() -> Catalogue:
        # Usually there are none, and the lookup costs less than a thread.
        if are_near and not any(map(os.path.isdir, folders)):
            return Catalogue()
        return await in_folder_thread(read_agents, places)

    return read


def _folders(places: AgentPlaces) -> tuple[Path, ...]:
    users = () if places.user_folder is None else (places.user_folder,)
    root = places.project_root
    return users if root is None else (*users, _project_folder(root))


def _project_folder(root: Path) -> Path:
    return root / ".nousd" / "agents"


def read_agents(places: AgentPlaces) -> Catalogue:
    """Return the user's agents and then the project's, each sorted by file name. Of agents with the same
    name the first counts.
    """
    found: list[Agent] = []
    if places.user_folder is not None:
        found += _in_folder("user", places.user_folder, places.user_folder, ())
    if places.project_root is not None:
        folder = _project_folder(places.project_root)
        found += _in_folder("project", places.project_root, folder, places.hidden)
    return Catalogue(tuple(_without_doubles(found)))


def _without_doubles(agents: list[Agent]) -> Iterator[Agent]:
    first: dict[str, Agent] = {}
    for agent in agents:
        if agent.worker is None or first.setdefault(agent.name, agent) is agent:
            yield agent
        else:
            taken = f"the name {agent.name} is that of {first[agent.name].path}"
            yield agent._replace(worker=None, problems=(taken, *agent.problems))


def _in_folder(
    source: AgentSource, root: Path, folder: Path, hidden: tuple[Path, ...]
) -> Iterator[Agent]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".md"))  # noqa: PTH208
    except OSError:
        return
    for name in names[:AGENTS_MAX]:
        yield _agent(source, root, folder / name, hidden)
    if further := names[AGENTS_MAX:]:
        # One warning for all of them: there can be any number.
        problem = f"the folder has {len(names)} files, of which the first {AGENTS_MAX} count"
        yield _unusable(source, folder / further[0], problem)


def _agent(source: AgentSource, root: Path, path: Path, hidden: tuple[Path, ...]) -> Agent:
    try:
        with PathSandbox(root, hidden).locate(str(path)) as place, place.open_file() as file:
            data = file.read(AGENT_FILE_BYTES_MAX + 1)
        if len(data) > AGENT_FILE_BYTES_MAX:
            return _unusable(source, path, f"longer than {AGENT_FILE_BYTES_MAX} bytes")
        worker = parse_agent(data.decode("utf-8-sig"), path.stem)
        check_rules(worker)
    except (ToolError, ConfigError, RuleInvalid) as error:
        return _unusable(source, path, str(error))
    except OSError as error:
        return _unusable(source, path, error.strerror or "it cannot be read")
    except UnicodeDecodeError:
        return _unusable(source, path, "not UTF-8")
    return Agent(worker.name, source, str(path), worker, digest(data))


def _unusable(source: AgentSource, path: Path, problem: str) -> Agent:
    return Agent(
        path.stem, source, str(path), None, problems=(format_given(" ".join(problem.split())),)
    )
