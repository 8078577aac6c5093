"""Carries out one tool call from its request to its result, on one path for calls that run, are refused
or are skipped.

``admission`` decides; if approval is needed, it is requested; then the call runs, or does not, and
ends. Every call gets a result in the transcript, because model APIs refuse a call without one. The
events of a call (``call_events``) take one commit before it runs, which it waits for, and one after, or
one in all. A runtime waits for the last one before it sends the result to a model
(``TurnHost.wait_results``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.errors import StoreError, StoreFull, ToolError, without_frames
from nousd.machine.policy.denied_paths import DeniedPaths
from nousd.machine.policy.permission import Judgement
from nousd.runtimes.calls.admission import Admission, AdmittedCall, Refused, admit, input_hash
from nousd.runtimes.calls.attempts import NEVER_SEEN, EarlierAttempts, StoredResult
from nousd.runtimes.calls.call_events import CallEvents, ObservedCallEvents, events_of
from nousd.runtimes.calls.hooks import NO_CALL_HOOKS, CallHooks, ShownResult
from nousd.runtimes.calls.host import CallHost, Question, TurnCallHost
from nousd.tools.interface import Tool, ToolContext, ToolResult
from nousd.tools.sandbox.obeyed_links import NO_LINKS
from nousd.tools.sandbox.obeyed_writes import why_obeyed
from nousd.tools.secrets_interface import NO_SECRETS, SecretsInStream
from nousd.tools.spooled_file import SpooledFile
from nousd.wire import events
from nousd.wire.codec.envelope import scrub
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.policy import ExecutionEnv, ObeyedFile, PolicySource
from nousd.wire.objects.tool_footprint import Access

_OUTPUT_TYPE: Final = "text/plain; charset=utf-8"

_SKIPPED: Final = Refused(
    "tool_execution_skipped", "Skipped due to queued user message.", by="steer"
)


ToolsOf = Callable[[str], Mapping[str, Tool]]
"""Id of a session -> its current tools by name."""


class CallRunner:
    """Carries out the calls of one runtime.

    Args:
        tools_of: returns the current tools of a session.
        hooks: called for every call that is not skipped.
    """

    def __init__(self, tools_of: ToolsOf, hooks: CallHooks = NO_CALL_HOOKS) -> None:
        self._tools_of = tools_of
        self._hooks = hooks

    def with_tools(self, tools: Mapping[str, Tool]) -> CallRunner:
        """Return a runner for other tools, with the same hooks."""
        return CallRunner(lambda _: tools, self._hooks)

    async def skip(
        self, host: TurnCallHost, call: ToolCall, earlier: EarlierAttempts = NEVER_SEEN
    ) -> ToolResult:
        """End a call that does not start because the user sent another message; return its result for
        the model.
        """
        call_hash, attempt = input_hash(call.name, call.args), earlier.attempts + 1
        admission = Admission((), _SKIPPED, call_hash, attempt=attempt)
        skipped = _Call(host, call, admission)
        await skipped.refuse(_SKIPPED, shown=True)
        return skipped.events.result

    async def execute(
        self, host: CallHost, call: ToolCall, earlier: EarlierAttempts = NEVER_SEEN
    ) -> ToolResult:
        """Run a call, or end it with the reason why it may not run; return its result for the model.

        Args:
            earlier: the facts about earlier attempts.
        """
        output = _Output(host)
        context = host.tool_context(call.tool_call_id, output.emit)
        output.secrets = context.secrets
        context = msgspec.structs.replace(context, tell_left=output.obeyed_files.extend)
        tools = self._tools_of(host.where["session_id"])
        admission = await admit(tools, host, call, context, self._hooks, earlier=earlier)
        execution = _Call(host, call, admission, self._hooks)
        match admission.verdict:
            case Refused() as refused:
                await execution.refuse(refused, shown=False)
            case AdmittedCall(result=StoredResult() as result):
                await execution.give_again(result)
            case AdmittedCall(judgement=judgement) as admitted:
                approved: tuple[str, ...] = ()
                if judgement.verdict == "allow":
                    await execution.start(judgement.reason)
                elif await execution.may_run(admitted):
                    approved = admitted.access.outside
                else:
                    return execution.events.result
                output.events = execution.events
                restricted = _restrict_context(context, judgement.closed, approved)
                await execution.run(admitted, restricted, output)
        return execution.events.result


async def observe(
    host: TurnCallHost,
    call: ToolCall,
    tool: Tool,
    result: ToolResult,
    seconds: float,
    *,
    attempt: int = 1,
) -> None:
    """Log a call that an agent program has carried out without asking."""
    source = PolicySource(source="runtime", decision="allow", reason="the agent did not ask")
    judgement = Judgement("allow", source.reason, (source,), rule="")
    verdict = AdmittedCall(tool, call.args, Access(), judgement)
    call_hash = input_hash(call.name, call.args)
    admission = Admission((source,), verdict, call_hash, attempt=attempt)
    observed = ObservedCallEvents(host, call, admission)
    await host.stream(
        *observed.build_request(),
        observed.build_approval(source.reason),
        observed.build_start(),
        *observed.build_updates(result.text),
        *observed.build_completion(ShownResult(result), seconds),
    )


def _restrict_context(
    context: ToolContext, closed: DeniedPaths, approved: tuple[str, ...]
) -> ToolContext:
    """Return a context without the paths that the decision closes to the call, and with the approved
    paths outside the workspace.
    """
    path_sandbox = context.path_sandbox
    if any(closed):
        # No links can have appeared meanwhile: file tools make none, and those of commands are reported.
        obeyed = partial(why_obeyed, context.workdir, NO_LINKS)
        path_sandbox = path_sandbox.restrict(
            reading=closed.reading,
            writing=closed.writing,
            repositories=closed.repositories,
            why_obeyed=obeyed if closed.repositories else None,
            may_miss=closed.may_miss,
        )
    if approved:
        path_sandbox = path_sandbox.allow_outside(approved)
    if path_sandbox is context.path_sandbox:
        return context
    return msgspec.structs.replace(context, path_sandbox=path_sandbox)


class _Output:
    """Streams the output of a tool while it runs, and redacts secrets even if pieces split them."""

    def __init__(self, host: CallHost) -> None:
        self._host = host
        self.events: CallEvents | None = None
        self.secrets = NO_SECRETS
        self.obeyed_files: list[ObeyedFile] = []
        """Files left by its commands that programs obey, and that no event has named yet."""
        self.is_shown = False
        self._filters: dict[OutputKind | None, SecretsInStream[str]] = {}

    async def emit(self, delta: str, stream: OutputKind | None = None) -> None:
        if delta and self.events is not None:
            self.is_shown = True
            if stream not in self._filters:
                self._filters[stream] = self.secrets.text_stream()
            await self._show(self.events, self._filters[stream].feed(scrub(delta)), stream)

    async def finish(self) -> None:
        """Show the text that was held back because it may have been the beginning of a secret."""
        for stream, stream_filter in self._filters.items():
            if self.events is not None:
                await self._show(self.events, stream_filter.finish(), stream)

    async def _show(self, call: CallEvents, text: str, stream: OutputKind | None) -> None:
        if text:
            await self._host.stream(*call.build_updates(text, or_unset(stream)))

    def clean(self, text: str) -> str:
        """Return a text with the daemon's secrets redacted."""
        return self.secrets.redact_output(scrub(text))

    def clean_result(self, result: ToolResult) -> ToolResult:
        """Return a result with secrets redacted. Long output in a file was redacted when it was
        written.
        """
        full = result.full
        if isinstance(full, bytes):
            full = self.secrets.redact_output_bytes(full)
        return msgspec.structs.replace(result, text=self.clean(result.text), full=full)


