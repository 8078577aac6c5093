"""The native runtime: calls the model, runs its tool calls, calls it again.

The whole loop is ``run_turn``. It checks for a steer before each tool call and before each further model
call, never in the middle of an answer. A steer ends the turn; ``daemon/runs/run_loop.py`` begins the
next one with it. The daemon closes messages and calls that a stop leaves open, so nothing here cleans up
the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import trio
from msgspec import UNSET

from nousd.errors import ContextOverflow, RunFailed
from nousd.machine.context import compaction
from nousd.machine.context import prompt_sections as sources_of
from nousd.machine.context.compiler import (
    Budget,
    CompiledInput,
    Frame,
    InputCache,
    budget_of,
    compile_input,
    what_is_largest,
)
from nousd.machine.context.model_input import ModelChoice, ToolSpec
from nousd.machine.context.model_input_event import model_input
from nousd.machine.context.transcript import find_unanswered_calls
from nousd.machine.session.usage import CallFigures
from nousd.providers.models.catalog import Models
from nousd.runtimes.answer_room import AnswerBounds, AnswerRoom
from nousd.runtimes.calls.attempts import NEVER_SEEN, EarlierAttempts
from nousd.runtimes.calls.host import RuntimeOpinion
from nousd.runtimes.calls.runner import CallRunner
from nousd.runtimes.calls.runtime_policy import NO_POLICY
from nousd.runtimes.interface import AnswersOfRun, NativeHost, Report, Tell
from nousd.runtimes.native.answer import ask_model, provider_failed
from nousd.runtimes.native.summary import QUICK_ENTRIES_MAX, write_summary
from nousd.tools.interface import ExtendIdleDeadline, nobody_waits
from nousd.tools.registry import ToolRegistry
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.wire import events
from nousd.wire.codec.canonical_json import expressible, nearest
from nousd.wire.events import models as model_events
from nousd.wire.limits import ANSWER_BYTES_MAX, RUN_ANSWER_BYTES_MAX
from nousd.wire.objects.entries import Entry, ToolCall
from nousd.wire.objects.runtimes import AuthFacts, RuntimeCapabilities


class NativeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the loop.

    Args:
        system: the system prompt; empty for none.
        system_path: the file of the system prompt, if it has one.
        model_calls_max: maximum model calls per turn.
        answer_bytes_max: see ``wire.limits.ANSWER_BYTES_MAX``.
        run_answer_bytes_max: see ``wire.limits.RUN_ANSWER_BYTES_MAX``.
        context_window: in tokens; 0 for that of the model.
        compact_at: share of the context window at which the transcript is compacted.
        keep_recent_tokens: approximate number of the newest tokens that a compaction keeps, at most half
            of the model's input.
    """

    system: str = ""
    system_path: str = ""
    model_calls_max: int = 50
    answer_bytes_max: int = ANSWER_BYTES_MAX
    run_answer_bytes_max: int = RUN_ANSWER_BYTES_MAX
    context_window: int = 0
    compact_at: float = 0.8
    keep_recent_tokens: int = 20_000


