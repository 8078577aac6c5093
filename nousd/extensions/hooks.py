"""The kinds of hooks: the argument and the allowed answers of each.

A handler receives one value, as a copy, and returns None to change nothing, or one of the answers that
``HOOKS`` lists for its hook. Everything here is plain data, without objects of the daemon. Guide for
authors: protocol/extensions.md.

    from nousd.extensions.hooks import BlockCall, ToolCalled

    def no_generated_files(call: ToolCalled) -> BlockCall | None:
        if call.tool == "write" and call.args["path"].startswith("generated/"):
            return BlockCall("files under generated/ are made by the build")
        return None

    def register(api):
        api.hook("tool_call", no_generated_files, on_error="block")
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from nousd.errors import ExtensionError
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import is_nested_too_deep
from nousd.wire.events.base import EndStatus
from nousd.wire.limits import (
    EXTENSION_RESULT_BYTES_MAX,
    NESTING_MAX,
    TEXT_CHARS_MAX,
    TOOL_ARGUMENTS_CHARS_MAX,
)
from nousd.wire.objects.field_types import Text
from nousd.wire.objects.remarks import InputKind

HookName = Literal[
    "input",
    "before_run",
    "turn_start",
    "turn_end",
    "tool_call",
    "tool_result",
    "run_end",
    "session_before_switch",
    "session_before_fork",
]

REASON_CHARS_MAX: Final = 2000
"""Maximum characters of the reason for a block or a cancellation, which people and models receive."""

INSTRUCTIONS_CHARS_MAX: Final = 64 * 1024
"""Maximum characters that one hook adds to a run's system prompt; an instructions file may
have as many bytes."""

# --- arguments of handlers -------------------------------------------------------------------


class HookPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the arguments of handlers. An id is "" if there is none."""

    session_id: str


class InputGiven(HookPayload, frozen=True, kw_only=True):
    """``input``: a client has sent a text that is not accepted yet.

    Args:
        session_id: "" if the text will begin the first session.
        run_id: the session's active run.
        kind: a ``message`` is only appended, without a run.
        attachments: the number of attached files.
    """

    run_id: str
    kind: InputKind
    text: str
    attachments: int


class RunBeginning(HookPayload, frozen=True, kw_only=True):
    """``before_run``: a run is accepted, and has not called a model yet.

    Args:
        kind: ``resume`` if it continues earlier work.
        provider, model: of its first model call.
    """

    run_id: str
    kind: Literal["prompt", "resume"]
    provider: str
    model: str


class TurnStarted(HookPayload, frozen=True, kw_only=True):
    """``turn_start``: a turn has begun and is about to call its model.

    Args:
        turn_id: counts from "1" within the run.
        kind: the kind of input that it answers; ``resume`` for none.
        text: of the user's message, "" for none.
    """

    run_id: str
    turn_id: str
    kind: str
    text: str


class TurnEnding(HookPayload, frozen=True, kw_only=True):
    """``turn_end``: a turn is about to end, because the model has nothing left to do.

    Not called for a turn that is cut off (abort, failure, shutdown).
    """

    run_id: str
    turn_id: str


class ToolCalled(HookPayload, frozen=True, kw_only=True):
    """``tool_call``: a call with valid arguments, before rules and mode decide on it.

    Args:
        run_id, turn_id: "" for a call that a client makes itself.
        args: the final arguments: validated, with defaults filled in.
    """

    run_id: str
    turn_id: str
    tool_call_id: str
    tool: str
    args: dict[str, Any]


class ToolReturned(HookPayload, frozen=True, kw_only=True):
    """``tool_result``: a call that ran has ended; not called for a denied or skipped call.

    Args:
        args: the arguments it ran with.
        text: the result for the model, already cut to its limits.
        is_error: whether the model receives the result as an error.
    """

    run_id: str
    turn_id: str
    tool_call_id: str
    tool: str
    args: dict[str, Any]
    text: str
    is_error: bool


class RunEnded(HookPayload, frozen=True, kw_only=True):
    """``run_end``: a run is over, and its end is durable.

    Args:
        error: the failure, for people; "" if there was none.
    """

    run_id: str
    status: EndStatus
    error: str