class _Call:
    """One call in progress, with its events."""

    def __init__(
        self,
        host: CallHost,
        call: ToolCall,
        admission: Admission,
        hooks: CallHooks = NO_CALL_HOOKS,
    ) -> None:
        self.host = host
        self.events = events_of(host, call, admission)
        self._call = call
        self._hooks = hooks
        self._args: Any = None
        self._started_at = 0.0

    async def refuse(self, refused: Refused, *, shown: bool) -> None:
        await self.host.stream(
            *self.events.build_request(),
            self.events.build_denial(refused),
            *self._build_refusal(refused, shown=shown),
        )

    async def start(self, reason: str) -> None:
        await self._log_start(
            *self.events.build_request(), *self.events.build_allowed_start(reason)
        )

    async def _log_start(self, *start_events: events.Event) -> None:
        """Log the start of the call; ``_run`` makes it durable before any effect."""
        await self.host.stream(*start_events)
        self._started_at = trio.current_time()

    async def give_again(self, stored: StoredResult) -> None:
        """Answer a call with its stored result; nothing runs."""
        result = ToolResult(stored.text, stored.is_error)
        await self.host.stream(
            *self.events.build_request(),
            self.events.build_approval("its stored result is given again"),
            *self.events.build_end(result, executed=False, artifact_id=stored.artifact_id),
        )

    async def may_run(self, admitted: AdmittedCall) -> bool:
        """Request approval for the call. If approved, start it and return True; else end it."""
        await self.host.stream(*self.events.build_request())
        answer = await self.host.ask(
            Question(
                call=self.events.keys,
                args=self.events.args,
                access=admitted.access,
                reason=admitted.judgement.reason,
                rule=admitted.judgement.rule,
            )
        )
        if answer.allows:
            self.events.user_answer = PolicySource(
                source="user", decision="allow", reason=answer.reason
            )
            await self._log_start(self.events.build_start())
            return True
        refused = Refused(
            "tool_blocked", f"tool_blocked: {answer.reason}", by=answer.by, hint=answer.hint
        )
        if answer.by == _SKIPPED.by:
            refused = _SKIPPED
        await self.host.stream(*self._build_refusal(refused, shown=refused is _SKIPPED))
        return False

    def _build_refusal(self, refused: Refused, *, shown: bool) -> list[events.Event]:
        """Return the events that end a denied call; if ``shown``, its result is also sent as output."""
        text = f"tool_error: {refused.message}"
        return [
            *self.events.build_warnings(refused),
            *(self.events.build_updates(text) if shown else []),
            *self.events.build_end(ToolResult(text, is_error=True), executed=False),
        ]

    async def run(self, admitted: AdmittedCall, context: ToolContext, output: _Output) -> None:
        """Run the call and end it. If it is cancelled, report only the files that its commands left."""
        try:
            await self._run(admitted, context, output)
        finally:
            if output.obeyed_files:
                await self.host.stream(*self.events.build_obeyed_warnings(output.obeyed_files))

    async def _run(self, admitted: AdmittedCall, context: ToolContext, output: _Output) -> None:
        self._args = admitted.args
        if admitted.tool.begins_early:
            if not admitted.tool.is_read_only:
                # While it prepares; it waits for the commit before its first effect.
                self.host.commit_now()
            context = msgspec.structs.replace(context, wait_started=self.host.wait_durable)
        else:
            await self.host.wait_durable()
        try:
            result = await admitted.tool.run(admitted.args, context)
        except ToolError as error:
            text = output.clean(str(without_frames(error)))
            await output.finish()
            await self._fail(Refused(error.code, text), admitted.tool, output)
        except OSError as error:
            reason = without_frames(error).strerror or error
            text = output.clean(f"{admitted.tool.name}_failed: {reason}")
            await output.finish()
            await self._fail(Refused(ToolError.code, text), admitted.tool, output)
        else:
            await output.finish()
            await self._complete(output.clean_result(result), output)

    async def _fail(self, failure: Refused, tool: Tool, output: _Output) -> None:
        seconds = self._seconds
        env: ExecutionEnv = "unknown" if tool.executed_by == "mcp" else "host"
        shown, artifact_id = await self._run_after_hooks(
            ToolResult(f"tool_error: {failure.message}", is_error=True, execution_env=env)
        )
        obeyed_files, output.obeyed_files = output.obeyed_files, []
        await self.host.stream(
            *self.events.build_warnings(failure),
            *self.events.build_obeyed_warnings(obeyed_files),
            *self.events.build_remark_warnings(shown.remarks),
            *self.events.build_completion(shown, seconds, artifact_id),
        )

    async def _complete(self, result: ToolResult, output: _Output) -> None:
        seconds = self._seconds
        result, artifact_id = await self._keep(result)
        remarks: list[events.Event] = []
        if result.is_error:
            remarks += self.events.build_warnings(Refused(ToolError.code, result.text))
            result = msgspec.structs.replace(result, text=f"tool_error: {result.text}")
        elif result.text and not output.is_shown:
            remarks += self.events.build_updates(result.text)
        remarks += self.events.build_obeyed_warnings(output.obeyed_files, in_result=True)
        shown, artifact_id = await self._run_after_hooks(result, artifact_id)
        remarks += self.events.build_remark_warnings(shown.remarks)
        output.obeyed_files = []
        await self.host.stream(*remarks, *self.events.build_completion(shown, seconds, artifact_id))

    async def _run_after_hooks(
        self, result: ToolResult, artifact_id: str | UnsetType = UNSET
    ) -> tuple[ShownResult, str | UnsetType]:
        """Run the hooks; return the result for the model, and the artifact with the whole output."""
        shown = await self._hooks.after(self.host, self._call, self._args, result)
        if shown.changed_by and artifact_id is UNSET:
            artifact_id = await self.host.keep(result.text.encode(), _OUTPUT_TYPE)
        return shown, artifact_id

    async def _keep(self, result: ToolResult) -> tuple[ToolResult, str | UnsetType]:
        """Store the whole output of a result that shows a part; if that fails, add the reason to it."""
        full_output = result.full
        if full_output is None:
            return result, UNSET
        try:
            return result, await self.host.keep(full_output, _OUTPUT_TYPE)
        except (StoreError, OSError) as error:
            is_full = isinstance(error, StoreFull)
            reason = "the disk is full" if is_full else "it could not be written"
            remark = f"[The whole output was not kept: {reason}.]"
            return msgspec.structs.replace(result, text=f"{result.text}\n{remark}"), UNSET
        finally:
            if isinstance(full_output, SpooledFile):
                full_output.close()

    @property
    def _seconds(self) -> float:
        """Return the seconds since the call started."""
        return trio.current_time() - self._started_at
