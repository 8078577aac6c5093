"""The one exception tree of the project, and the stable error codes of the wire.

    NousdError
    ├── WireError                    becomes an error response unchanged
    │   ├── InvalidCommand           the line is not a command of v1
    │   ├── InvalidPayload           a field is missing, of the wrong type or past its limit
    │   │   └── InvalidCursor        ... because the cursor is not in the log
    │   ├── CommandRejected          understood, but not possible in the current state
    │   ├── SessionNotFound
    │   ├── SessionError             the session's records cannot be read or written
    │   ├── ProviderFailed           the run that a command waited for ended in an error
    │   ├── CommandTimedOut          the run that a command waited for outlasted its time limit
    │   ├── ShuttingDown             the daemon takes no more commands
    │   └── InternalError            a bug in nousd
    ├── ConfigError                  a setting is unusable: one line, exit code 2
    │   └── AnotherDaemonRuns        ... because another daemon uses the path that it names
    ├── ServiceFailed                the user's systemd did not carry out a request
    ├── RuleInvalid                  a text is not a permission rule
    ├── ModelUnknown                 a name is not the name of a model
    ├── StoreError                   the log could not be read or written
    │   ├── StoreTooNew              written by a newer version; left untouched
    │   ├── WriteFailed              a commit failed; none of it is in the log
    │   │   └── StoreFull            ... because the disk is full
    │   └── StoreInDoubt             a commit failed; after a restart, all of it may be in the log
    ├── ProviderError                a model call failed
    │   ├── ContextOverflow          ... because its input was too long for the model
    │   └── KeyUnavailable           ... because its key is unavailable; no request was sent
    ├── RunFailed                    a run cannot continue; becomes its `error` event
    │   ├── AnswerTooLong            ... because the model's answer exceeded the limit of a setting
    │   └── AgentFailed              ... because the agent program ended or misbehaved
    ├── ToolError                    a tool call failed; becomes a tool result, never ends a run
    │   ├── ToolArgumentsInvalid     ... because its arguments do not fit the schema
    │   ├── Unanswered               ... because the user did not answer its question
    │   ├── ToolServerFailed         ... because the MCP server of the tool failed
    │   └── FoldersSilent            ... because too many directory reads wait for unresponsive disks
    ├── ExtensionError               an extension's function failed, or returned an invalid value
    │   └── ExtensionTimedOut        ... or did not return in time
    ├── NotReplayable                a stored run cannot be replayed
    ├── NotCanonical                 a value has no canonical JSON, so no hash
    ├── InputNotWhole                a stored model input is incomplete, or differs from the logged one
    └── ClientError                  raised by the client package
        ├── DaemonUnreachable        no process listens on the socket
        │   └── DaemonNotStarted     ... and none could be started, or may be started from here
        ├── ConnectionLost           the connection ended before the response
        ├── AnswerTimedOut           no response in time; the request may still take effect
        ├── AnswerInvalid            the response is not valid v1
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
    """An error that a client may receive unchanged.

    Args:
        message: for people, or the machine word where v1 defines one (``run_in_progress``).
        cause: the underlying cause, for machines and bug reports.
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
    """The line could not be decoded, or names no command. ``request_id`` is "" if it is unreadable."""

    code = "invalid_command"

    def __init__(self, message: str, *, request_id: str = "", cause: str | None = None) -> None:
        super().__init__(message, cause=cause)
        self.request_id = request_id


class InvalidPayload(WireError):
    """A field is missing, has the wrong type or is past its limit; the message names it."""

    code = "invalid_payload"


class InvalidCursor(InvalidPayload):
    """A cursor does not belong to this log. ``details.head`` is the number of the newest event."""


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
    """A bug in nousd. The log file has the details; the client receives only a reference."""

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
    """Return a text with its category in front, because some clients show nothing else."""
    return f"{category}: {words}" if category else words


def without_category(category: str | None, words: str) -> str:
    """Return a text without its category in front."""
    return words.removeprefix(f"{category}: ") if category else words


class ConfigError(NousdError):
    """A setting cannot be used. The message is one line and names the setting."""


