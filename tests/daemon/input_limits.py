"""The rows of the limits table about inputs and queues; see ``test_limits``."""

from __future__ import annotations

import base64
import json
from typing import Any

from nousd.daemon.blobs import attachments
from nousd.daemon.commands import accepting
from nousd.machine.session import queue_updates
from nousd.providers.models import listing
from nousd.store.sqlite import queries as _queries
from nousd.wire.limit_table import LIMITS
from tests.daemon.limits_bench import Kit, check_command, error_text, table_text
from tests.harness.daemon import Payload, of_type
from tests.harness.stub_model import Reply, hanging_reply


async def text_chars(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["text_chars_max"][0] + offset)
    await check_command(kit, "text_chars_max", offset, "prompt", text=text, wait=False)


async def long_text_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("long_text_bytes_max", accepting, "LONG_TEXT_BYTES_MAX", 1000)
    data = base64.b64encode(b"x" * (bound + offset)).decode()
    put = await kit.client.request("put_artifact", data=data, media_type="text/plain", final=True)
    given = {"text": "xx", "text_ref": put["artifact_id"]}
    if offset > 0:
        words = table_text("long_text_bytes_max").replace("16777216", str(bound))
        assert error_text(await kit.client.refusal("append_message", **given)) == words
    else:
        await kit.client.request("append_message", **given)


async def name_chars(kit: Kit, offset: int) -> None:
    name = "x" * (LIMITS["name_chars_max"][0] + offset)
    if offset > 0:
        words = table_text("name_chars_max").replace("<field>", "name")
        assert error_text(await kit.client.refusal("new_session", name=name)) == words
    else:
        assert (await kit.client.request("new_session", name=name))["name"] == name


async def path_chars(kit: Kit, offset: int) -> None:
    path = "x" * (LIMITS["path_chars_max"][0] + offset)
    words = error_text(await kit.client.refusal("prompt", text="go", attachments=[{"path": path}]))
    if offset > 0:
        assert words == table_text("path_chars_max").replace("<field>", "attachments[0].path")
    else:
        assert words.startswith("invalid_payload: attachments[0].path: read_failed: xxx")


async def event_text_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["event_text_bytes_max"][0] + offset)
    start = of_type(await kit.run(text), "message_start")[0]
    assert start["text"] == (text[:-1] if offset > 0 else text)
    assert ("text_ref" in start) is (offset > 0)
    assert (await kit.client.request("get_messages"))["messages"][0]["text"] == text


async def attachments_count(kit: Kit, offset: int) -> None:
    files = [file_of(b"a")] * (LIMITS["attachments_max"][0] + offset)
    await check_attachments(kit, "attachments_max", offset, files)


async def appended_looked_at(kit: Kit, offset: int) -> None:
    bound = LIMITS["appended_looked_at_max"][0]
    for number in range(bound + offset):
        await kit.client.request("append_message", text=f"text {number}")
    accepted = await kit.client.request("prompt", text="text 0", wait=False, reuse_appended=True)
    assert ("entry_id" in accepted) is (offset <= 0)


async def attachment_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("attachment_bytes_max", attachments, "ATTACHMENT_BYTES_MAX", 1000)
    data = b"x" * (bound + offset)
    (kit.folder / "work" / "a.txt").write_bytes(data)
    words = (
        table_text("attachment_bytes_max").replace("<index>", "1").replace("20971520", str(bound))
    )
    for file in (file_of(data), {"path": "a.txt"}):
        await check_attachments(kit, words, offset, [file_of(b"a"), file])


async def attachments_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("attachments_bytes_max", attachments, "ATTACHMENTS_BYTES_MAX", 1000)
    files = [file_of(b"x" * 600), file_of(b"y" * (bound - 600 + offset))]
    words = table_text("attachments_bytes_max").replace("33554432", str(bound))
    await check_attachments(kit, words, offset, files)


def file_of(data: bytes) -> Payload:
    return {"data": base64.b64encode(data).decode(), "media_type": "text/plain"}


async def check_attachments(kit: Kit, name: str, offset: int, files: list[Payload]) -> None:
    if offset > 0:
        refusal = await kit.client.refusal("prompt", text="go", attachments=files)
        assert error_text(refusal) == LIMITS.get(name, (0, name))[1]
    else:
        await kit.client.request("prompt", text="go", attachments=files, wait=False)
        await kit.events.run()


