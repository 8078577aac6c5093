"""A runtime whose turns an external agent carries out.

For each turn it finds or starts the process that serves the session (a *life*), sends it the user's
text, and follows the turn (``agent_turn``). The log decides how a new life begins: it resumes the
program's own session only if the transcript still ends where the program's last turn ended; otherwise it
receives the transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.errors import AgentFailed, RunFailed, SessionNotFound, StoreError, without_category
from nousd.runtimes.agents.agent_turn import AgentTurn, text_of
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import Agent, AgentCall, AgentLife, OwnTools, Resume, Start
from nousd.runtimes.agents.lives import Lives
from nousd.runtimes.agents.programs import Programs
from nousd.runtimes.agents.raw_lines import redact_line
from nousd.runtimes.agents.spaces import Spaces
from nousd.runtimes.agents.surroundings import AgentSurroundings
from nousd.runtimes.agents.time_limits import PLACE_SECONDS
from nousd.runtimes.agents.tools.offered_tools import (
    OFFERED_BYTES_MAX,
    OFFERED_MAX,
    AgentTools,
    offer_of,
)
from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.calls.runner import CallRunner
from nousd.runtimes.calls.runtime_policy import NO_POLICY
from nousd.runtimes.interface import AgentHost
from nousd.wire import events
from nousd.wire.codec.canonical_json import digest, expressible
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.agents import AgentSessionFacts
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.runtimes import AuthFacts, IsolationMode, RuntimeCapabilities

_RETRY_HINT: Final = "send the message again, or resume the session: the program is started anew"

_MODELS_MAX: Final = 200
"""Maximum number of a program's models that are remembered."""

_LEFT_OUT_NAMED_MAX: Final = 16
"""Maximum number of left-out tools that a warning names."""

_INPUT_TYPE: Final = "application/json"


