"""Calls the hooks of all extensions in turn, and combines their answers.

Hooks are called in the order of the extensions, and within an extension in that of registration. A hook
that raises, takes too long or returns an invalid answer yields a ``Failure`` for the caller to report;
it never raises here.

A hook without handlers costs nothing: no copy, no thread, not even a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from nousd.errors import ExtensionError, ExtensionTimedOut, ToolArgumentsInvalid
from nousd.extensions.calls import Caller, Handler
from nousd.extensions.hooks import (
    AddInstructions,
    Answer,
    BlockCall,
    Cancel,
    ChangeArgs,
    ChangeInput,
    ChangeResult,
    HandleInput,
    HookName,
    HookPayload,
    InputGiven,
    RunBeginning,
    ToolCalled,
    ToolReturned,
    copy_payload,
    validate_answer,
)
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.wire.codec.decoding import convert

OnError = Literal["allow", "block"]
"""The effect of a failed ``tool_call`` hook on the call."""


class Hook(NamedTuple):
    """One registered handler."""

    extension: str
    name: HookName
    handler: Handler
    timeout_seconds: float
    on_error: OnError
    caller: Caller


class Failure(NamedTuple):
    """A failure of a hook, with the code and message of a warning."""

    code: str
    message: str


class InputOutcome(NamedTuple):
    """The final text and the extensions that changed it; or the extension that handled it, and its
    reply.
    """

    text: str
    changed_by: tuple[str, ...] = ()
    handled_by: str = ""
    reply: str = ""
    failures: tuple[Failure, ...] = ()


class Instructions(NamedTuple):
    """The prompt section of one extension."""

    extension: str
    text: str


class RunOutcome(NamedTuple):
    """The prompt sections of all extensions, in their order."""

    added: tuple[Instructions, ...] = ()
    failures: tuple[Failure, ...] = ()


class Verdict(NamedTuple):
    """The opinion of one hook on a call.

    Args:
        args: the changed arguments; None if unchanged.
    """

    extension: str
    blocks: bool
    reason: str
    args: Mapping[str, Any] | None = None


class CallOutcome(NamedTuple):
    """The opinions of all hooks on a call, up to the first that blocks it."""

    verdicts: tuple[Verdict, ...] = ()
    failures: tuple[Failure, ...] = ()


class ResultOutcome(NamedTuple):
    """The result that the model receives for a call, and the extensions that changed it."""

    text: str
    is_error: bool
    changed_by: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


class Cancellation(NamedTuple):
    """The extension that refuses a switch or a branch, and its reason."""

    extension: str
    reason: str


class SwitchOutcome(NamedTuple):
    """Whether a session may be left or branched; ``cancelled`` is the refusal, if there is one."""

    cancelled: Cancellation | None = None
    failures: tuple[Failure, ...] = ()


Fit = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns validated arguments, or raises ToolArgumentsInvalid."""