async def models_listed(kit: Kit, offset: int) -> None:
    bound = kit.scale("models_listed_max", listing, "MODELS_LISTED_MAX", 5)
    listed = [{"id": f"m{number}"} for number in range(bound + offset - 1)]  # and the default model
    body = json.dumps({"data": listed}).encode()
    kit.stub.script(Reply((body,), content_type="application/json"))
    answer = await kit.client.request("list_models")
    assert len(answer["models"]) == min(bound, bound + offset)
    assert ("truncated" in answer) is (offset > 0)


async def tools(kit: Kit, offset: int) -> None:
    names = ["read"] * (LIMITS["tools_max"][0] + offset)
    await check_command(kit, "tools_max", offset, "set_active_tools", tools=names)


async def types(kit: Kit, offset: int) -> None:
    names = ["error"] * (LIMITS["types_max"][0] + offset)
    await check_command(kit, "types_max", offset, "get_events", types=names)
    await check_subscription(kit, "types_max", offset, types=names)


async def check_subscription(kit: Kit, name: str, offset: int, **payload: Any) -> None:
    await kit.events.send({"id": "s", "type": "subscribe", "payload": payload})
    answer = await kit.events.receive()
    if offset > 0:
        assert error_text(answer["error"]) == table_text(name)
    else:
        assert answer["type"] == "subscribed"
        await kit.events.subscribe()


async def cursor_digits(kit: Kit, offset: int) -> None:
    cursor = "evt-" + "0" * (LIMITS["cursor_digits_max"][0] + offset)
    await check_command(kit, "cursor_digits_max", offset, "get_events", after=cursor)
    await check_subscription(kit, "cursor_digits_max", offset, after=cursor)
    if offset > 0:
        cursor = cursor.replace("0", "9")
        assert (await kit.client.refusal("get_events", after=cursor))["details"]["head"] == "evt-0"


async def keepalive_least(kit: Kit, offset: int) -> None:
    seconds = LIMITS["keepalive_seconds_min"][0] - offset
    await check_subscription(kit, "keepalive_seconds_min", offset, keepalive_seconds=seconds)


async def keepalive_most(kit: Kit, offset: int) -> None:
    seconds = LIMITS["keepalive_seconds_max"][0] + offset
    await check_subscription(kit, "keepalive_seconds_max", offset, keepalive_seconds=seconds)


async def queued_inputs(kit: Kit, offset: int) -> None:
    bound = kit.scale("queued_inputs_max", queue_updates, "QUEUED_INPUTS_MAX", 4)
    await queue_up(kit, "queued_inputs_max", offset, [f"f{n}" for n in range(bound + offset)])


async def queued_chars(kit: Kit, offset: int) -> None:
    bound = kit.scale("queued_chars_max", queue_updates, "QUEUED_CHARS_MAX", 100)
    texts = ["x" * 50, "y" * (bound - 50 + offset)]
    await queue_up(kit, "queued_chars_max", offset, texts)


async def queue_up(kit: Kit, name: str, offset: int, texts: list[str]) -> None:
    """Queue texts of which the last is refused past the bound; the accepted ones stay queued."""
    kit.stub.script(hanging_reply())
    await kit.client.request("prompt", text="go", wait=False)
    await kit.stub.next_request()
    *first, last = texts
    for text in first:
        await kit.client.request("follow_up", text=text)
    await check_command(kit, name, offset, "follow_up", text=last)
    cleared = (await kit.client.request("abort"))["cleared"]
    assert [item["text"] for item in cleared] == (first if offset > 0 else texts)
    await kit.events.run()


async def pending_counted(kit: Kit, offset: int) -> None:
    bound = kit.scale("pending_counted_max", _queries, "PENDING_COUNTED_MAX", 4)
    kit.stub.script(hanging_reply())
    await kit.client.request("prompt", text="go", wait=False)
    await kit.stub.next_request()
    for _ in range(bound + offset + 2 * max(0, offset)):
        await kit.client.request("follow_up", text="later")
    pending = (await kit.client.request("get_metrics"))["pending_inputs"]
    assert pending["follow_up"] == bound + offset
    assert pending["truncated"] is (offset > 0)
    await kit.client.request("abort")
    await kit.events.run()
