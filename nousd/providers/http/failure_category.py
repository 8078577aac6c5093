"""The category of a model server's refusal: its reason, in one word that is the same for all vendors.

A vendor reports the reason as an HTTP status, a code or a sentence. The most specific one counts.
Pure: no I/O and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from nousd.errors import FailureCategory

_BY_EXACT_NAME: Final[Mapping[str, FailureCategory]] = {
    "api_key_invalid": "authentication",  # Gemini, with status 400
    "invalid_api_key": "authentication",
    "billing_error": "quota",
    "billing_hard_limit_reached": "quota",
    "insufficient_quota": "quota",  # OpenAI, with status 429
    "invalid_function_parameters": "tool_schema",
    "content_filter": "content_filter",  # Azure, with status 400
    "content_policy_violation": "content_filter",
    "model_not_found": "not_found",
}
"""Codes that are more specific than the status that comes with them."""

_BY_STATUS: Final[Mapping[int, FailureCategory]] = {
    401: "authentication",
    402: "quota",
    403: "permission_denied",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
"""Any other 4xx is an invalid request, any other 5xx a server error."""

_BY_NAME: Final[Mapping[str, FailureCategory]] = {
    "authentication_error": "authentication",
    "unauthenticated": "authentication",
    "permission_denied": "permission_denied",
    "permission_error": "permission_denied",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "resource_exhausted": "rate_limit",
    "not_found": "not_found",
    "not_found_error": "not_found",
    "failed_precondition": "invalid_request",
    "invalid_argument": "invalid_request",
    "invalid_prompt": "invalid_request",
    "invalid_request_error": "invalid_request",
    "engine_overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "overloaded_error": "overloaded",
    "service_unavailable": "overloaded",
    "unavailable": "overloaded",
    "deadline_exceeded": "timeout",
    "timeout": "timeout",
    "timeout_error": "timeout",
}
"""Codes of failures in mid-stream, which have no status. ``_BY_EXACT_NAME`` precedes this table."""

_BY_MESSAGE: Final[tuple[tuple[str, FailureCategory], ...]] = (
    (r"credit balance is too low", "quota"),  # Anthropic
    (r"API key (is )?not valid|invalid API key|incorrect API key", "authentication"),
    (r"invalid schema for function|array schema missing items", "tool_schema"),  # OpenAI
    (r"\btools\.\d+\.[\w.]*input_schema", "tool_schema"),  # Anthropic
    (r"\bfunction_?declarations\[\d+\]", "tool_schema"),  # Gemini
)
"""Sentences that vendors send with the unspecific status 400."""

_GENERAL: Final = frozenset({None, 400, 422})
"""Statuses (None: no status) with which the vendor's sentence is examined."""


def failure_category(status: int | None, names: Collection[str], message: str) -> FailureCategory:
    """Return the category of a refusal that is not about the length of its input.

    Args:
        status: HTTP status, if there was one.
        names: the vendor's codes, in lower case.
        message: the vendor's sentence.
    """
    exact = _first(_BY_EXACT_NAME, names)
    if exact is None and status in _GENERAL:
        categories = (
            kind for pattern, kind in _BY_MESSAGE if re.search(pattern, message, re.IGNORECASE)
        )
        exact = next(categories, None)
    if exact is not None:
        return exact
    if status is None:
        return _first(_BY_NAME, names) or "server_error"
    return _BY_STATUS.get(status, "invalid_request" if status < 500 else "server_error")


def _first(table: Mapping[str, FailureCategory], names: Collection[str]) -> FailureCategory | None:
    return next((table[name] for name in names if name in table), None)