class Hooks:
    """All hooks of a daemon.

    Args:
        secrets: removed from the answers, which end up in events.
    """

    def __init__(self, hooks: Iterable[Hook] = (), secrets: Secrets = NO_SECRETS) -> None:
        self._secrets = secrets
        self._by_name: dict[str, list[Hook]] = {}
        for hook in hooks:
            self._by_name.setdefault(hook.name, []).append(hook)

    def has(self, name: HookName) -> bool:
        """Return whether any extension registered that hook."""
        return name in self._by_name

    def seconds_max(self, name: HookName) -> float:
        """Return the time limit of all handlers of a hook together."""
        return sum(hook.timeout_seconds for hook in self._of(name))

    async def input(self, text_input: InputGiven) -> InputOutcome:
        """Call the input hooks for a text; the first that handles it ends the chain."""
        failures: list[Failure] = []
        changed_by: list[str] = []
        for hook in self._of("input"):
            match await self._ask_hook(hook, text_input, failures):
                case ChangeInput(text):
                    text_input = msgspec.structs.replace(text_input, text=text)
                    changed_by.append(hook.extension)
                case HandleInput(reply):
                    return InputOutcome(
                        text_input.text, tuple(changed_by), hook.extension, reply, tuple(failures)
                    )
        return InputOutcome(text_input.text, tuple(changed_by), failures=tuple(failures))

    async def before_run(self, beginning: RunBeginning) -> RunOutcome:
        """Call the ``before_run`` hooks; return their additions to the run's system prompt."""
        failures: list[Failure] = []
        added = [
            Instructions(hook.extension, answer.text)
            for hook in self._of("before_run")
            if isinstance(
                answer := await self._ask_hook(hook, beginning, failures), AddInstructions
            )
        ]
        return RunOutcome(tuple(added), tuple(failures))

    async def tell(self, name: HookName, payload: HookPayload) -> tuple[Failure, ...]:
        """Notify the handlers of a hook that has no answers."""
        failures: list[Failure] = []
        for hook in self._of(name):
            await self._ask_hook(hook, payload, failures)
        return tuple(failures)

    async def tool_call(self, called: ToolCalled, fit: Fit) -> CallOutcome:
        """Call the ``tool_call`` hooks; each receives the arguments as the hooks before it left them.

        Args:
            fit: validates changed arguments.
        """
        failures: list[Failure] = []
        verdicts: list[Verdict] = []
        for hook in self._of("tool_call"):
            verdict = await self._verdict(hook, called, fit, failures)
            verdicts.append(verdict)
            if verdict.blocks:
                break
            if verdict.args is not None:
                called = msgspec.structs.replace(called, args=dict(verdict.args))
        return CallOutcome(tuple(verdicts), tuple(failures))

    async def _verdict(
        self, hook: Hook, called: ToolCalled, fit: Fit, failures: list[Failure]
    ) -> Verdict:
        failure_count = len(failures)
        match await self._ask_hook(hook, called, failures):
            case BlockCall(reason):
                return Verdict(hook.extension, True, reason)
            case ChangeArgs(args):
                try:
                    return Verdict(hook.extension, False, "changed the arguments", fit(args))
                except ToolArgumentsInvalid as error:
                    failures.append(
                        _failure(hook, ExtensionError(f"changed the arguments: {error}"))
                    )
        if len(failures) > failure_count:
            reason = failures[-1].message
            return Verdict(hook.extension, hook.on_error == "block", reason)
        return Verdict(hook.extension, False, "has no objection")

    async def tool_result(self, returned: ToolReturned) -> ResultOutcome:
        """Call the ``tool_result`` hooks; return the result that the model receives for a call."""
        failures: list[Failure] = []
        changed_by: list[str] = []
        for hook in self._of("tool_result"):
            answer = await self._ask_hook(hook, returned, failures)
            if isinstance(answer, ChangeResult):
                is_error = returned.is_error if answer.is_error is None else answer.is_error
                returned = msgspec.structs.replace(returned, text=answer.text, is_error=is_error)
                changed_by.append(hook.extension)
        return ResultOutcome(returned.text, returned.is_error, tuple(changed_by), tuple(failures))

    async def may(
        self, name: Literal["session_before_switch", "session_before_fork"], payload: HookPayload
    ) -> SwitchOutcome:
        """Ask the hooks whether a session may be left or branched, up to the first refusal."""
        failures: list[Failure] = []
        for hook in self._of(name):
            answer = await self._ask_hook(hook, payload, failures)
            if isinstance(answer, Cancel):
                return SwitchOutcome(Cancellation(hook.extension, answer.reason), tuple(failures))
        return SwitchOutcome(None, tuple(failures))

    def _of(self, name: HookName) -> Sequence[Hook]:
        return self._by_name.get(name, ())

    async def _ask_hook(
        self, hook: Hook, payload: HookPayload, failures: list[Failure]
    ) -> Answer | None:
        """Return a handler's answer; None if it failed, which is added to ``failures``."""
        try:
            answer = await hook.caller.call(
                hook.handler, copy_payload(payload), timeout_seconds=hook.timeout_seconds
            )
            return self._without_secrets(validate_answer(hook.name, answer))
        except ExtensionError as error:
            failures.append(_failure(hook, error))
            return None

    def _without_secrets(self, answer: Answer | None) -> Answer | None:
        encoded = msgspec.to_builtins(answer)
        redacted = self._secrets.redact_output_json(encoded)
        return answer if redacted == encoded else convert(redacted, type(answer))


def _failure(hook: Hook, error: ExtensionError) -> Failure:
    is_late = isinstance(error, ExtensionTimedOut)
    code = "extension_timeout" if is_late else "extension_hook_error"
    return Failure(code, f"{hook.extension}: {hook.name}: {error}")


NO_HOOKS: Final = Hooks()
"""The hooks of a daemon without extensions."""
