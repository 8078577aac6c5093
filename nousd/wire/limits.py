"""The bounds of v1 that a client can meet, each with the error one gets past it.

One table for the code and for ``protocol/v1.md`` ("Limits"), so that neither can drift. Bounds that
no client can observe stand beside the code they bound.
"""

from __future__ import annotations

from typing import Final

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Default length of one line without its LF; ``--line-bytes-max`` changes it."""

LONG_LINES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of long lines, half-written or being worked on, of all connections together."""

LONG_LINE_BYTES: Final = 64 * 1024
"""What a line has of its own before it takes anything of ``LONG_LINES_BYTES_MAX``."""

NESTING_MAX: Final = 256
"""Depth of arrays and objects in one line. Far below the interpreter's own recursion limit, so
that the answer does not depend on how deep the caller's stack happens to be."""

TEXT_CHARS_MAX: Final = 4 * 1024 * 1024
"""Characters of one prompt, steer or follow-up."""

NAME_CHARS_MAX: Final = 256
"""Characters of an id, a name or a model name."""

PATH_CHARS_MAX: Final = 4096
"""Characters of a path: what the system takes."""

EVENT_TEXT_BYTES_MAX: Final = 8 * 1024
"""Bytes (UTF-8) of a text that an event repeats; a longer one is an artifact, and so are arguments whose
JSON is longer. An answer of a model stands whole in its ``message_end``."""

APPENDED_LOOKED_AT_MAX: Final = 32
"""Messages at the end of a transcript among which ``reuse_appended`` looks for a prompt's text."""

ATTACHMENTS_MAX: Final = 16
"""Attachments of one prompt, steer or follow-up."""

ATTACHMENT_BYTES_MAX: Final = 20 * 1024 * 1024
"""Bytes of one attachment."""

ATTACHMENTS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the attachments of one input together: no model takes more in one request."""

TOOLS_MAX: Final = 1024
"""Names in one ``set_active_tools``."""

MCP_SERVERS_MAX: Final = 64
"""MCP servers of the settings, and as many that were added since."""

MCP_VALUES_MAX: Final = 64
"""Words of an MCP server's command, and entries of each of its tables."""

MCP_VALUE_CHARS_MAX: Final = 4096
"""Characters of one of them, and of a URL."""

MCP_TIMEOUT_MS_MAX: Final = 3_600_000
"""The longest that a call of an MCP server's tool may take."""

MCP_TOOLS_MAX: Final = 256
"""Tools of one MCP server that are offered."""

MCP_SCHEMA_BYTES_MAX: Final = 64 * 1024
"""JSON of the arguments that one tool of an MCP server takes."""

MCP_DESCRIPTION_CHARS_MAX: Final = 8192
"""Characters of what an MCP server says of one tool."""

MCP_MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""One message of an MCP server."""

MCP_MESSAGE_VALUES_MAX: Final = 50_000
"""Values in one: numbers, texts, lists, objects and what is in them. Time is spent on each."""

MODELS_LISTED_MAX: Final = 2000
"""Models in one answer to ``list_models``."""

SUBSCRIBE_BYTES_MAX: Final = 16 * 1024
"""Length of one line on the event socket: a subscription is small."""

HTTP_CONNECTIONS_MAX: Final = 2048
"""Connections to the HTTP bridge at a time."""

HTTP_HEADERS_BYTES_MAX: Final = 32 * 1024
"""The request line and all headers of one HTTP request."""

HTTP_BODY_BYTES_MAX: Final = 10 * 1024 * 1024
"""The body of one HTTP request."""

HTTP_BODY_SECONDS: Final = 30
"""How long an HTTP client may take to send a body."""

HTTP_PROMPT_SECONDS: Final = 615
"""How long a `prompt_sync` waits for the end of its run; the run goes on after it."""

HTTP_IDLE_SECONDS: Final = 30
"""How long an HTTP client may take from its connection, or its last answer, to a whole request head."""

HTTP_KEEPALIVE_SECONDS: Final = 10
"""How long an event stream is silent at most: then a keep-alive comment is sent."""

HTTP_WRITE_SECONDS: Final = 30
"""How long an HTTP client may take nothing of what is written to it, before it is cut off."""


TYPES_MAX: Final = 64
"""Names in the ``types`` of one subscription."""

CURSOR_DIGITS_MAX: Final = 18
"""Digits of a cursor's number, so that it stays below 2**63 whatever is sent."""

