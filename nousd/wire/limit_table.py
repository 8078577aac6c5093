"""The consequence of exceeding each limit of v1, by the limit's name.

``protocol/semantics/limits.md`` is generated from this table and ``get_capabilities`` reports its
values, so that code and contract cannot drift apart. The values are those of ``nousd.wire.limits``;
other modules enforce them.
"""

from __future__ import annotations

from typing import Final

from nousd.wire import limits

_CONSEQUENCES: Final[dict[str, str]] = {
    "line_bytes_max": "invalid_command: line_too_long: a line has at most {} bytes",
    "long_lines_bytes_max": "command_rejected: no_room_for_line",
    "subscribe_bytes_max": (
        "invalid_command: line_too_long: a line on this socket has at most {} bytes"
    ),
    "nesting_max": "invalid_command: invalid_json: nested deeper than {} levels",
    "text_chars_max": "invalid_payload: text is too long: at most {}",
    "long_text_bytes_max": "invalid_payload: text_ref is too large: at most {} bytes",
    "name_chars_max": "invalid_payload: <field> is too long: at most {}",
    "path_chars_max": "invalid_payload: <field> is too long: at most {}",
    "event_text_bytes_max": "only the beginning; `text_ref` names the artifact with the whole text",
    "appended_looked_at_max": "an older message is not found, and its text is repeated",
    "attachments_max": "invalid_payload: attachments is too long: at most {}",
    "attachment_bytes_max": "invalid_payload: attachments[<index>] is too large: at most {} bytes",
    "attachments_bytes_max": "invalid_payload: attachments is too large: at most {} bytes",
    "tools_max": "invalid_payload: tools is too long: at most {}",
    "mcp_servers_max": "command_rejected: too_many_mcp_servers",
    "mcp_servers_of_session_max": "command_rejected: too_many_mcp_servers",
    "mcp_servers_of_sessions_max": "the servers of a session without a run are removed",
    "mcp_values_max": "invalid_payload: command is too long: at most {}",
    "mcp_value_chars_max": "invalid_payload: url is too long: at most {}",
    "mcp_timeout_ms_max": "invalid_payload: timeout_ms must be at most {}",
    "mcp_ttl_seconds_max": "invalid_payload: ttl_seconds must be at most {}",
    "mcp_tools_max": "a tool that is named in `left_out` of `mcp_server_status`",
    "mcp_schema_bytes_max": "a tool that is named in `left_out` of `mcp_server_status`",
    "mcp_description_chars_max": "a description that is cut",
    "mcp_message_bytes_max": "a warning `mcp_server_failed`; the server is restarted",
    "mcp_message_values_max": "a warning `mcp_server_failed`; the server is restarted",
    "models_listed_max": "`truncated` in the response; name a provider",
    "types_max": "invalid_payload: types is too long: at most {}",
    "cursor_digits_max": "invalid_payload: after must be a string like evt-120",
    "keepalive_seconds_min": "invalid_payload: keepalive_seconds must be at least {}",
    "keepalive_seconds_max": "invalid_payload: keepalive_seconds must be at most {}",
    "queued_inputs_max": "command_rejected: queue_full",
    "queued_chars_max": "command_rejected: queue_full",
    "page_rows_max": "invalid_payload: limit must be at most {}",
    "page_bytes_max": "a shorter page; request the next one",
    "entry_bytes_max": "only the beginning of its text; `text_ref` names the artifact with the whole",
    "response_bytes_max": "command_rejected: response_too_large",
    "result_events_max": "`events_truncated` in the result",
    "result_events_bytes_max": "`events_truncated` in the result",
    "extension_result_bytes_max": "command_rejected: extension_error: <name>",
    "found_sessions_max": "invalid_payload: limit must be at most {}",
    "snippet_bytes_max": "a snippet that is cut and ends in `...`",
    "connections_max": "command_rejected: too_many_connections",
    "pipeline_max": "no error: reading pauses until responses are taken",
    "pipeline_bytes_max": "no error: reading pauses until responses are taken",
    "answer_bytes_max": (
        "an `error` event `answer_too_long`: ... more than {} bytes; raise `answer_bytes_max`"
    ),
    "run_answer_bytes_max": (
        "an `error` event `answer_too_long`: ... more than {} bytes; raise `run_answer_bytes_max`"
    ),
    "unstreamed_answer_bytes_max": (
        "an `error` event `provider_error`: the server's answer is longer than {} bytes"
    ),
    "delta_bytes_max": (
        "several `message_update`, `reasoning_update` or `tool_execution_update` instead of one"
    ),
    "tool_calls_max": (
        "an `error` event `provider_error`: the model asked for more than {} tool calls at once"
    ),
    "tool_arguments_chars_max": (
        "an `error` event `provider_error`: ... arguments of more than {} characters"
    ),
    "tool_result_lines_max": "a result that is cut and says so",
    "tool_result_bytes_max": "a result that is cut and says so",
    "tool_preview_chars_max": (
        "a `result` in `tool_execution_end` that is cut; `text_ref` names the whole text"
    ),
    "artifact_bytes_max": "invalid_payload: data makes the artifact too large: at most {} bytes",
    "artifact_range_bytes_max": "invalid_payload: length must be at most {}",
    "uploads_max": "command_rejected: too_many_uploads",
    "uploads_bytes_max": "command_rejected: too_many_uploads",
    "tool_updates_bytes_max": "no more `tool_execution_update` of that call; the last one says so",
    "omitted_max": "`omitted` names the oldest; `omitted_count` counts all",
    "instructions_file_bytes_max": "a source of `model_input` whose `reason` is `cut`",
    "instructions_bytes_max": "a source of `model_input` whose `reason` is `cut` or `no_room`",
    "rules_max": "the daemon does not start; in a project's file, `problems` of `list_trust`",
    "project_file_bytes_max": "`problems` of `list_trust`; the file is ignored",
    "trusted_files_max": "command_rejected: too_many_trusted_files",
    "client_calls_max": "command_rejected: too_many_calls",
    "waiting_requests_max": "a denial whose reason is that too many wait",
    "granted_rules_max": "command_rejected: too_many_rules",
    "rule_chars_max": "invalid_payload: rule is too long: at most {}; a request without `rule`",
    "reason_chars_max": "invalid_payload: reason is too long: at most {}",
    "expired_listed_max": "older ones are not listed",
    "answers_max": "invalid_payload: answers is too long: at most {}",
    "choices_max": "invalid_payload: answers[<index>].chosen is too long: at most {}",
    "answer_chars_max": "invalid_payload: answers[<index>].text is too long: at most {}",
    "patch_chars_max": "a result `validation_failed: patch.patch must have at most {} characters`",
    "patch_files_max": "a result `patch_failed: more than {} files`",
    "patched_bytes_max": "a result `patch_failed: the files are larger than {} bytes together`",
    "web_page_bytes_max": "a result that is cut and says so",
    "web_redirects_max": "a result `web_fetch_failed: more than {} redirects`",
    "todos_max": "a result `validation_failed: todo: ...`; the list is unchanged",
    "todo_chars_max": "a result `validation_failed: todo: ...`; the list is unchanged",
    "outside_places_max": "a result `path_outside_workdir: ...`; no approval is requested",
    "overrides_max": "command_rejected: too_many_overrides",
    "override_seconds_min": "invalid_payload: ttl_seconds must be 0 or from {} to 86400",
    "override_seconds_max": "invalid_payload: ttl_seconds must be at most {}",
    "undo_seconds_max": "invalid_payload: undo_seconds must be at most {}",
    "tasks_per_call_max": "a result `validation_failed: task: ...`; none of them starts",
    "tasks_parallel_max": "no error: the other tasks of the call wait",
    "task_depth_max": "a result `task_depth_max: ...`; none of them starts",
    "tasks_per_root_max": "a result `tasks_per_root_max: ...`; none of them starts",
    "agent_file_bytes_max": "`problems` of the agent in `list_agents`, which is not usable",
    "agent_prompt_chars_max": (
        "`problems` in `list_agents`; for a worker in a call, `validation_failed: task: ...`"
    ),
    "agents_max": "`problems` of the first agent above it in `list_agents`; the others are not listed",
    "worker_rules_max": (
        "`problems` in `list_agents`; for a worker in a call, `validation_failed: task: ...`"
    ),
    "session_rules_max": "invalid_payload: rules.<list> is too long: at most {}",
    "session_rules_chars_max": (
        "invalid_payload: rules are too long together: at most {} characters"
    ),
    "title_chars_max": "a title that is cut and ends in `…`",
    "source_chars_max": "invalid_payload: source is too long: at most {}",
    "source_metadata_bytes_max": "invalid_payload: source_metadata is too large: at most {} bytes",
    "temperature_max": "invalid_payload: sampling.temperature must be at most {}",
    "top_p_max": "invalid_payload: sampling.top_p must be at most {}",
    "output_tokens_max": "invalid_payload: sampling.max_tokens must be at most {}",
    "summary_chars_max": "a summary that is cut",
    "pending_counted_max": "`pending_inputs.truncated` in `get_metrics`, where one more is counted",
    "http_connections_max": "503 `TOO_MANY_CONNECTIONS`, and the connection is closed",
    "http_strangers_max": "the connection that has been without a token for the longest time is closed",
    "http_headers_bytes_max": "431 `HEADERS_TOO_LARGE`, and the connection is closed",
    "http_body_bytes_max": "413 `BODY_TOO_LARGE`, and the connection is closed",
    "http_body_seconds": "408 `REQUEST_TIMEOUT`, and the connection is closed",
    "http_prompt_seconds": "504 `PROMPT_TIMEOUT`; the run continues",
    "http_idle_seconds": "the connection is closed",
    "http_keepalive_seconds": "no error: a comment keeps the stream alive",
    "http_write_seconds": "the connection is closed; reconnect with the last id",
}
"""name of a limit, as in ``nousd.wire.limits`` -> consequence for a client; ``{}`` is the value."""


def _limit(name: str) -> tuple[int, str]:
    bound: int = getattr(limits, name.upper())
    return bound, _CONSEQUENCES[name].replace("{}", str(bound))


LIMITS: Final[dict[str, tuple[int, str]]] = {name: _limit(name) for name in _CONSEQUENCES}
"""name of a limit -> (value, consequence for a client)."""