class AnotherDaemonRuns(ConfigError):
    """Another daemon uses a path that this one needs; the message names both."""


class ServiceFailed(NousdError):
    """The user's systemd did not carry out a request; the message says what to do instead."""


class RuleInvalid(NousdError):
    """A text is not a rule about tool calls. The message gives the reason without repeating the text."""


class ModelUnknown(NousdError):
    """A name is not the name of a model, but resembles that of a model, a provider or an alias.

    Args:
        nearest: the name that may have been meant.
    """

    def __init__(self, message: str, nearest: str) -> None:
        super().__init__(f"{message}; the nearest is {nearest}")
        self.nearest = nearest


class StoreError(NousdError):
    """The log could not be read or written."""


class StoreTooNew(StoreError):
    """The database was written by a newer version of nousd and was left untouched."""


class WriteFailed(StoreError):
    """A commit failed. None of it is in the log, and none of it ever will be."""


class StoreFull(WriteFailed):
    """A commit failed because the disk, or the user's quota, is full."""


class StoreInDoubt(StoreError):
    """A commit failed, and its outcome could not be determined.

    After a restart, the log contains either all of it or none. An input that is sent again with the same
    client message id is accepted once in both cases.
    """


class ProviderError(NousdError):
    """A model call failed.

    Args:
        message: the server's own message, if it sent one.
        category: the reason; by default that of the class. The attribute is None if the reason is
            unknown, as for a failure in an old log.
        status: HTTP status, if there was a response.
        retryable: whether the same request may succeed later.
        retry_after_seconds: the delay that the server asked for, if any.
        raw: the server's response without the key; only the beginning of a long one.
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
    """The model rejected the input as too long. Compaction and another call can help."""

    usual_category = "context_length"


class KeyUnavailable(ProviderError):
    """The key is unavailable, so no request was sent."""

    usual_category = "authentication"


class RunFailed(NousdError):
    """A run cannot continue. The attributes are those of the ``error`` event that ends it.

    Args:
        raw: the response of a server, if there was one.
        hint: what the user can do about it.
        category: why a model call failed; the attribute ``cause`` begins with it.
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
    """The model's answer exceeded the limit of a setting. The answer up to the limit is kept; the
    message names the setting and its value.
    """

    def __init__(self, message: str) -> None:
        super().__init__("answer_too_long", message)


class AgentFailed(RunFailed):
    """An agent program has ended, or cannot be used any more; the next turn restarts it.

    Args:
        cause: the failure, worded to follow the program's name, such as ``it ended``.
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
    """The user did not answer, or no client could ask the user."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the user did not answer: {reason}")


class ToolServerFailed(ToolError):
    """The MCP server of the tool is unreachable, or ended; its other calls fail too."""

    code = "mcp_server_failed"


class FoldersSilent(ToolError):
    """Too many directory reads wait for disks that do not respond; this one was not started."""


class ExtensionError(NousdError):
    """An extension's function raised an error, took too long or returned an unusable value."""


class ExtensionTimedOut(ExtensionError):
    """An extension's function did not return in time."""


class NotCanonical(NousdError):
    """A value has no canonical JSON (RFC 8785), such as a number that no double represents."""


class InputNotWhole(NousdError):
    """A model's input cannot be rebuilt: a part is missing, or differs from the logged one."""


class NotReplayable(NousdError):
    """A stored run cannot be replayed, or its recording cannot be used; the message gives the reason."""


class ClientError(NousdError):
    """Base of the errors of the client package."""


class DaemonUnreachable(ClientError):
    """No process listens on the socket."""


class DaemonNotStarted(DaemonUnreachable):
    """No process listens on the socket, and none could be started, or may be started from here; the
    message gives the reason and a remedy.
    """


class ConnectionLost(ClientError):
    """The connection ended before the response arrived."""


class AnswerTimedOut(ClientError):
    """No response arrived in time. The request may or may not take effect."""


class AnswerInvalid(ClientError):
    """A line from the daemon is not valid v1; the connection can no longer be used."""


class Refused(ClientError):
    """The daemon answered a request with an error.

    Args:
        code: one of ``WIRE_ERROR_CODES``.
        message: the message of the error response.
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