class NativeRuntime:
    """Carries out turns with the models and one set of tools.

    Args:
        secrets: removed from the output of models.
    """

    name = "native"
    version = UNSET
    consumes_on_delivery = False
    capabilities = RuntimeCapabilities(
        supports_streaming=True,
        supports_reasoning=True,
        supports_tool_calls=True,
        supports_parallel_tool_calls=False,
        supports_stop=True,
        supports_images=True,
        supports_session_create=True,
        supports_session_resume=True,
        supports_usage_reporting=True,
        supports_non_interactive=True,
        auth_model="api_key",
        tool_execution_model="runtime_internal",
        permission_model="nousd",
        state_model="in_process",
        resume_model="native",
        reconstruct_model="structured",
        steer_model="in_turn",
        tool_replay_safety="requires_reapproval",
        mcp_support="client_only",
        mcp_transports=("stdio", "http"),
        cancellation_model="guaranteed",
        supported_isolation_modes=("in_process",),
        recommended_isolation_mode="in_process",
        max_outstanding_tool_calls=1,
        thinking_levels=("off", "low", "medium", "high"),
    )
    models: tuple[str, ...] = ()
    """See ``Runtime.models``."""

    def auth_facts(self, _namespace: str) -> AuthFacts:
        """See ``Runtime.auth_facts``: there is no program to log in to."""
        return AuthFacts(
            is_logged_in=True,
            instructions="the keys of model servers are settings; nousd doctor names missing ones",
        )

    def __init__(
        self,
        models: Models,
        tools: ToolRegistry,
        calls: CallRunner,
        settings: NativeSettings,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        self._models = models
        self._tools = tools
        self._specs = _Specs(-1, ())
        self._calls = calls
        self._settings = settings
        self._secrets = secrets
        self._bounds = AnswerBounds(settings.answer_bytes_max, settings.run_answer_bytes_max)

    async def run_turn(self, host: NativeHost) -> None:
        """See ``Runtime.run_turn``."""
        remarks: tuple[events.Event, ...] = ()
        calls_max = self._settings.model_calls_max
        if host.model_calls_left is not None:
            calls_max = min(calls_max, host.model_calls_left)
        if not await self._carry_out_unanswered(host):
            return
        for _ in range(calls_max):
            must_call = host.tool_choice == "required"
            calls = await self._answer(host, remarks)
            if must_call and not calls:
                await host.stream(_build_no_call_warning(host))
            if not await self._carry_out(host, calls):
                return
            remarks = (events.Status(**host.tracker.where, message=_AWAIT_NEXT),)
        raise RunFailed(
            "tool_loop_limit_exceeded",
            "tool await-next loop exceeded max rounds",
            f"more than {calls_max} model calls in one turn",
        )

    async def _carry_out(
        self,
        host: NativeHost,
        calls: Sequence[ToolCall],
        earlier: Mapping[str, EarlierAttempts] = MappingProxyType({}),
    ) -> bool:
        """Run the calls one after another; return whether to call the model again.

        Args:
            earlier: call id -> the facts about earlier attempts.
        """
        for index, call in enumerate(calls):
            if host.has_pending_steer():
                for skipped in calls[index:]:
                    attempts = earlier.get(skipped.tool_call_id, NEVER_SEEN)
                    await self._calls.skip(host, skipped, attempts)
                return False
            await self._calls.execute(host, call, earlier.get(call.tool_call_id, NEVER_SEEN))
        return bool(calls) and not host.has_pending_steer()

    async def _carry_out_unanswered(self, host: NativeHost) -> bool:
        """Run the calls that an earlier run left without a result, as far as they may run; return
        whether to call the model.
        """
        unanswered_calls = find_unanswered_calls(await host.context())
        earlier = {call.tool_call_id: await host.earlier(call) for call in unanswered_calls}
        return not unanswered_calls or await self._carry_out(host, unanswered_calls, earlier)

    async def _answer(
        self, host: NativeHost, remarks: tuple[events.Event, ...]
    ) -> Sequence[ToolCall]:
        """Make one model call; compact before it if needed, and repeat it smaller if it overflows."""
        call = await self._prepare_call(host)
        if call.compiled.crowded:
            if remarks:
                await host.stream(*remarks)
            remarks = ()
            if await self._compact(host, "auto", call.budget.recent):
                call = await self._prepare_call(host)
        if call.compiled.tokens > call.budget.hard:
            raise _too_large(call)
        try:
            return await self._ask(host, call, remarks)
        except ContextOverflow as overflow:
            smaller = await self._prepare_smaller_call(host, call)
            if smaller is None:
                raise await provider_failed(host, overflow, hint=_hint(call)) from overflow
        try:
            return await self._ask(host, smaller)
        except ContextOverflow as overflow:
            raise await provider_failed(host, overflow, hint=_hint(smaller)) from overflow

    async def _prepare_call(self, host: NativeHost, *, shrink_to: int | None = None) -> _Call:
        """Return the next model call for the current context.

        Args:
            shrink_to: maximum tokens, if a server refused more.
        """
        settings = self._settings
        choice = host.choice
        sources = (
            host.own_prompt or sources_of.system_prompt(settings.system, settings.system_path),
            *await host.instructions(),
        )
        frame = Frame(
            choice,
            sources_of.system_text(sources),
            self._list_offered_tools(host),
            partial(self._models.accepts, choice),
            host.tool_choice,
        )
        budget = budget_of(
            self._window(choice),
            frame,
            compact_at=settings.compact_at,
            keep_recent=settings.keep_recent_tokens,
        )
        if shrink_to is not None:
            budget = budget._replace(soft=shrink_to, hard=shrink_to)
        compiled = await _compile_context(await host.context(), frame, budget, host.grown)
        return _Call(compiled, budget, tuple(source.source for source in sources), frame.tokens)

    def _list_offered_tools(self, host: NativeHost) -> tuple[ToolSpec, ...]:
        if self._specs.version != self._tools.version:
            self._specs = _specs(self._tools)
        # The session's own tools are few, and their parameters need no conversion.
        own = self._tools.own(host.tracker.session_id).values()
        specs = (ToolSpec(tool.name, tool.description, tool.parameters) for tool in own)
        return host.select_offered_tools((*self._specs.specs, *specs))

    async def _prepare_smaller_call(self, host: NativeHost, refused: _Call) -> _Call | None:
        """Return a smaller call after a server refused one as too long; None if that is impossible."""
        if await self._compact(host, "overflow", refused.budget.recent):
            return await self._prepare_call(host)
        transcript_tokens = refused.compiled.tokens - refused.fixed
        smaller = await self._prepare_call(
            host, shrink_to=refused.fixed + transcript_tokens * 3 // 4
        )
        return smaller if smaller.compiled.tokens < refused.compiled.tokens else None

    async def _ask(
        self, host: NativeHost, call: _Call, remarks: tuple[events.Event, ...] = ()
    ) -> Sequence[ToolCall]:
        """Make one model call, after its input and the remarks are logged and the tool results in the
        input are durable. The event of the input may become durable during the call.
        """
        request = call.compiled.request
        await self._tell(host, call.compiled, call.sources, remarks)
        blobs = {
            attachment.artifact_id: await host.artifact(attachment.artifact_id)
            for attachment in call.compiled.attachments
        }
        choice = _choice(call.compiled)
        provider = self._models.provider(choice.provider)
        price = self._models.price(choice)
        return await ask_model(
            host, provider, request, blobs, bounds=self._bounds, price=price, secrets=self._secrets
        )

    async def _tell(
        self,
        host: NativeHost,
        compiled: CompiledInput,
        sources: Sequence[model_events.Source] = (),
        remarks: Sequence[events.Event] = (),
    ) -> None:
        """Log the remarks and a model input; return once the tool results in the input are durable."""
        stored = await host.keep_input(compiled)
        event = model_input(
            compiled,
            stored,
            sources=sources,
            leaf_id=host.leaf_id,
            **host.tracker.where,
        )
        await host.stream(*remarks, event)
        await host.wait_results()

    # --- compaction --------------------------------------------------------------------------

    def forget(self, session_id: str) -> None:
        """See ``Runtime.forget``: there is nothing to forget."""

    async def opinion_of(self, _call: ToolCall) -> RuntimeOpinion:
        """See ``Runtime.opinion_of``."""
        return NO_POLICY

    async def plan_cut(
        self, context: Sequence[Entry], choice: ModelChoice
    ) -> compaction.CutPoint | None:
        """See ``Summariser.plan_cut``."""
        # In a small window the kept part must leave room for the answer.
        room = int(self._settings.compact_at * self._window(choice)) // 2
        return await _plan_cut(context, min(self._settings.keep_recent_tokens, room))

    async def summarise(
        self,
        cut: compaction.CutPoint,
        choice: ModelChoice,
        *,
        instruction: str | None,
        tell: Tell,
        report: Report,
    ) -> str:
        """See ``Summariser.summarise``."""
        compiled = await self._summary_input(cut, choice, instruction)
        await tell(compiled)
        room = AnswerRoom(self._bounds, AnswersOfRun())
        return await self._summary(cut, compiled, nobody_waits, room, report)

    async def _summary_input(
        self, cut: compaction.CutPoint, choice: ModelChoice, instruction: str | None
    ) -> CompiledInput:
        build = partial(
            compaction.summary_input,
            cut,
            choice=choice,
            instruction=instruction,
            window=self._window(choice),
        )
        if len(cut.dropped) <= QUICK_ENTRIES_MAX:
            return build()
        return await trio.to_thread.run_sync(build)

    async def _summary(
        self,
        cut: compaction.CutPoint,
        compiled: CompiledInput,
        extend_idle_deadline: ExtendIdleDeadline,
        room: AnswerRoom,
        report: Report,
    ) -> str:
        choice = _choice(compiled)
        provider = self._models.provider(choice.provider)
        price = self._models.price(choice)
        return await write_summary(
            provider,
            compiled.request,
            cut,
            extend_idle_deadline,
            room=room,
            price=price,
            report=report,
            secrets=self._secrets,
        )

    async def _compact(self, host: NativeHost, trigger: str, keep_tokens: int) -> bool:
        cut = await _plan_cut(await host.context(), keep_tokens)
        if cut is None:
            return False

        async def report(figures: CallFigures) -> None:
            await host.stream(
                figures.to_event(**host.tracker.where, correlation_id=host.correlation_id)
            )

        compiled = await self._summary_input(cut, host.choice, None)
        await self._tell(host, compiled)
        room = AnswerRoom(self._bounds, host.answers)
        summary = await self._summary(cut, compiled, host.extend_idle_deadline, room, report)
        entry = compaction.compaction_entry(
            cut,
            summary,
            entry_id=host.new_id("cmp"),
            parent_id=host.leaf_id,
            trigger=trigger,
            created_at=host.now(),
            run_id=host.tracker.run_id,
            instruction=None,
        )
        where = host.tracker.where
        await host.commit(
            events.EntryAppended(
                session_id=where["session_id"], run_id=where["run_id"], entry=entry
            ),
            events.Status(
                **where, message=f"compaction: trigger={trigger} tokens_before={cut.tokens_before}"
            ),
        )
        return True

    def _window(self, choice: ModelChoice) -> int:
        return self._settings.context_window or self._models.context_window(choice)


class _Specs(NamedTuple):
    """The tools in the form that models receive, for one version of the registry."""

    version: int
    specs: tuple[ToolSpec, ...]


def _specs(tools: ToolRegistry) -> _Specs:
    described = (
        ToolSpec(tool.name, tool.description, expressible(tool.parameters, nearest))
        for tool in tools.values()
    )
    return _Specs(tools.version, tuple(described))


class _Call(NamedTuple):
    """A prepared model call; ``fixed`` is the number of its tokens outside the transcript."""

    compiled: CompiledInput
    budget: Budget
    sources: tuple[model_events.Source, ...]
    fixed: int


async def _compile_context(
    context: Sequence[Entry], frame: Frame, budget: Budget, cache: InputCache
) -> CompiledInput:
    """Compile an input; in a thread, if it takes long enough to delay other sessions."""
    is_long = len(context) > QUICK_ENTRIES_MAX
    if is_long and (cache.is_saving or cache.new_entries(context) > QUICK_ENTRIES_MAX):
        return await trio.to_thread.run_sync(compile_input, context, frame, budget, cache)
    return compile_input(context, frame, budget, cache)


async def _plan_cut(context: Sequence[Entry], keep_tokens: int) -> compaction.CutPoint | None:
    """Plan a cut; in a thread, if it takes long enough to delay other sessions."""
    if len(context) <= QUICK_ENTRIES_MAX:
        return compaction.plan_cut(context, keep_tokens)
    return await trio.to_thread.run_sync(compaction.plan_cut, context, keep_tokens)


def _choice(compiled: CompiledInput) -> ModelChoice:
    request = compiled.request
    return ModelChoice(request.provider, request.model, request.thinking, request.sampling)


def _too_large(call: _Call) -> RunFailed:
    return RunFailed(
        "context_too_large",
        "the input is too long for the model",
        f"about {call.compiled.tokens:,} tokens, of which at most {call.budget.hard:,} can be given",
        hint=_hint(call),
        category="context_length",
    )


def _hint(call: _Call) -> str:
    largest = what_is_largest(call.compiled)
    return f"{largest}; make that shorter, or choose a model with a larger context window"


def _build_no_call_warning(host: NativeHost) -> events.Warning:
    return events.Warning(
        **host.tracker.where,
        code="tool_choice_unmet",
        message="a tool call was required, and the model made none",
    )


_AWAIT_NEXT = "await_next: continue_with_tool_results"
