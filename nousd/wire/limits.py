"""The bounds of v1 that a client can reach.

``nousd.wire.limit_table`` has the consequence of exceeding each. Bounds that no client can observe are
in the modules that enforce them.
"""

from __future__ import annotations

from typing import Final

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Default length of one line without its LF; ``--line-bytes-max`` changes it."""

LONG_LINES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the long lines of all connections together, whether incomplete or being handled."""

LONG_LINE_BYTES: Final = 64 * 1024
"""A line up to this length takes nothing from ``LONG_LINES_BYTES_MAX``."""

NESTING_MAX: Final = 256
"""Depth of arrays and objects in one line. Far below the interpreter's own recursion limit, so
that the result does not depend on the depth of the caller's stack."""

TEXT_CHARS_MAX: Final = 4 * 1024 * 1024
"""Characters of one prompt, steer or follow-up."""

LONG_TEXT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes (UTF-8) of a text that a client sends as an artifact."""

NAME_CHARS_MAX: Final = 256
"""Characters of an id, a name or a model name."""

PATH_CHARS_MAX: Final = 4096
"""Characters of a path, as many as the operating system accepts."""

EVENT_TEXT_BYTES_MAX: Final = 8 * 1024
"""Bytes (UTF-8) of a text in an event; longer texts become artifacts, as do arguments whose JSON is
longer. The ``message_end`` of a model's answer has the whole text, whatever its length."""

APPENDED_LOOKED_AT_MAX: Final = 32
"""Messages at the end of a transcript that ``reuse_appended`` searches for a prompt's text."""

ATTACHMENTS_MAX: Final = 16
"""Attachments of one prompt, steer or follow-up."""

ATTACHMENT_BYTES_MAX: Final = 20 * 1024 * 1024
"""Bytes of one attachment."""

ATTACHMENTS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the attachments of one input together: no model accepts more in one request."""

TOOLS_MAX: Final = 1024
"""Names in one ``set_active_tools``."""

MCP_SERVERS_MAX: Final = 64
"""MCP servers in the settings; clients can add as many again."""

MCP_SERVERS_OF_SESSION_MAX: Final = 16
"""MCP servers that belong to one session."""

MCP_SERVERS_OF_SESSIONS_MAX: Final = 128
"""MCP servers that belong to sessions, all together."""

MCP_VALUES_MAX: Final = 64
"""Arguments of an MCP server's command, and entries of each of its tables."""

MCP_VALUE_CHARS_MAX: Final = 4096
"""Characters of one argument or entry, and of a URL."""

MCP_TIMEOUT_MS_MAX: Final = 3_600_000
"""Milliseconds that a call of an MCP server's tool may take."""

MCP_TTL_SECONDS_MAX: Final = 86_400
"""Largest ``ttl_seconds`` of a session's own MCP server; adding the server again restarts the time."""

MCP_TOOLS_MAX: Final = 256
"""Tools of one MCP server that are offered."""

MCP_SCHEMA_BYTES_MAX: Final = 64 * 1024
"""Bytes of the JSON Schema of the arguments of one tool of an MCP server."""

MCP_DESCRIPTION_CHARS_MAX: Final = 8192
"""Characters of the description of one tool of an MCP server."""

MCP_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one message of an MCP server."""

MCP_MESSAGE_VALUES_MAX: Final = 50_000
"""Numbers, texts, lists and objects in one message, nested ones included. Each takes time."""

MODELS_LISTED_MAX: Final = 2000
"""Models in one answer to ``list_models``."""

SUBSCRIBE_BYTES_MAX: Final = 16 * 1024
"""Length of one line on the event socket: a subscription is small."""

HTTP_CONNECTIONS_MAX: Final = 2048
"""Connections to the HTTP bridge at once."""

HTTP_STRANGERS_MAX: Final = 512
"""Connections among them that have not authenticated by a token or session; the others are reserved for
those that have.
"""

HTTP_HEADERS_BYTES_MAX: Final = 32 * 1024
"""Bytes of the request line and all headers of one HTTP request."""

HTTP_BODY_BYTES_MAX: Final = 10 * 1024 * 1024
"""Bytes of the body of one HTTP request."""

HTTP_BODY_SECONDS: Final = 30
"""Seconds that an HTTP client may take to send a body."""

HTTP_PROMPT_SECONDS: Final = 615
"""Seconds that a `prompt_sync` waits for the end of its run; the run continues afterwards."""

HTTP_IDLE_SECONDS: Final = 30
"""Seconds that an HTTP client may take from connecting, or from its last answer, to a whole request
head."""

HTTP_KEEPALIVE_SECONDS: Final = 10
"""Seconds of silence after which an event stream sends a keep-alive comment."""

HTTP_WRITE_SECONDS: Final = 30
"""Seconds that an HTTP client may take to read each mebibyte before its connection is closed."""


TYPES_MAX: Final = 64
"""Names in the ``types`` of one subscription."""

CURSOR_DIGITS_MAX: Final = 18
"""Digits of a cursor's number, so that any number that a client sends is below 2**63."""

