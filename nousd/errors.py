"""The one exception tree of the project, and the stable codes an error has on the wire.

    NousdError
    ├── WireError                    becomes an error response as it stands
    │   ├── InvalidCommand           the line is no command of v1
    │   ├── InvalidPayload           a field is missing, of the wrong type or past its limit
    │   │   └── InvalidCursor        ... because it is no place in the log
    │   ├── CommandRejected          understood, but not possible in the present state
    │   ├── SessionNotFound
    │   ├── SessionError             the session's records cannot be read or written
    │   ├── ProviderFailed           a waited-for run ended in an error
    │   ├── CommandTimedOut          a waited-for run outlasted the command's time limit
    │   ├── ShuttingDown             the daemon takes no more commands
    │   └── InternalError            a fault of ours
    ├── ConfigError                  a setting is unusable: one line, exit code 2
    │   └── AnotherDaemonRuns        ... because another daemon holds what it names
    ├── ServiceFailed                the user's systemd did not do what it was asked for
    ├── RuleInvalid                  a text is no rule of permissions
    ├── ModelUnknown                 no model can be meant by a name
    ├── StoreError                   the log could not be read or written
    │   ├── StoreTooNew              written by a newer version; left untouched
    │   ├── WriteFailed              a commit failed; nothing of it is in the log
    │   │   └── StoreFull            ... because the disk is full
    │   └── StoreInDoubt             a commit failed; it may turn up after a restart, whole
    ├── ProviderError                a model call failed
    │   ├── ContextOverflow          ... because its input was too long for the model
    │   └── KeyUnavailable           ... because its key could not be had; no server was asked
    ├── RunFailed                    a run cannot continue; becomes its `error` event
    │   ├── AnswerTooLong            ... because its model said more than a setting allows
    │   └── AgentFailed              ... because the agent program ended, or does not do what it should
    ├── ToolError                    a tool call failed; becomes a tool result, never ends a run
    │   ├── ToolArgumentsInvalid     ... because its arguments do not fit
    │   ├── Unanswered               ... because the user did not answer what it asked
    │   ├── ToolServerFailed         ... because the server that has the tool is gone
    │   └── FoldersSilent            ... because the disks of too many folders do not answer
    ├── ExtensionError               an extension's function failed, or gave what it must not
    │   └── ExtensionTimedOut        ... or did not return in time
    ├── NotReplayable                a stored run cannot be played again
    ├── NotCanonical                 a value has no canonical JSON, so no hash
    ├── InputNotWhole                what is kept of a model's input is missing or not what was logged
    └── ClientError                  raised by the client package
        ├── DaemonUnreachable        no process listens on the socket
        │   └── DaemonNotStarted     ... and none could be started, or may be from here
        ├── ConnectionLost           the daemon went away in mid-conversation
        ├── AnswerTimedOut           the daemon did not answer in time; what was asked may happen yet
        ├── AnswerInvalid            what came back is not v1
        └── Refused                  the daemon answered with an error

This module deliberately imports nothing: every room may depend on it. Turning an exception into
a response happens in one place only, ``nousd.daemon.error_boundary``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Return the error without its traceback and those of its causes.

    An error and the frames of its traceback refer to each other and keep everything in these frames
    alive, such as a whole run's context, until the next, rare, cycle collection. So code that has
    handled an error and continues clears its tracebacks.
    """
    link: BaseException | None = error
    done: set[int] = set()  # an error may be its own cause's context
    while link is not None and id(link) not in done:
        link.__traceback__ = None
        done.add(id(link))
        link = link.__cause__ or link.__context__
    return error


class NousdError(Exception):
    """Base of every error that this project raises on purpose."""


class WireError(NousdError):
    """An error that a client may see word for word.

    Args:
        message: for people, or the machine word where v1 puts one there (``run_in_progress``).
        cause: what lay behind it, for machines and bug reports.
        details: facts a client can act on, such as ``{"run_id": "run-..."}``.

    Source: protocol/semantics/errors.md.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(
        self, message: str, *, cause: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.details = details


class InvalidCommand(WireError):
    """The line could not be decoded, or names no command. ``request_id`` is "" if unreadable."""

    code = "invalid_command"

    def __init__(self, message: str, *, request_id: str = "", cause: str | None = None) -> None:
        super().__init__(message, cause=cause)
        self.request_id = request_id


class InvalidPayload(WireError):
    """A field is missing, has the wrong type or is past its limit; the message names it."""

    code = "invalid_payload"


class InvalidCursor(InvalidPayload):
    """A cursor is not one of this log. ``details.head`` is the newest event."""


class CommandRejected(WireError):
    """The command is well formed but cannot be done now; the message is a machine word."""

    code = "command_rejected"


class SessionNotFound(WireError):
    """No session has that id (or it was deleted)."""

    code = "session_not_found"


class SessionError(WireError):
    """The session's records could not be read or written."""

    code = "session_error"


