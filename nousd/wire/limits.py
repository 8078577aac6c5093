"""The bounds of v1 that a client can meet, each with the error one gets past it.

One table for the code and for ``protocol/v1.md`` ("Limits"), so that neither can drift. Bounds that
no client can observe stand beside the code they bound.
"""

from __future__ import annotations

from typing import Final

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Default length of one line without its LF; ``--line-bytes-max`` changes it."""

NESTING_MAX: Final = 256
"""Depth of arrays and objects in one line. Far below the interpreter's own recursion limit, so
that the answer does not depend on how deep the caller's stack happens to be."""

TEXT_CHARS_MAX: Final = 4 * 1024 * 1024
"""Characters of one prompt, steer or follow-up."""

NAME_CHARS_MAX: Final = 256
"""Characters of an id, a name or a model name."""

TOOLS_MAX: Final = 1024
"""Names in one ``set_active_tools``."""

SUBSCRIBE_BYTES_MAX: Final = 16 * 1024
"""Length of one line on the event socket: a subscription is small."""

TYPES_MAX: Final = 64
"""Names in the ``types`` of one subscription."""

CURSOR_DIGITS_MAX: Final = 18
"""Digits of a cursor's number, so that it stays below 2**63 whatever is sent."""

KEEPALIVE_SECONDS_MIN: Final = 1
KEEPALIVE_SECONDS_MAX: Final = 3600
"""How often a subscriber can ask to be told that nothing happened."""

QUEUED_INPUTS_MAX: Final = 1024
"""Accepted inputs of one session that no turn has consumed yet."""

PAGE_ROWS_MAX: Final = 1000
"""Rows (messages, nodes, sessions, runs) of one answer; more are behind ``has_more``."""

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of entries in one ``get_messages`` answer (one entry always fits)."""

RESULT_EVENTS_MAX: Final = 10_000
"""Events in the ``result`` of a ``prompt`` with ``wait: true``; the rest is in the log."""

CONNECTIONS_MAX: Final = 512
"""Connections to one socket; a further one is answered with one error line and closed."""

PIPELINE_MAX: Final = 1024
"""Responses of one connection waiting to be read; past it we stop reading its commands."""

LIMITS: Final[dict[str, tuple[int, str]]] = {
    "line_bytes_max": (
        LINE_BYTES_MAX,
        "invalid_command: line_too_long: a line has at most 8388608 bytes",
    ),
    "nesting_max": (NESTING_MAX, "invalid_command: invalid_json: nested deeper than 256 levels"),
    "text_chars_max": (TEXT_CHARS_MAX, "invalid_payload: text is too long: at most 4194304"),
    "name_chars_max": (NAME_CHARS_MAX, "invalid_payload: <field> is too long: at most 256"),
    "tools_max": (TOOLS_MAX, "invalid_payload: tools is too long: at most 1024"),
    "queued_inputs_max": (QUEUED_INPUTS_MAX, "command_rejected: queue_full"),
    "page_rows_max": (PAGE_ROWS_MAX, "invalid_payload: limit must be at most 1000"),
    "page_bytes_max": (PAGE_BYTES_MAX, "a shorter page with has_more"),
    "result_events_max": (RESULT_EVENTS_MAX, "events_truncated in the result"),
    "connections_max": (CONNECTIONS_MAX, "command_rejected: too_many_connections"),
    "pipeline_max": (PIPELINE_MAX, "no error: reading pauses until responses are taken"),
}
"""name -> (value, what a client sees past it)."""