KEEPALIVE_SECONDS_MIN: Final = 1
KEEPALIVE_SECONDS_MAX: Final = 3600
"""How often a subscriber can ask to be told that nothing happened."""

QUEUED_INPUTS_MAX: Final = 1024
"""Accepted inputs of one session that no turn has consumed yet."""

QUEUED_CHARS_MAX: Final = 16 * 1024 * 1024
"""Characters of those inputs together: ``abort`` returns all of them. A text that is an artifact counts
with its bytes."""

PAGE_ROWS_MAX: Final = 1000
"""Rows (messages, nodes, sessions, runs) of one answer; more are behind ``has_more``."""

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of entries or events in one answer (one always fits)."""

RESULT_EVENTS_MAX: Final = 10_000
"""Events in the ``result`` of a ``prompt`` with ``wait: true``; the rest is in the log."""

CONNECTIONS_MAX: Final = 512
"""Connections to one socket; a further one is answered with one error line and closed."""

PIPELINE_MAX: Final = 4096
"""Responses of one connection waiting to be read; past it we stop reading its commands."""

PIPELINE_BYTES_MAX: Final = 256 * 1024
"""Bytes of those responses. One response may be larger; then it waits alone."""

EXTENSION_RESULT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of what an extension's command answers: it has to fit into one line."""

SNIPPET_BYTES_MAX: Final = 80
"""Bytes of an entry's text in ``get_tree``."""

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a model's answer that is not streamed."""

DELTA_BYTES_MAX: Final = 8 * 1024
"""Bytes of one delta as it stands in its line, escapes included, so that every such event is small."""

TOOL_CALLS_MAX: Final = 128
"""Calls that a model asks for in one answer."""

TOOL_ARGUMENTS_CHARS_MAX: Final = 4 * 1024 * 1024
"""Characters of the arguments of all calls in one answer together."""

TOOL_RESULT_LINES_MAX: Final = 2000
"""Lines of a tool's result that the model is told."""

TOOL_RESULT_BYTES_MAX: Final = 50 * 1024
"""Bytes (UTF-8) of a tool's result that the model is told, its notes not counted."""

TOOL_PREVIEW_CHARS_MAX: Final = 8 * 1024
"""Characters of a result that ``tool_execution_end`` repeats; ``text_ref`` names the whole."""

ARTIFACT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one artifact. Of a tool's output that is longer the beginning and the end are kept."""

ARTIFACT_RANGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of an artifact in one answer."""

UPLOADS_MAX: Final = 16
"""Uploads that clients have begun and not ended, of all clients together."""

UPLOADS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes of those uploads together; they lie in files."""

TOOL_UPDATES_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one call's output that are streamed while it runs."""

OMITTED_MAX: Final = 100
"""Entries that one ``model_input`` names as left out; all of them are counted."""

INSTRUCTIONS_FILE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one file of instructions (``AGENTS.md``) that models are given."""

INSTRUCTIONS_BYTES_MAX: Final = 128 * 1024
"""Bytes of all of them together."""

RULES_MAX: Final = 256
"""Rules about tool calls in one list of a file."""

PROJECT_FILE_BYTES_MAX: Final = 256 * 1024
"""Bytes of a project's own settings."""

TRUSTED_FILES_MAX: Final = 1024
"""Files of projects that the user trusts."""

RULE_CHARS_MAX: Final = 4096
"""Characters of one rule."""

TASKS_PER_CALL_MAX: Final = 16
"""Tasks in one call of the tool ``task``."""

TASKS_PARALLEL_MAX: Final = 8
"""Tasks of one call that run at the same time; the others wait."""

TASK_DEPTH_MAX: Final = 3
"""How deep tasks may start tasks."""

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
"""Tool calls that clients make themselves and that are under way at once, of all sessions."""

WAITING_REQUESTS_MAX: Final = 1024
"""Tool calls that wait for permission at once, of all sessions; and as many questions of tools."""