KEEPALIVE_SECONDS_MIN: Final = 1
KEEPALIVE_SECONDS_MAX: Final = 3600
"""Bounds of the interval of keep-alives that a subscriber can request."""

QUEUED_INPUTS_MAX: Final = 1024
"""Pending inputs of one session."""

QUEUED_CHARS_MAX: Final = 16 * 1024 * 1024
"""Characters of those inputs together, because ``abort`` returns all of them. For a text that is an
artifact, its bytes count."""

PAGE_ROWS_MAX: Final = 1000
"""Rows (messages, nodes, sessions, runs) of one response; ``has_more`` is true if there are more."""

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of entries or events in one response (one always fits)."""

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one response without its LF: far above a page, because one text can be longer than a page."""

ENTRY_BYTES_MAX: Final = RESPONSE_BYTES_MAX // 2
"""Bytes of the JSON of one entry or input in a response; of a longer one, only the beginning is sent."""

RESULT_EVENTS_MAX: Final = 10_000
"""Events in the ``result`` of a ``prompt`` with ``wait: true``; the rest is in the log."""

RESULT_EVENTS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the JSON of those events."""

CONNECTIONS_MAX: Final = 512
"""Connections to one socket; an additional one receives an error line and is closed."""

PIPELINE_MAX: Final = 4096
"""Unread responses of one connection; beyond this, the daemon stops reading its commands."""

PIPELINE_BYTES_MAX: Final = 256 * 1024
"""Bytes of those responses. A single response may be larger."""

EXTENSION_RESULT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the result of an extension's command, which has to fit into one line."""

FOUND_SESSIONS_MAX: Final = 100
"""Sessions in one answer to ``search_sessions``."""

SNIPPET_BYTES_MAX: Final = 80
"""Bytes of an entry's text in ``get_tree``."""

ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Default bytes (UTF-8) of the text, reasoning and tool call arguments of one model call;
``--answer-bytes-max`` changes it."""

RUN_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The same for all model calls of one run together, including those that write a summary;
``--run-answer-bytes-max`` changes it."""

UNSTREAMED_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a model's answer that is not streamed, as the server sends it."""

DELTA_BYTES_MAX: Final = 8 * 1024
"""Bytes of one delta in its line, escapes included, so that every such event is small."""

TOOL_CALLS_MAX: Final = 128
"""Tool calls in one answer of a model."""

TOOL_ARGUMENTS_CHARS_MAX: Final = 4 * 1024 * 1024
"""Characters of the arguments of all calls in one answer together."""

TOOL_RESULT_LINES_MAX: Final = 2000
"""Lines of a tool's result that the model receives."""

TOOL_RESULT_BYTES_MAX: Final = 50 * 1024
"""Bytes (UTF-8) of a tool's result that the model receives, without the daemon's notes."""

TOOL_PREVIEW_CHARS_MAX: Final = 8 * 1024
"""Characters of a result in ``tool_execution_end``; ``text_ref`` names the whole text."""

ARTIFACT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one artifact. Of longer tool output, the beginning and the end are kept."""

ARTIFACT_RANGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of an artifact in one answer."""

UPLOADS_MAX: Final = 16
"""Unfinished uploads of all clients together."""

UPLOADS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes of those uploads together; they are kept in files."""

TOOL_UPDATES_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one call's output that are streamed while it runs."""

OMITTED_MAX: Final = 100
"""Entries in ``omitted`` of one ``model_input``; ``omitted_count`` counts all of them."""

