"""Turns a model server's refusal into one ``ProviderError``, in the server's words.

Servers of the same dialect still differ in how they report a failure: an object under ``error``, a bare
string, a validation list under ``detail``, plain text, a page of HTML, in an HTTP status or in the
middle of a stream. This module reads all of them. Pure: no I/O and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nousd.errors import ContextOverflow, ProviderError
from nousd.providers.http.failure_category import failure_category
from nousd.wire.codec.decoding import decode_json

ERROR_BODY_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes of an error's body that are read, and kept as ``ProviderError.raw``."""

RETRYABLE_CODES: Final = frozenset(
    {
        "api_error",
        "engine_overloaded_error",
        "internal_error",
        "internal_server_error",
        "overloaded",
        "overloaded_error",
        "rate_limit_error",
        "rate_limit_exceeded",
        "server_error",
        "service_unavailable",
        "timeout",
        "timeout_error",
    }
)
"""Codes of temporary failures that servers report without a status (in mid-stream)."""

_NEVER_RETRYABLE_CODES: Final = frozenset({"insufficient_quota"})
"""Sent with status 429, but waiting does not help."""

_OVERFLOW_CODES: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"}
)

_OVERFLOW_MESSAGES: Final = (
    r"maximum (context|prompt|model) length"  # OpenAI, vLLM, DeepSeek, OpenRouter, xAI
    r"|exceeds? the (available )?context (size|window|length)"  # llama.cpp, OpenAI
    r"|context (size|length|window) (has been |was )?exceed"
    r"|exceeds? context limit"  # Anthropic, of input and max_tokens together
    r"|exceeds? (the )?maximum context"  # Ollama
    r"|(longer|greater|larger) than the (model's )?context"  # SGLang, LM Studio
    r"|prompt (is )?too long"  # Anthropic, Ollama
    r"|input is too long"  # Bedrock
    r"|too many (input )?tokens"
    r"|input token count .{0,40}exceeds"  # Gemini
    r"|reduce the length of the (messages|prompt|input)"  # Groq
    r"|exceeded model token limit"  # Moonshot
    r"|too large for model with \d+"  # Mistral
    r"|tokens. must be <= \d+"  # TGI
)
"""Sentences of servers that send no code. Searched only if the status does not rule out an overflow."""

_NOT_OVERFLOW_STATUSES: Final = frozenset({401, 403, 404, 408, 409, 429})
_PAYLOAD_TOO_LARGE: Final = 413


class Fault(NamedTuple):
    """A failure as a server reports it; every part may be missing.

    Args:
        codes: the words under ``code`` and ``type``, in lower case.
        reasons: further codes, which Google's servers send.
    """

    message: str = ""
    codes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    status: int | None = None
    retry_after_seconds: float | None = None


def is_retryable_status(status: int) -> bool:
    """Return whether the same request may succeed later."""
    return status in (408, 409, 429) or status >= 500


def read_fault(value: Any) -> Fault:
    """Read a decoded error: an object, string or list of any shape."""
    if isinstance(value, list):
        value = value[0] if value else {}
    if isinstance(value, str):
        return Fault(value)
    if not isinstance(value, dict):
        return Fault()
    if isinstance(value.get("error"), dict | list):
        return read_fault(value["error"])
    numbers = (value.get("code"), value.get("status"))
    return Fault(
        message=_message_in(value),
        codes=tuple(
            code.lower() for key in ("code", "type") if isinstance(code := value.get(key), str)
        ),
        reasons=tuple(_reasons_in(value)),
        status=next((n for n in numbers if isinstance(n, int) and 400 <= n < 600), None),
        retry_after_seconds=_retry_delay_in(value.get("details")),
    )


def _reasons_in(value: dict[str, Any]) -> Iterator[str]:
    """Yield the name of a google.rpc.Status, and the reason in an ErrorInfo, which is more exact."""
    details = value.get("details")
    for source, key in (*((detail, "reason") for detail in _objects(details)), (value, "status")):
        if isinstance(reason := source.get(key), str):
            yield reason.lower()


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    for value in values if isinstance(values, list) else ():
        if isinstance(value, dict):
            yield value


def _retry_delay_in(details: Any) -> float | None:
    """Return the seconds of a google.rpc.RetryInfo, such as ``"34.07s"``; None without one."""
    for detail in _objects(details):
        if isinstance(delay := detail.get("retryDelay"), str):
            return _number(delay.removesuffix("s"))
    return None


def _message_in(value: dict[str, Any]) -> str:
    for key in ("message", "error", "detail", "msg", "title"):
        message = value.get(key)
        if isinstance(message, str) and message:
            return message + _upstream_message(value)
        if isinstance(message, list) and message:
            return read_fault(message).message
    return ""


def _upstream_message(value: dict[str, Any]) -> str:
    """Return the inner error: gateways report the words of the server behind them separately from their
    own general sentence.
    """
    metadata = value.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f": {raw}" if isinstance(raw, str) and raw else ""


def error_from_fault(
    fault: Fault, *, status: int | None = None, retry_after_seconds: float | None = None
) -> ProviderError:
    """Return the error for a fault; ``status`` is that of the HTTP response, if there was one."""
    if status is None:
        status = fault.status
    message = fault.message or (_status_line(status) if status else "the server reported an error")
    if _is_overflow(fault, status):
        return ContextOverflow(message, status=status)
    if status is None:
        retryable = not RETRYABLE_CODES.isdisjoint(fault.codes)
    else:
        retryable = is_retryable_status(status)
    return ProviderError(
        message,
        category=failure_category(status, fault.codes + fault.reasons, fault.message),
        status=status,
        retryable=retryable and _NEVER_RETRYABLE_CODES.isdisjoint(fault.codes),
        retry_after_seconds=(
            fault.retry_after_seconds if retry_after_seconds is None else retry_after_seconds
        ),
    )


def _is_overflow(fault: Fault, status: int | None) -> bool:
    if status in _NOT_OVERFLOW_STATUSES:
        return False
    return (
        status == _PAYLOAD_TOO_LARGE
        or not _OVERFLOW_CODES.isdisjoint(fault.codes)
        or re.search(_OVERFLOW_MESSAGES, fault.message, re.IGNORECASE) is not None
    )


def _status_line(status: int) -> str:
    from http import HTTPStatus

    try:
        return f"http {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"http {status}"


def error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, now: float
) -> ProviderError:
    """Return the error for an HTTP response that is not a success.

    Args:
        headers: looked up by lower-case name.
        body: the beginning is enough.
        now: the time in seconds since 1970, for a Retry-After that names a date.
    """
    error = error_from_fault(
        _fault_in_body(body), status=status, retry_after_seconds=retry_after_seconds(headers, now)
    )
    error.raw = body
    return error


def error_from_object(value: Any) -> ProviderError:
    """Return the error for a decoded object that a server sent instead of an answer, or within one."""
    return error_from_fault(read_fault(value))


def _fault_in_body(body: bytes) -> Fault:
    try:
        return read_fault(decode_json(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        text = " ".join(body.decode("utf-8", "replace").split())
        # A page of HTML says less than the status.
        return Fault() if text.startswith("<") else Fault(text)


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that the server asks to wait, never negative; None without a readable value."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(value: str | None) -> float | None:
    if value is None or not re.fullmatch(r"\s*\d{1,12}(\.\d{0,9})?\s*", value, re.ASCII):
        return None
    return float(value)