GRANTED_RULES_MAX: Final = 256
"""Rules by which the user allows calls in one session; and as many for every session."""

REASON_CHARS_MAX: Final = 4096
"""Characters of what a client gives as its reason: a model is told it."""

OUTSIDE_PLACES_MAX: Final = 16
"""Places outside of a workspace that one call may ask about while an override lets it."""

OVERRIDES_MAX: Final = 1024
"""Sessions whose workspace is overridden at once."""

OVERRIDE_SECONDS_MIN: Final = 30
"""Seconds that an override lasts at least, unless it is to end at once."""

OVERRIDE_SECONDS_MAX: Final = 24 * 60 * 60
"""Seconds that an override lasts at most."""

EXPIRED_LISTED_MAX: Final = 100
"""Requests that nobody answered in one answer to ``list_permissions``: the newest."""

ANSWERS_MAX: Final = 4
"""Questions in one call of ``question``, and so answers."""

CHOICES_MAX: Final = 16
"""Options of one question, and so of what is chosen."""

ANSWER_CHARS_MAX: Final = 4096
"""Characters of an answer in the user's own words."""

PATCH_CHARS_MAX: Final = 2 * 1024 * 1024
"""Characters of one patch."""

PATCH_FILES_MAX: Final = 500
"""Files in one patch."""

PATCHED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of all files of one patch, as they are and as they will be: they are held in memory."""

WEB_PAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Bytes of a page that ``web_fetch`` reads, decompressed; and of what it receives for it."""

WEB_REDIRECTS_MAX: Final = 5
"""Redirects that one ``web_fetch`` follows."""

TODOS_MAX: Final = 100
"""Items of a session's list of things to do."""

TODO_CHARS_MAX: Final = 500
"""Characters of one item."""

SESSION_RULES_MAX: Final = 64
"""Rules in one list of a session's own."""

SESSION_RULES_CHARS_MAX: Final = 16 * 1024
"""Characters of them together, of all lists."""

SOURCE_CHARS_MAX: Final = 64
"""Characters of the word that says where a session comes from."""

SOURCE_METADATA_BYTES_MAX: Final = 4096
"""JSON of what its maker keeps with a session: it stands in every row of a list."""

TEMPERATURE_MAX: Final = 2
TOP_P_MAX: Final = 1
"""What ``sampling`` may ask for; a provider may allow less."""

OUTPUT_TOKENS_MAX: Final = 10_000_000
"""Tokens of one answer that ``sampling`` may allow: more than any model says."""

SUMMARY_CHARS_MAX: Final = 16_000
"""Characters of a summary: a few pages, enough to go on from, small beside every context window."""

PENDING_COUNTED_MAX: Final = 10_000
"""Pending inputs that are counted for ``get_metrics``, so that asking for it is never felt."""