INSTRUCTIONS_FILE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one instructions file (``AGENTS.md``) that models receive."""

INSTRUCTIONS_BYTES_MAX: Final = 128 * 1024
"""Bytes of all instructions files together."""

RULES_MAX: Final = 256
"""Rules about tool calls in one list of a file."""

PROJECT_FILE_BYTES_MAX: Final = 256 * 1024
"""Bytes of a project's settings file."""

TRUSTED_FILES_MAX: Final = 1024
"""Files of projects that the user trusts."""

RULE_CHARS_MAX: Final = 4096
"""Characters of one rule."""

TASKS_PER_CALL_MAX: Final = 16
"""Tasks in one call of the tool ``task``."""

TASKS_PARALLEL_MAX: Final = 8
"""Tasks of one call that run at the same time; the others wait."""

TASK_DEPTH_MAX: Final = 3
"""Depth to which tasks may start tasks."""

TASKS_PER_ROOT_MAX: Final = 64
"""Tasks that one run may start, those of its tasks included."""

AGENT_FILE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one agent file."""

AGENT_PROMPT_CHARS_MAX: Final = 32 * 1024
"""Characters of a worker's prompt."""

AGENTS_MAX: Final = 64
"""Agent files that are read in one folder."""

WORKER_RULES_MAX: Final = 256
"""Rules in one list of a worker."""

CLIENT_CALLS_MAX: Final = 32
"""Tool calls of clients that are in progress at once, in all sessions."""

WAITING_REQUESTS_MAX: Final = 1024
"""Tool calls of all sessions that wait for approval at once; and as many questions of tools."""

GRANTED_RULES_MAX: Final = 256
"""Rules that the user granted for one session; and as many permanent ones, in all workspaces."""

REASON_CHARS_MAX: Final = 4096
"""Characters of a client's reason, which the model receives."""

OUTSIDE_PLACES_MAX: Final = 16
"""Paths outside the workspace for which one call may request approval under an override."""

OVERRIDES_MAX: Final = 1024
"""Sessions whose workspace is overridden at once."""

OVERRIDE_SECONDS_MIN: Final = 30
"""Minimum seconds of an override; 0 ends one."""

OVERRIDE_SECONDS_MAX: Final = 24 * 60 * 60
"""Maximum seconds of an override."""

UNDO_SECONDS_MAX: Final = 24 * 60 * 60
"""Maximum seconds for which a deletion can be undone."""

EXPIRED_LISTED_MAX: Final = 100
"""Expired requests in one answer to ``list_permissions``: the newest."""

ANSWERS_MAX: Final = 4
"""Questions in one call of ``question``, and therefore answers."""

CHOICES_MAX: Final = 16
"""Options of one question, and therefore choices of one answer."""

ANSWER_CHARS_MAX: Final = 4096
"""Characters of a free-text answer."""

PATCH_CHARS_MAX: Final = 2 * 1024 * 1024
"""Characters of one patch."""

PATCH_FILES_MAX: Final = 500
"""Files in one patch."""

PATCHED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of all files of one patch, old and new contents together, which are held in memory."""

WEB_PAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Bytes of a page that ``web_fetch`` reads, both as received and decompressed."""

WEB_REDIRECTS_MAX: Final = 5
"""Redirects that one ``web_fetch`` follows."""

TODOS_MAX: Final = 100
"""Items of a session's todo list."""

TODO_CHARS_MAX: Final = 500
"""Characters of one todo item."""

SESSION_RULES_MAX: Final = 64
"""Rules in one list of a session's own rules."""

SESSION_RULES_CHARS_MAX: Final = 16 * 1024
"""Characters of these rules together, in all lists."""

TITLE_CHARS_MAX: Final = 80
"""Characters of the title that a session's first message gives it."""

SOURCE_CHARS_MAX: Final = 64
"""Characters of the ``source`` of a session."""

SOURCE_METADATA_BYTES_MAX: Final = 4096
"""Bytes of the JSON of a session's ``source_metadata``, which is in every row of a list."""

TEMPERATURE_MAX: Final = 2
TOP_P_MAX: Final = 1
"""Bounds of ``sampling``; a provider may allow less."""

OUTPUT_TOKENS_MAX: Final = 10_000_000
"""Tokens of one answer that ``sampling`` may allow; no model produces more."""

SUMMARY_CHARS_MAX: Final = 16_000
"""Characters of a summary: a few pages, small compared to any context window."""

PENDING_COUNTED_MAX: Final = 10_000
"""Pending inputs that are counted for ``get_metrics``, so that the command stays cheap."""
