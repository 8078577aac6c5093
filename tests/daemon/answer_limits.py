"""The rows of the limits table about responses; see ``test_limits``."""

from __future__ import annotations

from nousd.daemon.commands import reading
from nousd.daemon.eventlog.event_filters import FROZEN
from nousd.daemon.runs import results
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


async def snippet_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["snippet_bytes_max"][0] + offset)
    await kit.run(text)
    first, *_ = (await kit.client.request("get_tree"))["nodes"]
    assert first["snippet"] == (text[:-1] + "..." if offset > 0 else text)