class SessionSwitching(HookPayload, frozen=True, kw_only=True):
    """``session_before_switch``: another session is about to become the active one.

    Args:
        session_id: the active session, "" if there is none.
        to_session_id: the next one; "" for a new one.
    """

    to_session_id: str


class SessionForking(HookPayload, frozen=True, kw_only=True):
    """``session_before_fork``: a session is about to be branched.

    Args:
        leaf_id: the entry where the branch begins; "" for an empty session.
    """

    leaf_id: str


# --- answers of handlers ---------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    """Base of the answers of handlers."""


Reason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]


class ChangeInput(Answer, frozen=True):
    """``input``: accept this text instead of the client's."""

    text: Text


class HandleInput(Answer, frozen=True):
    """``input``: the extension has handled the text, so no run starts and nothing is queued. The client
    receives ``reply``.
    """

    reply: Annotated[str, Meta(max_length=EXTENSION_RESULT_BYTES_MAX)] = ""


class AddInstructions(Answer, frozen=True):
    """``before_run``: add this text to the end of the system prompt, for this run only."""

    text: Annotated[str, Meta(max_length=INSTRUCTIONS_CHARS_MAX, pattern=r"\S")]


class BlockCall(Answer, frozen=True):
    """``tool_call``: do not run the call; the model and the user receive the reason."""

    reason: Reason


class ChangeArgs(Answer, frozen=True):
    """``tool_call``: run the call with these arguments instead; the tool validates them again."""

    args: dict[str, Any]


class ChangeResult(Answer, frozen=True):
    """``tool_result``: replace the result for the model; None leaves ``is_error`` unchanged."""

    text: Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
    is_error: bool | None = None


class Cancel(Answer, frozen=True):
    """``session_before_switch``, ``session_before_fork``: refuse it; the client receives the reason."""

    reason: Reason


class HookKind(NamedTuple):
    """The argument type of a hook's handlers, and their allowed answers besides None."""

    payload: type[HookPayload]
    answers: tuple[type[Answer], ...] = ()


HOOKS: Final[dict[HookName, HookKind]] = {
    "input": HookKind(InputGiven, (ChangeInput, HandleInput)),
    "before_run": HookKind(RunBeginning, (AddInstructions,)),
    "turn_start": HookKind(TurnStarted),
    "turn_end": HookKind(TurnEnding),
    "tool_call": HookKind(ToolCalled, (BlockCall, ChangeArgs)),
    "tool_result": HookKind(ToolReturned, (ChangeResult,)),
    "run_end": HookKind(RunEnded),
    "session_before_switch": HookKind(SessionSwitching, (Cancel,)),
    "session_before_fork": HookKind(SessionForking, (Cancel,)),
}

T = TypeVar("T", bound=HookPayload)


def copy_payload(payload: T) -> T:
    """Return a copy of a payload that shares no mutable value with it."""
    if isinstance(payload, ToolCalled | ToolReturned):
        return msgspec.structs.replace(payload, args=msgspec.to_builtins(payload.args))
    return payload


def validate_answer(name: HookName, answer: object) -> Answer | None:
    """Return a validated copy of a handler's answer, independent of the extension's objects.

    Raises:
        ExtensionError: the hook has no such answer, or it exceeds a limit.
    """
    if answer is None:
        return None
    kinds = HOOKS[name].answers
    if not isinstance(answer, kinds):
        expected = " or ".join(["None", *(kind.__name__ for kind in kinds)])
        raise ExtensionError(f"returned {type(answer).__name__}; it must be {expected}")
    try:
        encoded = msgspec.json.encode(answer)
        if is_nested_too_deep(encoded):
            raise ExtensionError(f"returned what is nested deeper than {NESTING_MAX} levels")
        if isinstance(answer, ChangeArgs) and len(encoded) > TOOL_ARGUMENTS_CHARS_MAX:
            raise ExtensionError(
                f"returned more than {TOOL_ARGUMENTS_CHARS_MAX} bytes of arguments"
            )
        return decode_json(encoded, type=type(answer))
    except (TypeError, ValueError, RecursionError) as error:
        raise ExtensionError(f"returned an unusable {type(answer).__name__}: {error}") from error