class ProviderFailed(WireError):
    """The run that a ``prompt`` with ``wait: true`` waited for ended in an error."""

    code = "provider_error"


class CommandTimedOut(WireError):
    """The awaited run is still active after the command's time limit, and continues."""

    code = "timeout"


class ShuttingDown(WireError):
    """The daemon is stopping and takes no more commands."""

    code = "shutting_down"


class InternalError(WireError):
    """A fault of ours. The log file has the details, the client only a reference."""

    code = "internal_error"


WIRE_ERROR_CODES: dict[str, str] = {
    "invalid_command": "The line is not JSON, not an envelope, or names an unknown command.",
    "invalid_payload": "A payload field is missing, of the wrong type or past its limit.",
    "command_rejected": "Understood, but not possible now; `message` is a machine word.",
    "session_not_found": "No session has this id.",
    "session_error": "The session's records could not be read or written.",
    "provider_error": "The run that was waited for ended in an error.",
    "timeout": "The command's time limit has passed; the run that it waited for continues.",
    "shutting_down": "The daemon is stopping and takes no more commands.",
    "internal_error": "A fault of the daemon.",
}
"""Every code an error response can have, with its one-sentence meaning; none is ever removed."""


FailureCategory = Literal[
    "authentication",
    "permission_denied",
    "rate_limit",
    "quota",
    "context_length",
    "tool_schema",
    "invalid_request",
    "not_found",
    "content_filter",
    "overloaded",
    "server_error",
    "timeout",
    "unreachable",
    "not_configured",
    "agent_failed",
]

FAILURE_CATEGORIES: dict[FailureCategory, str] = {
    "authentication": "The key is missing, wrong or expired, or its command failed.",
    "permission_denied": "The key is valid, but may not do this.",
    "rate_limit": "Too many requests or tokens in a short time; it passes.",
    "quota": "The account has no credit left; waiting does not help.",
    "context_length": "The input is too long for the model.",
    "tool_schema": "The server refuses the schema of a tool.",
    "invalid_request": "The server refuses the request for another reason.",
    "not_found": "The server does not have the model, or nothing at that address.",
    "content_filter": "The server, or the model, refuses this content.",
    "overloaded": "The server is too busy, or not available at the moment.",
    "server_error": "The server failed, or its answer was broken or too long.",
    "timeout": "The server did not answer in time.",
    "unreachable": "No connection to the server, or it broke.",
    "not_configured": "The provider cannot be used as it is configured; no server was asked.",
    "agent_failed": "The agent program could not be started, has ended, or does not do what it should.",
}
"""Every reason why a model call fails, with its one-sentence meaning; none is ever removed."""


def with_category(category: str | None, words: str) -> str:
    """Return the words behind the name of their category, which is all that some clients show."""
    return f"{category}: {words}" if category else words


def without_category(category: str | None, words: str) -> str:
    """Return the words without the name of their category, if they begin with it."""
    return words.removeprefix(f"{category}: ") if category else words


class ConfigError(NousdError):
    """A setting cannot be used. The text is one line and names the setting."""


class AnotherDaemonRuns(ConfigError):
    """Another daemon holds what this one needs; the message says which, and what."""


class ServiceFailed(NousdError):
    """The user's systemd did not do what it was asked for; the message says what to do instead."""


class RuleInvalid(NousdError):
    """A text is no rule about tool calls. The message says why, and does not repeat the text."""


class ModelUnknown(NousdError):
    """A name is not a model's: it resembles a model, a provider or an alias.

    Args:
        nearest: what may have been meant.
    """

    def __init__(self, message: str, nearest: str) -> None:
        super().__init__(f"{message}; the nearest is {nearest}")
        self.nearest = nearest


class StoreError(NousdError):
    """The log could not be read or written."""


class StoreTooNew(StoreError):
    """The database was written by a newer version of nousd and was left untouched."""


class WriteFailed(StoreError):
    """A commit failed. Nothing of it is in the log, nor ever will be."""


class StoreFull(WriteFailed):
    """A commit failed because the disk, or the user's share of it, is full."""


