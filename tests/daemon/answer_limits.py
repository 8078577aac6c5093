"""The rows of the limits table about responses; see ``test_limits``."""

from __future__ import annotations

import msgspec

from nousd.daemon.commands import messages, reading
from nousd.daemon.eventlog.event_filters import FROZEN
from nousd.daemon.runs import results
from nousd.daemon.transport import connection
from nousd.store.records import EventFilter
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit, check_command, error_text, table_text


async def page_rows(kit: Kit, offset: int) -> None:
    limit = LIMITS["page_rows_max"][0] + offset
    for type in ("get_events", "get_messages", "list_sessions", "list_runs"):
        await check_command(kit, "page_rows_max", offset, type, limit=limit)
    if offset <= 0:  # the limit of a request applies, too
        for _ in range(3):
            await kit.client.request("new_session")
        page = await kit.client.request("list_sessions", limit=2)
        assert (len(page["sessions"]), page["has_more"]) == (2, True)


async def page_bytes(kit: Kit, offset: int) -> None:
    await kit.run()
    stored = (await kit.client.request("get_events"))["events"]
    lines = await kit.daemon.services.store.events_after(
        0, EventFilter(types=FROZEN), limit=3, bytes_max=2**20
    )
    size = sum(len(event.line) for event in lines)
    kit.scale("page_bytes_max", reading, "PAGE_BYTES_MAX", size - offset)
    page = await kit.client.request("get_events")
    assert page["events"] == stored[: 2 if offset > 0 else 3]
    rest = page["events"]
    while page["events"]:
        page = await kit.client.request("get_events", after=page["next"])
        rest += page["events"]
    assert rest == stored, "an event is on no page"


async def entry_bytes(kit: Kit, offset: int) -> None:
    text = "x" * 20_000
    await kit.client.request("append_message", text=text)
    (whole,) = (await kit.client.request("get_messages"))["messages"]
    size = len(msgspec.json.encode(whole))
    kit.scale("entry_bytes_max", messages, "ENTRY_BYTES_MAX", size - offset)
    (shown,) = (await kit.client.request("get_messages"))["messages"]
    event_text = LIMITS["event_text_bytes_max"][0]
    assert shown["text"] == (text[:event_text] if offset > 0 else text)
    assert (shown["text_ref"], shown["text_bytes"]) == (whole["text_ref"], len(text))


async def response_bytes(kit: Kit, offset: int) -> None:
    await kit.client.request("append_message", text="x" * 100)
    await kit.client.ask("get_messages")
    size = len(await kit.client.receive_line()) - len(b"\n")
    kit.scale("response_bytes_max", connection, "RESPONSE_BYTES_MAX", size - offset)
    if offset > 0:
        error = await kit.client.refusal("get_messages")
        assert error_text(error) == table_text("response_bytes_max")
        assert error["details"] == {"bytes_max": size - offset}
    else:
        assert len((await kit.client.request("get_messages"))["messages"]) == 1


async def result_events_bytes(kit: Kit, offset: int) -> None:
    prompt = {"text": "go", "client_message_id": "m"}
    whole = await kit.client.request("prompt", **prompt)
    size = sum(len(msgspec.json.encode(event)) for event in whole["events"])
    kit.scale("result_events_bytes_max", results, "RESULT_EVENTS_BYTES_MAX", size - offset)
    # Sent again, it returns the result of the same run.
    result = await kit.client.request("prompt", **prompt)
    assert result["events"] == (whole["events"][:-1] if offset > 0 else whole["events"])
    assert result.get("events_truncated", False) is (offset > 0)
    assert (result["output"], result["status"]) == (whole["output"], "completed")


async def result_events(kit: Kit, offset: int) -> None:
    whole = await kit.client.request("prompt", text="go")
    count = len(whole["events"])
    assert "events_truncated" not in whole
    kit.scale("result_events_max", results, "RESULT_EVENTS_MAX", count - offset)
    result = await kit.client.request("prompt", text="go")
    assert len(result["events"]) == (count - 1 if offset > 0 else count)
    assert result.get("events_truncated", False) is (offset > 0)
    assert (result["output"], result["status"]) == (whole["output"], "completed")


async def extension_result_bytes(kit: Kit, offset: int) -> None:
    count = LIMITS["extension_result_bytes_max"][0] - len('{"a":""}') + offset
    payload = {"name": "repeat", "payload": {"count": count}}
    if offset > 0:
        words = table_text("extension_result_bytes_max").replace("<name>", "repeat")
        assert error_text(await kit.client.refusal("extension_command", **payload)) == words
    else:
        assert len((await kit.client.request("extension_command", **payload))["a"]) == count


async def found_sessions(kit: Kit, offset: int) -> None:
    limit, words = LIMITS["found_sessions_max"]
    payload = {"query": "word", "limit": limit + offset}
    if offset > 0:
        assert error_text(await kit.client.refusal("search_sessions", **payload)) == words
    else:
        assert (await kit.client.request("search_sessions", **payload))["matches"] == []


async def snippet_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["snippet_bytes_max"][0] + offset)
    await kit.run(text)
    first, *_ = (await kit.client.request("get_tree"))["nodes"]
    assert first["snippet"] == (text[:-1] + "..." if offset > 0 else text)