LIMITS: Final[dict[str, tuple[int, str]]] = {
    "line_bytes_max": (
        LINE_BYTES_MAX,
        "invalid_command: line_too_long: a line has at most 8388608 bytes",
    ),
    "long_lines_bytes_max": (LONG_LINES_BYTES_MAX, "command_rejected: no_room_for_line"),
    "subscribe_bytes_max": (
        SUBSCRIBE_BYTES_MAX,
        "invalid_command: line_too_long: a line on this socket has at most 16384 bytes",
    ),
    "nesting_max": (NESTING_MAX, "invalid_command: invalid_json: nested deeper than 256 levels"),
    "text_chars_max": (TEXT_CHARS_MAX, "invalid_payload: text is too long: at most 4194304"),
    "name_chars_max": (NAME_CHARS_MAX, "invalid_payload: <field> is too long: at most 256"),
    "path_chars_max": (PATH_CHARS_MAX, "invalid_payload: <field> is too long: at most 4096"),
    "event_text_bytes_max": (
        EVENT_TEXT_BYTES_MAX,
        "the beginning; `text_ref` names the artifact with the whole",
    ),
    "appended_looked_at_max": (
        APPENDED_LOOKED_AT_MAX,
        "an older message is not found: its text is said again",
    ),
    "attachments_max": (
        ATTACHMENTS_MAX,
        "invalid_payload: attachments is too long: at most 16",
    ),
    "attachment_bytes_max": (
        ATTACHMENT_BYTES_MAX,
        "invalid_payload: attachments[<index>] is too large: at most 20971520 bytes",
    ),
    "attachments_bytes_max": (
        ATTACHMENTS_BYTES_MAX,
        "invalid_payload: attachments is too large: at most 33554432 bytes",
    ),
    "tools_max": (TOOLS_MAX, "invalid_payload: tools is too long: at most 1024"),
    "mcp_servers_max": (MCP_SERVERS_MAX, "command_rejected: too_many_mcp_servers"),
    "mcp_values_max": (MCP_VALUES_MAX, "invalid_payload: command is too long: at most 64"),
    "mcp_value_chars_max": (
        MCP_VALUE_CHARS_MAX,
        "invalid_payload: url is too long: at most 4096",
    ),
    "mcp_timeout_ms_max": (
        MCP_TIMEOUT_MS_MAX,
        "invalid_payload: timeout_ms must be at most 3600000",
    ),
    "mcp_tools_max": (MCP_TOOLS_MAX, "a tool that is named in `left_out` of `mcp_server_status`"),
    "mcp_schema_bytes_max": (
        MCP_SCHEMA_BYTES_MAX,
        "a tool that is named in `left_out` of `mcp_server_status`",
    ),
    "mcp_description_chars_max": (MCP_DESCRIPTION_CHARS_MAX, "a description that is cut"),
    "mcp_message_bytes_max": (
        MCP_MESSAGE_BYTES_MAX,
        "a warning `mcp_server_failed`; the server is started again",
    ),
    "mcp_message_values_max": (
        MCP_MESSAGE_VALUES_MAX,
        "a warning `mcp_server_failed`; the server is started again",
    ),
    "models_listed_max": (MODELS_LISTED_MAX, "`truncated` in the answer; name a provider"),
    "types_max": (TYPES_MAX, "invalid_payload: types is too long: at most 64"),
    "cursor_digits_max": (
        CURSOR_DIGITS_MAX,
        "invalid_payload: after must be a string like evt-120",
    ),
    "keepalive_seconds_min": (
        KEEPALIVE_SECONDS_MIN,
        "invalid_payload: keepalive_seconds must be at least 1",
    ),
    "keepalive_seconds_max": (
        KEEPALIVE_SECONDS_MAX,
        "invalid_payload: keepalive_seconds must be at most 3600",
    ),
    "queued_inputs_max": (QUEUED_INPUTS_MAX, "command_rejected: queue_full"),
    "queued_chars_max": (QUEUED_CHARS_MAX, "command_rejected: queue_full"),
    "page_rows_max": (PAGE_ROWS_MAX, "invalid_payload: limit must be at most 1000"),
    "page_bytes_max": (PAGE_BYTES_MAX, "a shorter page; go on behind it"),
    "result_events_max": (RESULT_EVENTS_MAX, "`events_truncated` in the result"),
    "extension_result_bytes_max": (
        EXTENSION_RESULT_BYTES_MAX,
        "command_rejected: extension_error: <name>",
    ),
    "snippet_bytes_max": (SNIPPET_BYTES_MAX, "a snippet that is cut and ends in `...`"),
    "connections_max": (CONNECTIONS_MAX, "command_rejected: too_many_connections"),
    "pipeline_max": (PIPELINE_MAX, "no error: reading pauses until responses are taken"),
    "pipeline_bytes_max": (
        PIPELINE_BYTES_MAX,
        "no error: reading pauses until responses are taken",
    ),
    "answer_bytes_max": (
        ANSWER_BYTES_MAX,
        "an `error` event `provider_error`: the server's answer is longer than 16777216 bytes",
    ),
    "delta_bytes_max": (
        DELTA_BYTES_MAX,
        "several `message_update`, `reasoning_update` or `tool_execution_update` instead of one",
    ),
    "tool_calls_max": (
        TOOL_CALLS_MAX,
        "an `error` event `provider_error`: the model asked for more than 128 tool calls at once",
    ),
    "tool_arguments_chars_max": (
        TOOL_ARGUMENTS_CHARS_MAX,
        "an `error` event `provider_error`: ... arguments of more than 4194304 characters",
    ),
    "tool_result_lines_max": (TOOL_RESULT_LINES_MAX, "a result that is cut and says so"),
    "tool_result_bytes_max": (TOOL_RESULT_BYTES_MAX, "a result that is cut and says so"),
    "tool_preview_chars_max": (
        TOOL_PREVIEW_CHARS_MAX,
        "a `result` in `tool_execution_end` that is cut; `text_ref` names the whole",
    ),
    "artifact_bytes_max": (
        ARTIFACT_BYTES_MAX,
        "invalid_payload: data makes the artifact too large: at most 268435456 bytes",
    ),
    "artifact_range_bytes_max": (
        ARTIFACT_RANGE_BYTES_MAX,
        "invalid_payload: length must be at most 4194304",
    ),
    "uploads_max": (UPLOADS_MAX, "command_rejected: too_many_uploads"),
    "uploads_bytes_max": (UPLOADS_BYTES_MAX, "command_rejected: too_many_uploads"),
    "tool_updates_bytes_max": (
        TOOL_UPDATES_BYTES_MAX,
        "no more `tool_execution_update` of that call; the last one says so",
    ),
    "omitted_max": (OMITTED_MAX, "`omitted` names the oldest; `omitted_count` counts all"),
    "instructions_file_bytes_max": (
        INSTRUCTIONS_FILE_BYTES_MAX,
        "a source of `model_input` whose `reason` is `cut`",
    ),
    "instructions_bytes_max": (
        INSTRUCTIONS_BYTES_MAX,
        "a source of `model_input` whose `reason` is `cut` or `no_room`",
    ),
    "rules_max": (
        RULES_MAX,
        "the daemon does not start; of a project's file a problem that is told",
    ),
    "project_file_bytes_max": (PROJECT_FILE_BYTES_MAX, "a problem in `list_trust`; nothing counts"),
    "trusted_files_max": (TRUSTED_FILES_MAX, "command_rejected: too_many_trusted_files"),
    "client_calls_max": (CLIENT_CALLS_MAX, "command_rejected: too_many_calls"),
    "waiting_requests_max": (
        WAITING_REQUESTS_MAX,
        "a denial whose reason says that too many wait",
    ),
    "granted_rules_max": (GRANTED_RULES_MAX, "command_rejected: too_many_rules"),
    "rule_chars_max": (
        RULE_CHARS_MAX,
        "invalid_payload: rule is too long: at most 4096; a request without `rule`",
    ),
    "reason_chars_max": (REASON_CHARS_MAX, "invalid_payload: reason is too long: at most 4096"),
    "expired_listed_max": (EXPIRED_LISTED_MAX, "the older ones are not listed"),
    "answers_max": (ANSWERS_MAX, "invalid_payload: answers is too long: at most 4"),
    "choices_max": (
        CHOICES_MAX,
        "invalid_payload: answers[<index>].chosen is too long: at most 16",
    ),
    "answer_chars_max": (
        ANSWER_CHARS_MAX,
        "invalid_payload: answers[<index>].text is too long: at most 4096",
    ),
    "patch_chars_max": (
        PATCH_CHARS_MAX,
        "a result `validation_failed: patch.patch must have at most 2097152 characters`",
    ),
    "patch_files_max": (PATCH_FILES_MAX, "a result `patch_failed: more than 500 files`"),
    "patched_bytes_max": (
        PATCHED_BYTES_MAX,
        "a result `patch_failed: the files are larger than 134217728 bytes together`",
    ),
    "web_page_bytes_max": (WEB_PAGE_BYTES_MAX, "a result that is cut and says so"),
    "web_redirects_max": (
        WEB_REDIRECTS_MAX,
        "a result `web_fetch_failed: more than 5 redirects`",
    ),
    "todos_max": (TODOS_MAX, "a result `validation_failed: todo: ...`; the list stays as it was"),
    "todo_chars_max": (
        TODO_CHARS_MAX,
        "a result `validation_failed: todo: ...`; the list stays as it was",
    ),
    "outside_places_max": (
        OUTSIDE_PLACES_MAX,
        "a result `path_outside_workdir: ...`; nobody is asked",
    ),
    "overrides_max": (OVERRIDES_MAX, "command_rejected: too_many_overrides"),
    "override_seconds_min": (
        OVERRIDE_SECONDS_MIN,
        "invalid_payload: ttl_seconds must be 0 or from 30 to 86400",
    ),
    "override_seconds_max": (
        OVERRIDE_SECONDS_MAX,
        "invalid_payload: ttl_seconds must be at most 86400",
    ),
    "tasks_per_call_max": (
        TASKS_PER_CALL_MAX,
        "a result `validation_failed: task: ...`; none of them starts",
    ),
    "tasks_parallel_max": (TASKS_PARALLEL_MAX, "no error: the other tasks of the call wait"),
    "task_depth_max": (TASK_DEPTH_MAX, "a result `task_depth_max: ...`; none of them starts"),
    "tasks_per_root_max": (
        TASKS_PER_ROOT_MAX,
        "a result `tasks_per_root_max: ...`; none of them starts",
    ),
    "agent_file_bytes_max": (
        AGENT_FILE_BYTES_MAX,
        "`problems` of the agent in `list_agents`, which is not usable",
    ),
    "agent_prompt_chars_max": (
        AGENT_PROMPT_CHARS_MAX,
        "`problems` in `list_agents`; of a worker in a call, `validation_failed: task: ...`",
    ),
    "agents_max": (
        AGENTS_MAX,
        "`problems` of the first one past it in `list_agents`, which stands for all",
    ),
    "worker_rules_max": (
        WORKER_RULES_MAX,
        "`problems` in `list_agents`; of a worker in a call, `validation_failed: task: ...`",
    ),
    "session_rules_max": (
        SESSION_RULES_MAX,
        "invalid_payload: rules.<list> is too long: at most 64",
    ),
    "session_rules_chars_max": (
        SESSION_RULES_CHARS_MAX,
        "invalid_payload: rules are too long together: at most 16384 characters",
    ),
    "source_chars_max": (SOURCE_CHARS_MAX, "invalid_payload: source is too long: at most 64"),
    "source_metadata_bytes_max": (
        SOURCE_METADATA_BYTES_MAX,
        "invalid_payload: source_metadata is too large: at most 4096 bytes",
    ),
    "temperature_max": (
        TEMPERATURE_MAX,
        "invalid_payload: sampling.temperature must be at most 2",
    ),
    "top_p_max": (TOP_P_MAX, "invalid_payload: sampling.top_p must be at most 1"),
    "output_tokens_max": (
        OUTPUT_TOKENS_MAX,
        "invalid_payload: sampling.max_tokens must be at most 10000000",
    ),
    "summary_chars_max": (SUMMARY_CHARS_MAX, "a summary that is cut"),
    "pending_counted_max": (
        PENDING_COUNTED_MAX,
        "`pending_inputs.truncated` in `get_metrics`, where one more is counted",
    ),
    "http_connections_max": (
        HTTP_CONNECTIONS_MAX,
        "503 `TOO_MANY_CONNECTIONS`, and the connection is closed",
    ),
    "http_headers_bytes_max": (
        HTTP_HEADERS_BYTES_MAX,
        "431 `HEADERS_TOO_LARGE`, and the connection is closed",
    ),
    "http_body_bytes_max": (
        HTTP_BODY_BYTES_MAX,
        "413 `BODY_TOO_LARGE`, and the connection is closed",
    ),
    "http_body_seconds": (
        HTTP_BODY_SECONDS,
        "408 `REQUEST_TIMEOUT`, and the connection is closed",
    ),
    "http_prompt_seconds": (HTTP_PROMPT_SECONDS, "504 `PROMPT_TIMEOUT`; the run goes on"),
    "http_idle_seconds": (HTTP_IDLE_SECONDS, "the connection is closed"),
    "http_keepalive_seconds": (
        HTTP_KEEPALIVE_SECONDS,
        "no error: a comment keeps the stream alive",
    ),
    "http_write_seconds": (
        HTTP_WRITE_SECONDS,
        "the connection is closed; come back with the last id",
    ),
}
"""name -> (value, what a client sees past it)."""
