"""The command that lists agents."""

from __future__ import annotations

from msgspec import UNSET

from nousd.config.agents import Agent
from nousd.daemon.replies import Reply
from nousd.daemon.services import Services
from nousd.wire import commands, responses
from nousd.wire.responses.tools import AgentSummary


async def list_agents(services: Services, command: commands.ListAgents) -> Reply:
    """List the agents of a session, as they were when it first read them; without a session, the current
    ones.
    """
    live = await services.sessions.target(command.session_id)
    if live is None:
        read = await services.workspaces.default.read_agents()
        catalogue = read.in_force(services.workspaces.trust.trusts)
    else:
        catalogue = await services.run_services.agents_of(live)
    return responses.Agents(
        session_id="" if live is None else live.session_id,
        agents=tuple(map(_summary, catalogue.agents)),
    )


def _summary(agent: Agent) -> AgentSummary:
    worker = agent.worker
    return AgentSummary(
        name=agent.name,
        source=agent.source,
        path=agent.path,
        usable=worker is not None,
        trusted=agent.trusted,
        description=UNSET if worker is None else worker.description,
        hash=agent.hash or UNSET,
        worker=UNSET if worker is None else worker,
        problems=agent.problems,
    )
