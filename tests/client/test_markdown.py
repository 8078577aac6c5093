"""Sessions as Markdown: what is shown of each entry, and that no text reaches beyond its place."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from nousd.client import markdown, session_records
from nousd.client.blocking import Connection
from nousd.errors import Refused
from nousd.providers.mock.provider import MockProvider
from nousd.wire.objects.entries import Attachment, CompactionEntry, MessageEntry, ToolCall
from tests.harness.daemon import socket_daemon

SENT = "2026-11-21T05:13:01.000000Z"
TS = "2026-11-21 07:13:01 +0200"
"""The same moment two hours east."""


@pytest.fixture(autouse=True, scope="module")
def two_hours_east() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", "EAST-2")
        time.tzset()
        yield
    time.tzset()


def message(role: Any, text: str, **fields: Any) -> str:
    return markdown.entry(
        MessageEntry(
            id="m", role=role, text=text, run_id="r", turn_kind="prompt", created_at=SENT, **fields
        )
    )


def test_a_message_of_the_user_names_its_attachments() -> None:
    image = Attachment(artifact_id="sha256:1", media_type="image/png", size_bytes=1234, name="a`b")
    assert message("user", "look\n\nhere", attachments=(image,)) == (
        f"## User · {TS}\n\n> look\n>\n> here\n\n"
        "- attachment ``a`b``, `image/png`, 1,234 bytes, artifact `sha256:1`\n\n"
    )


def test_an_answer_has_its_reasoning_its_calls_and_how_it_ended() -> None:
    call = ToolCall(
        tool_call_id="c", runtime_tool_call_id="x", name="read", args={"path": "ä"}, args_ref="sha"
    )
    shown = message(
        "assistant",
        "well",
        model="m-1",
        reasoning="hm",
        tool_calls=(call,),
        stop_reason="aborted",
        error="a *b*",
    )
    assert shown == (
        f"## Assistant · {TS} · `m-1` · aborted\n\n### Reasoning\n\n> hm\n\n### Answer\n\n> well\n\n"
        '### Call of `read`\n\n```json\n{\n  "path": "ä"\n}\n```\n\n'
        "The whole is artifact `sha`.\n\nFailed: a \\*b\\*\n\n"
    )


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, ""),
        ({"is_error": True, "executed": True}, " · failed"),
        ({"is_error": True, "executed": False}, " · not executed"),
    ],
)
def test_a_result_says_how_the_call_went(fields: dict[str, Any], how: str) -> None:
    shown = message("tool", "one", tool_name="read", **fields)
    assert shown == f"## Result of `read` · {TS}{how}\n\n```\none\n```\n\n"


def test_a_compaction_is_its_summary() -> None:
    entry = CompactionEntry(
        id="c",
        summary="so far",
        first_kept_entry_id="m",
        tokens_before=9,
        trigger="auto",
        created_at=SENT,
    )
    assert markdown.entry(entry) == f"## Summary of what came before · {TS}\n\n> so far\n\n"


def test_controls_are_made_visible() -> None:
    shown = message("tool", "\x1b[31mred\r\n\tleft \u202etfel\x85\r", tool_name="a\x07\nb")
    assert "```\n\\x1b[31mred\n\tleft \\u202etfel\\x85\\x0d\n```" in shown
    assert "`a b`" in shown


_BEYOND = st.lists(
    st.sampled_from(["```", "````", "~~~", "> ", "# ", "## User", "\n", "\r", " ", "\x1b[0m", "a"])
).map("".join)


@given(_BEYOND | st.text())
def test_a_result_ends_with_its_own_fence(text: str) -> None:
    lines = message("tool", text, tool_name="t").split("\n")
    assert lines[:2] == [f"## Result of `t` · {TS}", ""]
    fence = lines[2]
    assert re.fullmatch("`{3,}", fence)
    # A line closes the fence if it has at least as many ticks, and nothing else.
    closing = [n for n, line in enumerate(lines[3:], 3) if re.fullmatch(f" *{fence}`* *", line)]
    assert closing == [len(lines) - 3]
    assert lines[-2:] == ["", ""]


@given(_BEYOND | st.text(), st.sampled_from(["user", "assistant"]))
def test_what_people_and_models_say_stays_within_a_quotation(text: str, role: Any) -> None:
    heading, *lines = message(role, text).split("\n")
    assert heading == f"## {role.title()} · {TS}"
    assert all(line == "" or line.startswith(">") for line in lines)
    shown = "\n".join(lines)
    assert not {char for char in shown if unicodedata.category(char) == "Cc"} - {"\n", "\t"}


async def _exported(path: Path, *wanted: str) -> str:
    def read() -> str:
        with Connection(path) as daemon:
            return "".join(markdown.transcript(daemon, *wanted))

    return await trio.to_thread.run_sync(read)


async def test_a_session_is_shown_whole_from_its_first_page_to_its_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_records, "PAGE_ROWS_MAX", 2)
    async with socket_daemon(folder, provider=MockProvider()) as daemon:
        client = await daemon.connect()
        socket = folder / "nous.sock"
        assert await _exported(socket) == ""
        for number in range(7):
            await client.request("append_message", text=f"*text* {number}")
            shown = await _exported(socket)
            assert shown.startswith("# \\*text\\* 0\n\n- session `sess-")
            assert re.findall("> .* ([0-9])", shown) == [str(each) for each in range(number + 1)]
        with pytest.raises(Refused, match="sess-none"):
            await _exported(socket, "sess-none")