class StoreInDoubt(StoreError):
    """A commit failed, and so did finding out what became of it.

    After a restart all of it may be in the log, or nothing. An input that is sent again under the same
    client message id is accepted once in both cases.
    """


class ProviderError(NousdError):
    """A model call failed.

    Args:
        message: the server's own words where it gave any.
        category: why it failed; otherwise that of the class. The attribute is None if that is not known,
            as of a failure in an old log.
        status: HTTP status, if there was a response.
        retryable: whether the same request may succeed later.
        retry_after_seconds: what the server asked for, if it did.
        raw: what the server sent, as it was but for the key; the beginning of what is long.
    """

    usual_category: ClassVar[FailureCategory] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        category: FailureCategory | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        raw: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.category: str | None = category or self.usual_category
        self.status = status
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.raw = raw


class ContextOverflow(ProviderError):
    """The model refused the input as too long. Compacting and asking again can help."""

    usual_category = "context_length"


class KeyUnavailable(ProviderError):
    """The key could not be had, so that no server was asked."""

    usual_category = "authentication"


class RunFailed(NousdError):
    """A run cannot continue. The attributes are those of the ``error`` event it ends with.

    Args:
        raw: what a server answered, if one did.
        hint: what can be done about it, for people.
        category: why a model call failed; the cause is given without it, and names it.
    """

    def __init__(
        self,
        code: str,
        message: str,
        cause: str = "",
        *,
        raw: bytes = b"",
        hint: str = "",
        category: str | None = None,
    ) -> None:
        cause = with_category(category, cause)
        super().__init__(f"{code}: {message}" + (f" ({cause})" if cause else ""))
        self.code = code
        self.message = message
        self.cause = cause
        self.raw = raw
        self.hint = hint
        self.category = category


class AnswerTooLong(RunFailed):
    """A model said more than a setting allows. What it said until then is kept; the message names the
    setting and its value.
    """

    def __init__(self, message: str) -> None:
        super().__init__("answer_too_long", message)


class AgentFailed(RunFailed):
    """An agent program has ended, or cannot be used any more; the next turn starts it anew.

    Args:
        cause: what happened, worded to follow the program's name, such as ``it ended``.
    """

    def __init__(
        self, cause: str, *, hint: str = "", category: FailureCategory = "agent_failed"
    ) -> None:
        super().__init__(
            "agent_failed", "the agent program failed", cause, hint=hint, category=category
        )


class ToolError(NousdError):
    """A tool call failed; the model receives the text.

    Args:
        code: the warning's code, one of those in protocol/semantics/errors.md.
    """

    code: ClassVar[str] = "tool_execution_error"


class ToolArgumentsInvalid(ToolError):
    """The arguments do not fit the tool's schema; nothing was run."""

    code = "tool_validation_error"


class Unanswered(ToolError):
    """The user did not answer, or no client could ask."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the user did not answer: {reason}")


class ToolServerFailed(ToolError):
    """The MCP server that has the tool cannot be reached, or broke off; its other calls fail too."""

    code = "mcp_server_failed"


class FoldersSilent(ToolError):
    """Too many looks at folders wait for disks that do not answer; this one was not begun."""


class ExtensionError(NousdError):
    """An extension's function raised, took too long or returned what cannot be used."""


class ExtensionTimedOut(ExtensionError):
    """An extension's function did not return in time."""


class NotCanonical(NousdError):
    """A value has no canonical JSON (RFC 8785), such as a number that no double holds."""


class InputNotWhole(NousdError):
    """A model's input cannot be put together again: a part is missing, or is not what was logged."""


class NotReplayable(NousdError):
    """A stored run cannot be played again, or its recording be used; the text says why."""


class ClientError(NousdError):
    """Base of the errors of the client package."""


class DaemonUnreachable(ClientError):
    """Nobody listens on the socket."""


class DaemonNotStarted(DaemonUnreachable):
    """No process listens on the socket, and none could be started, or may be from here; the message says
    why, and what would help.
    """


class ConnectionLost(ClientError):
    """The connection ended before the answer came."""


class AnswerTimedOut(ClientError):
    """No answer came in time. Whether the daemon did what was asked is not known."""


class AnswerInvalid(ClientError):
    """A line from the daemon is not v1; the connection can no longer be used."""


class Refused(ClientError):
    """The daemon answered a request with an error.

    Args:
        code: one of ``WIRE_ERROR_CODES``.
        message: the error's own words.
    """

    def __init__(
        self,
        code: str,
        message: str,
        cause: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}" + (f" ({cause})" if cause else ""))
        self.code = code
        self.message = message
        self.cause = cause
        self.details = details or {}
