"""The native runtime: asks the model, carries out its tool calls, asks again.

The whole loop is ``run_turn``. A steer is looked for before each tool call and before each further
model call, never in mid-text. What a stop leaves open is closed by the daemon, so nothing here cleans
up the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from nousd.errors import ContextOverflow, RunFailed
from nousd.machine import compaction, transcript
from nousd.machine.model_input import ModelChoice, ModelInput, ToolSpec, UserMessage
from nousd.providers.models import Models
from nousd.runtimes.interface import TurnHost
from nousd.runtimes.native.answer import ask_model, provider_failed
from nousd.runtimes.native.summary import write_summary
from nousd.runtimes.native.tool_calls import CallRunner
from nousd.tools.interface import ExpectQuiet, Tool, nobody_waits
from nousd.wire import events
from nousd.wire.entries import Entry, ToolCall
from nousd.wire.limits import OMITTED_MAX
from nousd.wire.optional import or_unset


class NativeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop can be told.

    Args:
        system: the system prompt; may be empty.
        model_calls_max: model calls per turn before the turn is given up.
        context_window: tokens; 0 asks the provider.
        compact_at: share of the window past which the transcript is compacted by itself.
        keep_recent_tokens: about how much of the newest transcript a compaction keeps, but at most
            half of what a model is given before it is compacted.
    """

    system: str = ""
    model_calls_max: int = 50
    context_window: int = 0
    compact_at: float = 0.8
    keep_recent_tokens: int = 20_000


class NativeRuntime:
    """Carries out turns with the models and one set of tools."""

    name = "native"

    def __init__(
        self,
        models: Models,
        tools: Mapping[str, Tool],
        calls: CallRunner,
        settings: NativeSettings,
    ) -> None:
        self._models = models
        self._tools = tools
        self._calls = calls
        self._settings = settings

    async def run_turn(self, host: TurnHost) -> None:
        """See ``Runtime.run_turn``."""
        remarks: tuple[events.Event, ...] = ()
        for _ in range(self._settings.model_calls_max):
            calls = await self._answer(host, remarks)
            if not await self._carry_out(host, calls):
                return
            remarks = (events.Status(**host.ledger.where, message=_AWAIT_NEXT),)
        raise RunFailed(
            "tool_loop_limit_exceeded",
            "tool await-next loop exceeded max rounds",
            f"more than {self._settings.model_calls_max} model calls in one turn",
        )

    async def _carry_out(self, host: TurnHost, calls: Sequence[ToolCall]) -> bool:
        """Runs the calls one after another; returns whether the model is to be asked again."""
        for index, call in enumerate(calls):
            if host.steer_bites():
                for skipped in calls[index:]:
                    await self._calls.skip(host, skipped)
                return False
            await self._calls.execute(host, call)
        return bool(calls) and not host.steer_bites()

    async def _answer(
        self, host: TurnHost, remarks: tuple[events.Event, ...]
    ) -> Sequence[ToolCall]:
        """Makes one model call, with room made for it before, or after it overflowed."""
        context = await host.context()
        limit = self._settings.compact_at * self._window(host.choice)
        if transcript.estimate_tokens(context) > limit:
            if remarks:
                await host.stream(*remarks)
            remarks = ()
            await self._compact(host, "auto")
        try:
            return await self._ask(host, remarks)
        except ContextOverflow as overflow:
            if not await self._compact(host, "overflow"):
                raise await provider_failed(host, overflow) from overflow
        try:
            return await self._ask(host)
        except ContextOverflow as overflow:
            raise await provider_failed(host, overflow) from overflow

    async def _ask(
        self, host: TurnHost, remarks: tuple[events.Event, ...] = ()
    ) -> Sequence[ToolCall]:
        """Makes one model call with the context as it is.

        What the model is given goes into the log together with the remarks, while it is asked.
        """
        context = await host.context()
        compiled = transcript.compiled(context)
        offered = tuple(
            ToolSpec(tool.name, tool.description, tool.parameters)
            for tool in self._tools.values()
            if host.tool_is_active(tool.name)
        )
        choice = host.choice
        request = ModelInput(
            messages=compiled.messages,
            model=choice.model,
            provider=choice.provider,
            system=self._settings.system,
            thinking=choice.thinking,
            tools=offered,
        )
        await host.stream(*remarks, _told(host, context, request, compiled.omitted))
        blobs = {
            attachment.artifact_id: await host.artifact(attachment.artifact_id)
            for message in request.messages
            if isinstance(message, UserMessage)
            for attachment in message.attachments
        }
        return await ask_model(host, self._models.provider(choice.provider), request, blobs)

    # --- compaction --------------------------------------------------------------------------

    def plan_cut(self, context: Sequence[Entry], choice: ModelChoice) -> compaction.Cut | None:
        """See ``Runtime.plan_cut``."""
        # In a small window, what is kept must leave room for what comes.
        room = int(self._settings.compact_at * self._window(choice)) // 2
        return compaction.plan_cut(context, min(self._settings.keep_recent_tokens, room))

    async def summarise(
        self, cut: compaction.Cut, choice: ModelChoice, *, instruction: str | None
    ) -> str:
        """See ``Runtime.summarise``."""
        return await self._summary(cut, choice, instruction, nobody_waits)

    async def _summary(
        self,
        cut: compaction.Cut,
        choice: ModelChoice,
        instruction: str | None,
        expect_quiet: ExpectQuiet,
    ) -> str:
        request = compaction.summary_request(
            cut, choice=choice, instruction=instruction, window=self._window(choice)
        )
        provider = self._models.provider(choice.provider)
        return await write_summary(provider, request, cut, expect_quiet)

    async def _compact(self, host: TurnHost, trigger: str) -> bool:
        cut = self.plan_cut(await host.context(), host.choice)
        if cut is None:
            return False
        summary = await self._summary(cut, host.choice, None, host.expect_quiet)
        entry = compaction.compaction_entry(
            cut,
            summary,
            entry_id=host.new_id("cmp"),
            parent_id=host.leaf_id,
            trigger=trigger,
            created_at=host.now(),
            run_id=host.ledger.run_id,
            instruction=None,
        )
        where = host.ledger.where
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


def _told(
    host: TurnHost,
    context: Sequence[Entry],
    request: ModelInput,
    omitted: tuple[events.Omitted, ...],
) -> events.ModelInput:
    return events.ModelInput(
        **host.ledger.where,
        model=request.model,
        leaf_id=or_unset(host.leaf_id),
        entries=len(context),
        messages=len(request.messages),
        tokens_estimated=transcript.estimate_tokens(context),
        tools=tuple(tool.name for tool in request.tools),
        omitted_count=len(omitted),
        omitted=omitted[:OMITTED_MAX] or UNSET,
    )


_AWAIT_NEXT = "await_next: continue_with_tool_results"