class AgentRuntime:
    """Implements ``Runtime`` with one kind of agent program.

    Args:
        guest: starts the programs in isolation.
        spaces: the files and variables of the programs, by namespace.
        own_tools: the policy for the program's own tools.
        mode: as for ``Programs``.
        models: the models named in the settings; if empty, the program's own list counts.
    """

    consumes_on_delivery = True

    def __init__(
        self,
        agent: Agent,
        guest: Guest,
        around: AgentSurroundings,
        spaces: Spaces,
        *,
        own_tools: OwnTools = "off",
        mode: IsolationMode = "subprocess",
        models: tuple[str, ...] = (),
    ) -> None:
        self._configured_models = models
        self._reported_models: tuple[str, ...] = ()
        self._own_tools = own_tools
        self._agent = agent
        self._programs = Programs(agent, guest, spaces, mode)
        self._contain = around.contain
        self._lives = Lives(
            agent,
            around.nursery,
            self._programs,
            contain=around.contain,
            record_outside=self._record_outside,
            redact=around.secrets.redact_output,
        )
        self._record_refused = around.record_refused
        self._tools = around.tools
        self._calls = CallRunner(partial(AgentTools, around.tools), around.hooks)
        self._bounds = around.bounds
        self._secrets = around.secrets
        self.version: str | UnsetType = UNSET

    @property
    def name(self) -> str:
        """See ``Runtime.name``."""
        return self._agent.name

    @property
    def capabilities(self) -> RuntimeCapabilities:
        """See ``Runtime.capabilities``."""
        return self._agent.capabilities

    @property
    def models(self) -> tuple[str, ...]:
        """See ``Runtime.models``."""
        return self._configured_models or self._reported_models

    def auth_facts(self, namespace: str) -> AuthFacts:
        """See ``Runtime.auth_facts``."""
        facts = self._programs.auth_facts(namespace)
        if facts.account is UNSET:
            return facts
        account = self._secrets.redact_output(facts.account)
        return msgspec.structs.replace(facts, account=account)

    def forget(self, session_id: str) -> None:
        """See ``Runtime.forget``: end the program that serves the session."""
        self._lives.drop(session_id)

    async def opinion_of(self, _call: ToolCall) -> RuntimeOpinion:
        """See ``Runtime.opinion_of``."""
        return NO_POLICY

    async def run_turn(self, host: AgentHost) -> None:
        """See ``Runtime.run_turn``."""
        host.let_calls_overlap()
        try:
            await self._take_turn(host)
        except RunFailed as failure:
            # The texts come from the program or its model server, and may contain secrets.
            failure.cause = self._secrets.redact_output(failure.cause)
            failure.raw = redact_line(failure.raw, self._secrets)
            if isinstance(failure, AgentFailed):
                failure.message = f"the agent program {self.name} failed"
            hint = failure.hint or await self._hint(failure, host.runtime_namespace)
            failure.hint = self._secrets.redact_output(hint)
            raise

    async def _hint(self, failure: RunFailed, namespace: str) -> str:
        """Return the next step after a failure that names none; empty if none is known."""
        if failure.category == "authentication":
            facts = await trio.to_thread.run_sync(self.auth_facts, namespace)
            return facts.instructions
        return _RETRY_HINT if isinstance(failure, AgentFailed) else ""

    async def _take_turn(self, host: AgentHost) -> None:
        start = await self._start(host)
        session_id = host.tracker.session_id
        is_in_sync = False
        try:
            life = await self._life(host, start)
            await self._tell_input(host, start)
            await self._turn(host, life).carry_out()
            is_in_sync = True
        finally:
            if is_in_sync:
                self._lives.rest(session_id)
            else:
                # The transcript may lack the program's last actions.
                self._lives.drop(session_id)
        await self._note(host, life, start, leaf_id=host.leaf_id)

    def _turn(self, host: AgentHost, life: AgentLife) -> AgentTurn:
        return AgentTurn(
            host,
            life,
            self._calls,
            runtime=self.name,
            contain=self._contain,
            bounds=self._bounds,
            secrets=self._secrets,
        )

    async def _start(self, host: AgentHost) -> Start:
        offer = offer_of(AgentTools(self._tools, host.tracker.session_id), host.tool_is_active)
        instructions = await host.instructions()
        return Start(
            workdir=host.workdir,
            model=host.agent_model,
            instructions="\n\n".join(source.text for source in instructions if source.text),
            tools=offer.tools,
            left_out=offer.left_out,
            own_tools=self._own_tools,
            thinking=host.agent_thinking,
            namespace=host.runtime_namespace,
        )

    async def _life(self, host: AgentHost, start: Start) -> AgentLife:
        session_id = host.tracker.session_id
        life = self._lives.warm(session_id, start)
        agent_session = host.agent_session
        is_current = (
            agent_session is not None
            and agent_session.runtime == self.name
            and agent_session.leaf_id == host.leaf_id
        )
        if life is not None and is_current:
            return life
        self._lives.drop(session_id)
        reason = ""
        if agent_session is not None and is_current and self._can_resume(agent_session, start):
            resume = Resume("native", agent_session_id=agent_session.agent_session_id)
            try:
                return await self._begin_life(host, start, resume)
            except AgentFailed as failure:
                # The program may have lost its session; the transcript can replace it.
                reason = without_category(failure.category, failure.cause)
        transcript = tuple(await host.context())
        resume = Resume("reconstruct" if transcript else "new", transcript=transcript)
        return await self._begin_life(host, start, resume, reason=reason)

    def _can_resume(self, agent_session: AgentSessionFacts, start: Start) -> bool:
        return (
            self.capabilities.resume_model == "native"
            and self._programs.keeps_sessions(start.namespace)
            and agent_session.basis == self._agent.session_basis(start)
        )

    async def _begin_life(
        self, host: AgentHost, start: Start, resume: Resume, *, reason: str = ""
    ) -> AgentLife:
        async def on_wait(message: str) -> None:
            host.extend_idle_deadline(PLACE_SECONDS)
            await _warn(host, "agent_waits", message)

        if start.left_out:
            await _warn(host, "agent_tools_left_out", _describe_left_out(start.left_out))
        life = await self._lives.begin(host.tracker.session_id, start, resume, on_wait=on_wait)
        self.version = self._secrets.redact_output(life.version) or self.version
        models = tuple(map(self._secrets.redact_output, life.models[:_MODELS_MAX]))
        self._reported_models = models or self._reported_models
        await self._note(
            host,
            life,
            start,
            resume=resume.kind,
            reason=self._secrets.redact_output(reason) or UNSET,
        )
        return life

    async def _note(self, host: AgentHost, life: AgentLife, start: Start, **more: Any) -> None:
        """Log the program's session, with the leaf up to which it agrees with the transcript."""
        where = host.tracker.where
        await host.stream(
            events.AgentSession(
                session_id=where["session_id"],
                run_id=where["run_id"],
                runtime=self.name,
                agent_session_id=self._secrets.redact_output(life.agent_session_id),
                agent_version=self._secrets.redact_output(life.version),
                basis=self._agent.session_basis(start),
                **more,
            )
        )

    async def _record_outside(self, session_id: str, call: AgentCall) -> None:
        redact = self._secrets.redact_output
        refused = ToolCall(
            tool_call_id="",
            runtime_tool_call_id=redact(call.agent_call_id),
            name=redact(call.name),
            args=self._secrets.redact_output_json(dict(call.args)),
        )
        # A session that is lost or deleted has no log.
        with suppress(StoreError, SessionNotFound):
            await self._record_refused(session_id, self.name, refused)

    async def _tell_input(self, host: AgentHost, start: Start) -> None:
        """Log the input of the program, as an artifact in nousd's own form."""
        content = {
            "text": text_of(host),
            "attachments": [attached.artifact_id for attached in host.turn_attachments],
            "model": start.model,
            "instructions": start.instructions,
            "tools": msgspec.to_builtins(start.tools),
            "command": list(self._agent.command(start, Resume("new"))),
            **self._programs.facts(start),
        }
        data = encode_json(expressible(content))
        await host.stream(
            events.ModelInput(
                **host.tracker.where,
                model=start.model,
                provider=self.name,
                entries=len(await host.context()),
                messages=1,
                tokens_estimated=len(data) // 4,
                tools=tuple(tool.name for tool in start.tools),
                omitted_count=0,
                input_ref=await host.keep(data, _INPUT_TYPE),
                input_hash=digest(data),
            )
        )


async def _warn(host: AgentHost, code: str, message: str) -> None:
    await host.stream(events.Warning(**host.tracker.where, code=code, message=message))


def _describe_left_out(names: Sequence[str]) -> str:
    listed = ", ".join(
        [*names[:_LEFT_OUT_NAMED_MAX], *(["..."] if len(names) > _LEFT_OUT_NAMED_MAX else [])]
    )
    return (
        f"the program is not offered {len(names)} tools of MCP servers: {listed}. It is offered at most"
        f" {OFFERED_MAX} tools, of {OFFERED_BYTES_MAX} bytes together"
    )
