"""Each row of the table in protocol/semantics/limits.md: one below the bound, at it, and one past it.

The modules called ``..._limits`` have a function for each row, which takes an ``offset`` from the bound
(-1, 0 or 1) and asserts what the table states. Where the real bound would only cost time, the test runs
the same code with a smaller one, and compares the real one with the table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from nousd.extensions.api import ExtensionApi, Registrations
from nousd.extensions.loaded import ExtensionFunction
from nousd.providers.interface import Provider
from nousd.tools.interface import Tool
from nousd.wire.limit_table import LIMITS
from tests.bridge.http_limits import HTTP_PLAYS
from tests.daemon import answer_limits, input_limits, line_limits, run_limits
from tests.daemon.asking_limits import ASKING_PLAYS
from tests.daemon.call_limits import CALL_PLAYS
from tests.daemon.limits_bench import Kit
from tests.daemon.mcp_limits import MCP_PLAYS
from tests.daemon.rule_limits import RULE_PLAYS
from tests.daemon.session_limits import SESSION_PLAYS, undo_seconds
from tests.daemon.task_limits import TASK_PLAYS
from tests.daemon.tool_limits import TOOL_PLAYS
from tests.daemon.workspace_limits import WORKSPACE_PLAYS
from tests.harness.daemon import socket_daemon
from tests.harness.stub_model import StubModel


class Say(msgspec.Struct):
    text: str


def extension() -> tuple[list[Tool], dict[str, ExtensionFunction]]:
    registered = Registrations()
    api = ExtensionApi("e", registered)
    api.tool("say", "Says a text.", Say, lambda args, _context: args.text)
    api.command("repeat", lambda payload: {"a": "x" * payload["count"]})
    return list(registered.tools.values()), registered.commands


@pytest.fixture
async def kit(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Kit]:
    tools, commands = extension()
    async with socket_daemon(
        short_folder, provider=provider, tools=tools, extension_commands=commands
    ) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        yield Kit(short_folder, daemon, client, events, stub, monkeypatch)


Play = Callable[[Kit, int], Awaitable[None]]

PLAYS: dict[str, Play] = {
    "line_bytes_max": line_limits.line_bytes,
    "long_lines_bytes_max": line_limits.long_lines_bytes,
    "subscribe_bytes_max": line_limits.subscribe_bytes,
    "nesting_max": line_limits.nesting,
    "text_chars_max": input_limits.text_chars,
    "long_text_bytes_max": input_limits.long_text_bytes,
    "name_chars_max": input_limits.name_chars,
    "path_chars_max": input_limits.path_chars,
    "event_text_bytes_max": input_limits.event_text_bytes,
    "appended_looked_at_max": input_limits.appended_looked_at,
    "attachments_max": input_limits.attachments_count,
    "attachment_bytes_max": input_limits.attachment_bytes,
    "attachments_bytes_max": input_limits.attachments_bytes,
    "tools_max": input_limits.tools,
    **MCP_PLAYS,
    "models_listed_max": input_limits.models_listed,
    "types_max": input_limits.types,
    "cursor_digits_max": input_limits.cursor_digits,
    "keepalive_seconds_min": input_limits.keepalive_least,
    "keepalive_seconds_max": input_limits.keepalive_most,
    "queued_inputs_max": input_limits.queued_inputs,
    "queued_chars_max": input_limits.queued_chars,
    "page_rows_max": answer_limits.page_rows,
    "page_bytes_max": answer_limits.page_bytes,
    "entry_bytes_max": answer_limits.entry_bytes,
    "response_bytes_max": answer_limits.response_bytes,
    "result_events_max": answer_limits.result_events,
    "result_events_bytes_max": answer_limits.result_events_bytes,
    "extension_result_bytes_max": answer_limits.extension_result_bytes,
    "found_sessions_max": answer_limits.found_sessions,
    "snippet_bytes_max": answer_limits.snippet_bytes,
    "connections_max": line_limits.connections,
    "pipeline_max": line_limits.pipeline,
    "pipeline_bytes_max": line_limits.pipeline_bytes,
    "answer_bytes_max": run_limits.answer_bytes,
    "run_answer_bytes_max": run_limits.run_answer_bytes,
    "unstreamed_answer_bytes_max": run_limits.unstreamed_answer_bytes,
    "delta_bytes_max": run_limits.delta_bytes,
    "tool_calls_max": run_limits.tool_calls,
    "tool_arguments_chars_max": run_limits.tool_arguments_chars,
    "tool_result_lines_max": run_limits.tool_result_lines,
    "tool_result_bytes_max": run_limits.tool_result_bytes,
    "tool_preview_chars_max": run_limits.tool_preview_chars,
    "artifact_bytes_max": run_limits.artifact_bytes,
    "artifact_range_bytes_max": run_limits.artifact_range_bytes,
    "uploads_max": run_limits.uploads_count,
    "uploads_bytes_max": run_limits.uploads_bytes,
    "tool_updates_bytes_max": run_limits.tool_updates_bytes,
    "omitted_max": run_limits.omitted,
    "instructions_file_bytes_max": run_limits.instructions_file_bytes,
    "instructions_bytes_max": run_limits.instructions_bytes,
    **RULE_PLAYS,
    **CALL_PLAYS,
    **ASKING_PLAYS,
    **TOOL_PLAYS,
    **WORKSPACE_PLAYS,
    "undo_seconds_max": undo_seconds,
    **TASK_PLAYS,
    **SESSION_PLAYS,
    "summary_chars_max": run_limits.summary_chars,
    "pending_counted_max": input_limits.pending_counted,
    **HTTP_PLAYS,
}


def test_every_row_of_the_table_has_a_test() -> None:
    assert list(PLAYS) == list(LIMITS)


@pytest.mark.behaviour("every_limit_is_told")
async def test_get_capabilities_returns_the_limits_of_the_table(kit: Kit) -> None:
    in_force = (await kit.client.request("get_capabilities"))["limits"]
    assert in_force == {name: value for name, (value, _) in LIMITS.items()}


@pytest.mark.slow(keep=16)
@pytest.mark.behaviour("limits_are_met_with_the_words_of_the_table")
@pytest.mark.parametrize("offset", [-1, 0, 1], ids=["below", "at", "past"])
@pytest.mark.parametrize("name", LIMITS)
async def test_a_limit_applies_exactly_at_its_bound_and_the_daemon_keeps_working(
    name: str, offset: int, kit: Kit
) -> None:
    await PLAYS[name](kit, offset)
    assert await kit.client.request("ping") == {"message": "pong"}
    await kit.events.subscribe(types=["session_created"])
    await kit.client.request("new_session", name="afterwards")
    assert (await kit.events.next())["payload"]["name"] == "afterwards"
