"""Each row of the table in protocol/v1.md ("Limits"): at the bound, one below it and one past it.

Each function plays one row with an ``offset`` from the bound (-1, 0 or 1) and asserts what the table
says. Where the real bound would only cost time, the same code is run with a smaller one, and the real
one is compared with the table.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon import attachments, results, serve, uploads
from nousd.daemon.commands import reading, whole_texts
from nousd.daemon.connection import serve_commands
from nousd.daemon.event_filters import FROZEN
from nousd.daemon.instructions import Places, read_instructions
from nousd.daemon.outbox import Outbox
from nousd.daemon.sockets import open_listeners
from nousd.extensions.api import ExtensionApi, Registered
from nousd.extensions.loaded import ExtensionFunction
from nousd.machine import compaction, model_input_event, queue_updates
from nousd.providers import answer_stream, listing
from nousd.providers import tool_calls as calls_of_models
from nousd.providers.interface import Provider
from nousd.store import _queries
from nousd.store.records import EventFilter
from nousd.tools import output, whole_output
from nousd.tools.interface import Tool
from nousd.wire.limit_table import LIMITS
from nousd.wire.limits import LONG_LINE_BYTES
from tests.bridge.http_limits import HTTP_PLAYS
from tests.daemon.asking_limits import ASKING_PLAYS
from tests.daemon.call_limits import CALL_PLAYS
from tests.daemon.mcp_limits import MCP_PLAYS
from tests.daemon.rule_limits import RULE_PLAYS
from tests.daemon.session_limits import SESSION_PLAYS
from tests.daemon.task_limits import TASK_PLAYS
from tests.daemon.tool_limits import TOOL_PLAYS
from tests.daemon.workspace_limits import WORKSPACE_PLAYS
from tests.daemon_harness import Client, Daemon, Event, Events, Payload, of_type, socket_daemon
from tests.stub_model import Reply, StubModel, hanging_reply, text_reply, tool_reply, whole_reply


class Say(msgspec.Struct):
    text: str


@dataclass
class Kit:
    """A daemon on real sockets, its model, and two clients."""

    folder: Path
    daemon: Daemon
    client: Client
    events: Events
    stub: StubModel
    patch: pytest.MonkeyPatch

    def scale(self, name: str, module: ModuleType, constant: str, value: int) -> int:
        """Runs the code with another bound than the table's, which is what it has by itself."""
        assert getattr(module, constant) == LIMITS[name][0], f"{constant} is not what bounds {name}"
        self.patch.setattr(module, constant, value)
        return value

    async def run(self, text: str = "go") -> list[Event]:
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()

    async def tool_result(self, text: str) -> tuple[str, str]:
        """Has a tool say that; returns what the model is told of it, and what its end repeats."""
        self.stub.script(tool_reply(("say", {"text": text})), text_reply("done"))
        (end,) = of_type(await self.run(), "tool_execution_end")
        entries = (await self.client.request("get_messages"))["messages"]
        (told,) = (entry["text"] for entry in entries if entry["role"] == "tool")
        return told, end["result"]


def extension() -> tuple[list[Tool], dict[str, ExtensionFunction]]:
    registered = Registered()
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


def told(error: dict[str, Any]) -> str:
    return f"{error['code']}: {error['message']}"


def past(name: str) -> str:
    return LIMITS[name][1]


def padded(length: int, type: str, **payload: Any) -> bytes:
    """Returns a line of that length without its LF."""
    line = json.dumps({"id": "padded", "type": type, "payload": {**payload, "pad": ""}}).encode()
    return line.replace(b'"pad": ""', b'"pad": "%b"' % (b"x" * (length - len(line))))


async def refused_or_not(kit: Kit, name: str, offset: int, type: str, **payload: Any) -> None:
    """A command that does something up to the bound, and is refused with the table's words past it."""
    if offset > 0:
        assert told(await kit.client.refusal(type, **payload)) == past(name)
    else:
        await kit.client.request(type, **payload)


# --- lines -----------------------------------------------------------------------------------


async def line_bytes(kit: Kit, offset: int) -> None:
    await kit.client.send(padded(LIMITS["line_bytes_max"][0] + offset, "ping") + b"\n")
    answer = await kit.client.receive()
    if offset > 0:
        assert (answer["id"], told(answer["error"])) == ("", past("line_bytes_max"))
    else:
        assert (answer["id"], answer["type"]) == ("padded", "pong")


async def long_lines_bytes(kit: Kit, offset: int) -> None:
    budget, left = kit.daemon.core.line_budget, 1000
    assert budget.left == LIMITS["long_lines_bytes_max"][0]
    held_by_others = budget.left - left
    assert budget.take(held_by_others)
    line = padded(LONG_LINE_BYTES + left + offset, "ping") + b"\n"
    await kit.client.send(line)
    answer = await kit.client.receive()
    if offset > 0:
        assert (answer["id"], told(answer["error"])) == ("", past("long_lines_bytes_max"))
        budget.give_back(held_by_others)
        await kit.client.send(line)
        answer = await kit.client.receive()
        held_by_others = 0
    assert (answer["id"], answer["type"]) == ("padded", "pong")
    await kit.client.aclose()
    await wait_all_tasks_blocked()
    budget.give_back(held_by_others)
    assert budget.left == LIMITS["long_lines_bytes_max"][0], "a line was not given back"
    kit.client = await kit.daemon.connect()


async def subscribe_bytes(kit: Kit, offset: int) -> None:
    line = padded(LIMITS["subscribe_bytes_max"][0] + offset, "subscribe", types=["error"])
    await kit.events.send(line + b"\n")
    answer = await kit.events.receive()
    if offset > 0:
        assert (answer["id"], told(answer["error"])) == ("", past("subscribe_bytes_max"))
    else:
        assert (answer["id"], answer["type"]) == ("padded", "subscribed")
        await kit.events.subscribe()


async def nesting(kit: Kit, offset: int) -> None:
    arrays = LIMITS["nesting_max"][0] + offset - 2  # the envelope and the payload are two levels
    nested = b"[" * arrays + b"]" * arrays
    await kit.client.send(b'{"id":"n","type":"ping","payload":{"x":%b}}\n' % nested)
    answer = await kit.client.receive()
    if offset > 0:
        assert told(answer["error"]) == past("nesting_max")
    else:
        assert answer["type"] == "pong"


# --- payloads --------------------------------------------------------------------------------


async def text_chars(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["text_chars_max"][0] + offset)
    await refused_or_not(kit, "text_chars_max", offset, "prompt", text=text, wait=False)


async def long_text_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("long_text_bytes_max", whole_texts, "LONG_TEXT_BYTES_MAX", 1000)
    data = base64.b64encode(b"x" * (bound + offset)).decode()
    put = await kit.client.request("put_artifact", data=data, media_type="text/plain", final=True)
    given = {"text": "xx", "text_ref": put["artifact_id"]}
    if offset > 0:
        words = past("long_text_bytes_max").replace("16777216", str(bound))
        assert told(await kit.client.refusal("append_message", **given)) == words
    else:
        await kit.client.request("append_message", **given)


async def name_chars(kit: Kit, offset: int) -> None:
    name = "x" * (LIMITS["name_chars_max"][0] + offset)
    if offset > 0:
        words = past("name_chars_max").replace("<field>", "name")
        assert told(await kit.client.refusal("new_session", name=name)) == words
    else:
        assert (await kit.client.request("new_session", name=name))["name"] == name


async def path_chars(kit: Kit, offset: int) -> None:
    path = "x" * (LIMITS["path_chars_max"][0] + offset)
    words = told(await kit.client.refusal("prompt", text="go", attachments=[{"path": path}]))
    if offset > 0:
        assert words == past("path_chars_max").replace("<field>", "attachments[0].path")
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
    await attached_or_not(kit, "attachments_max", offset, files)


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
    words = past("attachment_bytes_max").replace("<index>", "1").replace("20971520", str(bound))
    for file in (file_of(data), {"path": "a.txt"}):
        await attached_or_not(kit, words, offset, [file_of(b"a"), file])


async def attachments_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("attachments_bytes_max", attachments, "ATTACHMENTS_BYTES_MAX", 1000)
    files = [file_of(b"x" * 600), file_of(b"y" * (bound - 600 + offset))]
    words = past("attachments_bytes_max").replace("33554432", str(bound))
    await attached_or_not(kit, words, offset, files)


def file_of(data: bytes) -> Payload:
    return {"data": base64.b64encode(data).decode(), "media_type": "text/plain"}


async def attached_or_not(kit: Kit, name: str, offset: int, files: list[Payload]) -> None:
    if offset > 0:
        refusal = await kit.client.refusal("prompt", text="go", attachments=files)
        assert told(refusal) == LIMITS.get(name, (0, name))[1]
    else:
        await kit.client.request("prompt", text="go", attachments=files, wait=False)
        await kit.events.run()


async def models_listed(kit: Kit, offset: int) -> None:
    bound = kit.scale("models_listed_max", listing, "MODELS_LISTED_MAX", 5)
    listed = [{"id": f"m{number}"} for number in range(bound + offset - 1)]  # and the default one
    body = json.dumps({"data": listed}).encode()
    kit.stub.script(Reply((body,), content_type="application/json"))
    answer = await kit.client.request("list_models")
    assert len(answer["models"]) == min(bound, bound + offset)
    assert ("truncated" in answer) is (offset > 0)


async def tools(kit: Kit, offset: int) -> None:
    names = ["read"] * (LIMITS["tools_max"][0] + offset)
    await refused_or_not(kit, "tools_max", offset, "set_active_tools", tools=names)


async def types(kit: Kit, offset: int) -> None:
    names = ["error"] * (LIMITS["types_max"][0] + offset)
    await refused_or_not(kit, "types_max", offset, "get_events", types=names)
    await subscribed_or_not(kit, "types_max", offset, types=names)


async def subscribed_or_not(kit: Kit, name: str, offset: int, **payload: Any) -> None:
    await kit.events.send({"id": "s", "type": "subscribe", "payload": payload})
    answer = await kit.events.receive()
    if offset > 0:
        assert told(answer["error"]) == past(name)
    else:
        assert answer["type"] == "subscribed"
        await kit.events.subscribe()


async def cursor_digits(kit: Kit, offset: int) -> None:
    cursor = "evt-" + "0" * (LIMITS["cursor_digits_max"][0] + offset)
    await refused_or_not(kit, "cursor_digits_max", offset, "get_events", after=cursor)
    await subscribed_or_not(kit, "cursor_digits_max", offset, after=cursor)
    if offset > 0:
        cursor = cursor.replace("0", "9")
        assert (await kit.client.refusal("get_events", after=cursor))["details"]["head"] == "evt-0"


async def keepalive_least(kit: Kit, offset: int) -> None:
    seconds = LIMITS["keepalive_seconds_min"][0] - offset
    await subscribed_or_not(kit, "keepalive_seconds_min", offset, keepalive_seconds=seconds)


async def keepalive_most(kit: Kit, offset: int) -> None:
    seconds = LIMITS["keepalive_seconds_max"][0] + offset
    await subscribed_or_not(kit, "keepalive_seconds_max", offset, keepalive_seconds=seconds)


# --- queues ----------------------------------------------------------------------------------


async def queued_inputs(kit: Kit, offset: int) -> None:
    bound = kit.scale("queued_inputs_max", queue_updates, "QUEUED_INPUTS_MAX", 4)
    await queue_up(kit, "queued_inputs_max", offset, [f"f{n}" for n in range(bound + offset)])


async def queued_chars(kit: Kit, offset: int) -> None:
    bound = kit.scale("queued_chars_max", queue_updates, "QUEUED_CHARS_MAX", 100)
    texts = ["x" * 50, "y" * (bound - 50 + offset)]
    await queue_up(kit, "queued_chars_max", offset, texts)


async def queue_up(kit: Kit, name: str, offset: int, texts: list[str]) -> None:
    """Queues texts of which the last is one too many past the bound; what was accepted is kept."""
    kit.stub.script(hanging_reply())
    await kit.client.request("prompt", text="go", wait=False)
    await kit.stub.next_request()
    *first, last = texts
    for text in first:
        await kit.client.request("follow_up", text=text)
    await refused_or_not(kit, name, offset, "follow_up", text=last)
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


# --- answers ---------------------------------------------------------------------------------


async def page_rows(kit: Kit, offset: int) -> None:
    limit = LIMITS["page_rows_max"][0] + offset
    for type in ("get_events", "get_messages", "list_sessions", "list_runs"):
        await refused_or_not(kit, "page_rows_max", offset, type, limit=limit)
    if offset <= 0:  # a page is never longer either
        for _ in range(3):
            await kit.client.request("new_session")
        page = await kit.client.request("list_sessions", limit=2)
        assert (len(page["sessions"]), page["has_more"]) == (2, True)


async def page_bytes(kit: Kit, offset: int) -> None:
    await kit.run()
    stored = (await kit.client.request("get_events"))["events"]
    lines = await kit.daemon.core.store.events_after(
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
    assert rest == stored, "something is on no page"


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
        words = past("extension_result_bytes_max").replace("<name>", "repeat")
        assert told(await kit.client.refusal("extension_command", **payload)) == words
    else:
        assert len((await kit.client.request("extension_command", **payload))["a"]) == count


async def snippet_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["snippet_bytes_max"][0] + offset)
    await kit.run(text)
    first, *_ = (await kit.client.request("get_tree"))["nodes"]
    assert first["snippet"] == (text[:-1] + "..." if offset > 0 else text)


# --- connections -----------------------------------------------------------------------------


async def connections(kit: Kit, offset: int) -> None:
    bound = kit.scale("connections_max", serve, "CONNECTIONS_MAX", 3)
    folder = kit.folder / "more"
    folder.mkdir()
    async with open_listeners(folder / "s") as listeners, trio.open_nursery() as nursery:
        handler = partial(serve_commands, kit.daemon.core)
        nursery.start_soon(serve._accept, listeners.command, handler)
        clients = [Client(await trio.open_unix_socket(folder / "s")) for _ in range(bound + offset)]
        if offset > 0:
            refused = clients.pop()
            answer = await refused.receive()
            assert (answer["id"], told(answer["error"])) == ("", past("connections_max"))
            await refused.aclose()
        for client in clients:
            assert (await client.request("ping"))["message"] == "pong"
            await client.aclose()
        nursery.cancel_scope.cancel()


async def pipeline(kit: Kit, offset: int) -> None:
    await room_for_one_more(b"\n", LIMITS["pipeline_max"][0] + offset - 1, room=offset <= 0)


async def pipeline_bytes(kit: Kit, offset: int) -> None:
    size = LIMITS["pipeline_bytes_max"][0] + offset - 1
    await room_for_one_more(b"x" * size, 1, room=offset <= 0)


async def room_for_one_more(line: bytes, count: int, *, room: bool) -> None:
    """Asks for room for a further answer while ``count`` lines wait for a reader that stalls."""
    box = Outbox()
    for _ in range(count):
        box.put(line)
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.run, ours)
        await wait_all_tasks_blocked()
        before = len(nursery.child_tasks)
        nursery.start_soon(box.wait_room)
        await wait_all_tasks_blocked()
        assert (len(nursery.child_tasks) == before) is room
        box.close()
        received = 0
        while received < count * len(line):
            received += len(await theirs.receive_some())


# --- runs ------------------------------------------------------------------------------------


async def failed_or_not(kit: Kit, name: str, offset: int, bound: int) -> None:
    """A run that ends well, or with the error of the table and balanced ends; the next one is fine."""
    run = await kit.run()
    errors = of_type(run, "error")
    if offset > 0:
        words = past(name).partition("...")[2] or past(name).partition("`provider_error`: ")[2]
        assert words.strip().replace(f"{LIMITS[name][0]}", str(bound)) in errors[0]["cause"]
        assert errors[0]["code"] == "provider_error"
    else:
        assert errors == []
    assert (await kit.run())[-1]["payload"]["status"] == "completed"


async def answer_bytes(kit: Kit, offset: int) -> None:
    reply = whole_reply("x" * 1000)
    (body,) = reply.parts
    assert isinstance(body, bytes)
    size = len(body) - offset
    bound = kit.scale("answer_bytes_max", answer_stream, "ANSWER_BYTES_MAX", size)
    kit.stub.script(reply)
    await failed_or_not(kit, "answer_bytes_max", offset, bound)


async def delta_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["delta_bytes_max"][0] + offset)
    kit.stub.script(text_reply(text))
    deltas = [update["delta"] for update in of_type(await kit.run(), "message_update")]
    assert [len(delta) for delta in deltas] == ([len(text) - 1, 1] if offset > 0 else [len(text)])


async def tool_calls(kit: Kit, offset: int) -> None:
    bound = kit.scale("tool_calls_max", calls_of_models, "TOOL_CALLS_MAX", 3)
    kit.stub.script(tool_reply(*[("say", {"text": "x"})] * (bound + offset)))
    await failed_or_not(kit, "tool_calls_max", offset, bound)


async def tool_arguments_chars(kit: Kit, offset: int) -> None:
    arguments = {"text": "x" * 100}
    size = len(json.dumps(arguments)) - offset
    bound = kit.scale("tool_arguments_chars_max", calls_of_models, "TOOL_ARGUMENTS_CHARS_MAX", size)
    kit.stub.script(tool_reply(("say", arguments)))
    await failed_or_not(kit, "tool_arguments_chars_max", offset, bound)


async def tool_result_lines(kit: Kit, offset: int) -> None:
    text = "\n".join(["x"] * (LIMITS["tool_result_lines_max"][0] + offset))
    result, _ = await kit.tool_result(text)
    assert ("[Output cut: the first 2000 of 2001 lines are shown" in result) is (offset > 0)
    assert result.startswith(text[: 2 * LIMITS["tool_result_lines_max"][0] - 3])


async def tool_result_bytes(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["tool_result_bytes_max"][0] + offset)
    result, _ = await kit.tool_result(text)
    assert ("[Output cut: " in result) is (offset > 0)
    assert result.startswith(text[: LIMITS["tool_result_bytes_max"][0]])


async def tool_preview_chars(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["tool_preview_chars_max"][0] + offset)
    result, repeated = await kit.tool_result(text)
    assert result == text
    assert repeated == text[:-1] if offset > 0 else text


async def artifact_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("artifact_bytes_max", uploads, "ARTIFACT_BYTES_MAX", 60_000)
    kit.scale("artifact_bytes_max", whole_output, "ARTIFACT_BYTES_MAX", bound)
    kit.patch.setattr(whole_output, "END_BYTES", 1000)
    await uploaded_or_not(kit, bound, offset)
    command = f"head -c {bound + offset} /dev/zero | tr '\\0' x"
    kit.stub.script(tool_reply(("bash", {"command": command})), text_reply("done"))
    (end,) = of_type(await kit.run(), "tool_execution_end")
    kept = await kit.client.request("get_artifact", artifact_id=end["artifact_id"])
    data = base64.b64decode(kept["data"])
    if offset > 0:
        assert b"x\n[129 bytes of the output were not kept]\nx" in data
        assert len(data) <= bound
    else:
        assert data == b"x" * (bound + offset)


async def uploaded_or_not(kit: Kit, bound: int, offset: int) -> None:
    piece: dict[str, Any] = {"media_type": "text/plain", "data": encoded(b"x" * (bound - 10))}
    begun = await kit.client.request("put_artifact", **piece)
    last = {**piece, "upload_id": begun["upload_id"], "final": True}
    last["data"] = encoded(b"x" * (10 + offset))
    if offset > 0:
        words = past("artifact_bytes_max").replace(str(LIMITS["artifact_bytes_max"][0]), str(bound))
        assert told(await kit.client.refusal("put_artifact", **last)) == words
        last["data"] = encoded(b"x" * 10)
        assert (await kit.client.request("put_artifact", **last))["size_bytes"] == bound
    else:
        assert (await kit.client.request("put_artifact", **last))["size_bytes"] == bound + offset


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def artifact_range_bytes(kit: Kit, offset: int) -> None:
    put = await kit.client.request(
        "put_artifact", media_type="text/plain", data=encoded(b"x" * 10), final=True
    )
    length = LIMITS["artifact_range_bytes_max"][0] + offset
    wanted = {"artifact_id": put["artifact_id"], "length": length}
    await refused_or_not(kit, "artifact_range_bytes_max", offset, "get_artifact", **wanted)


async def uploads_count(kit: Kit, offset: int) -> None:
    bound = kit.scale("uploads_max", uploads, "UPLOADS_MAX", 3)
    piece = {"media_type": "text/plain", "data": encoded(b"x")}
    begun = [await kit.client.request("put_artifact", **piece) for _ in range(bound + offset - 1)]
    await refused_or_not(kit, "uploads_max", offset, "put_artifact", **piece)
    last = {**piece, "upload_id": begun[0]["upload_id"], "final": True}
    await kit.client.request("put_artifact", **last)
    await kit.client.request("put_artifact", **piece)


async def uploads_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("uploads_bytes_max", uploads, "UPLOADS_BYTES_MAX", 100)
    piece = {"media_type": "text/plain", "data": encoded(b"x" * 60)}
    first = await kit.client.request("put_artifact", **piece)
    more = {**piece, "data": encoded(b"x" * (bound - 60 + offset))}
    await refused_or_not(kit, "uploads_bytes_max", offset, "put_artifact", **more)
    await kit.client.request(
        "put_artifact", **{**piece, "data": "", "upload_id": first["upload_id"], "final": True}
    )
    await kit.client.request("put_artifact", **{**piece, "data": encoded(b"x" * 40)})


async def tool_updates_bytes(kit: Kit, offset: int) -> None:
    bound = kit.scale("tool_updates_bytes_max", output, "TOOL_UPDATES_BYTES_MAX", 1000)
    command = f"head -c {bound + offset} /dev/zero | tr '\\0' x"
    kit.stub.script(tool_reply(("bash", {"command": command})), text_reply("done"))
    run = await kit.run()
    streamed = "".join(update["delta"] for update in of_type(run, "tool_execution_update"))
    assert streamed.startswith("x" * min(bound, bound + offset))
    assert ("[Output goes on; no more of it is streamed.]" in streamed) is (offset > 0)
    (end,) = of_type(run, "tool_execution_end")
    assert end["result"] == "x" * (bound + offset), "the result is bounded on its own"


async def omitted(kit: Kit, offset: int) -> None:
    bound = kit.scale("omitted_max", model_input_event, "OMITTED_MAX", 2)
    silent = [text_reply()] * (bound + offset)  # an answer without a word is told to no model
    kit.stub.script(*silent, text_reply("done"))
    for _ in silent:
        await kit.run()
    await kit.events.subscribe(types="all")
    (told,) = of_type(await kit.run(), "model_input")
    assert told["omitted_count"] == len(silent)
    assert len(told["omitted"]) == min(bound, len(silent))


async def instructions_file_bytes(kit: Kit, offset: int) -> None:
    """Of the user's file; ``cut`` where it is longer."""
    size = LIMITS["instructions_file_bytes_max"][0] + offset
    write(kit.folder / "mine.md", "x" * size)
    mine, _ = read_instructions(Places(kit.folder, kit.folder / "mine.md", project=False))
    assert (mine.source.reason == "cut") is (offset > 0)
    assert mine.source.bytes == min(size, LIMITS["instructions_file_bytes_max"][0])


async def instructions_bytes(kit: Kit, offset: int) -> None:
    """Of the user's file and two of the project; the one of the root is what is cut."""
    whole, one = LIMITS["instructions_bytes_max"][0], LIMITS["instructions_file_bytes_max"][0]
    write(kit.folder / "mine.md", "x" * one)
    write(kit.folder / "repo" / ".git", "")
    write(kit.folder / "repo" / "AGENTS.md", "y" * (10 + offset))
    write(kit.folder / "repo" / "sub" / "AGENTS.md", "z" * (whole - one - 10))
    places = Places(kit.folder / "repo" / "sub", kit.folder / "mine.md", project=True)
    _, of_root, _ = found = read_instructions(places)
    assert (of_root.source.reason == "cut") is (offset > 0)
    assert sum(len(told.text) for told in found) == min(whole + offset, whole)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def summary_chars(_kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["summary_chars_max"][0] + offset)
    shown = compaction.bounded_summary(text)
    assert len(shown) == min(len(text), LIMITS["summary_chars_max"][0])
    assert (shown == text) is (offset <= 0)


Play = Callable[[Kit, int], Awaitable[None]]

PLAYS: dict[str, Play] = {
    "line_bytes_max": line_bytes,
    "long_lines_bytes_max": long_lines_bytes,
    "subscribe_bytes_max": subscribe_bytes,
    "nesting_max": nesting,
    "text_chars_max": text_chars,
    "long_text_bytes_max": long_text_bytes,
    "name_chars_max": name_chars,
    "path_chars_max": path_chars,
    "event_text_bytes_max": event_text_bytes,
    "appended_looked_at_max": appended_looked_at,
    "attachments_max": attachments_count,
    "attachment_bytes_max": attachment_bytes,
    "attachments_bytes_max": attachments_bytes,
    "tools_max": tools,
    **MCP_PLAYS,
    "models_listed_max": models_listed,
    "types_max": types,
    "cursor_digits_max": cursor_digits,
    "keepalive_seconds_min": keepalive_least,
    "keepalive_seconds_max": keepalive_most,
    "queued_inputs_max": queued_inputs,
    "queued_chars_max": queued_chars,
    "page_rows_max": page_rows,
    "page_bytes_max": page_bytes,
    "result_events_max": result_events,
    "extension_result_bytes_max": extension_result_bytes,
    "snippet_bytes_max": snippet_bytes,
    "connections_max": connections,
    "pipeline_max": pipeline,
    "pipeline_bytes_max": pipeline_bytes,
    "answer_bytes_max": answer_bytes,
    "delta_bytes_max": delta_bytes,
    "tool_calls_max": tool_calls,
    "tool_arguments_chars_max": tool_arguments_chars,
    "tool_result_lines_max": tool_result_lines,
    "tool_result_bytes_max": tool_result_bytes,
    "tool_preview_chars_max": tool_preview_chars,
    "artifact_bytes_max": artifact_bytes,
    "artifact_range_bytes_max": artifact_range_bytes,
    "uploads_max": uploads_count,
    "uploads_bytes_max": uploads_bytes,
    "tool_updates_bytes_max": tool_updates_bytes,
    "omitted_max": omitted,
    "instructions_file_bytes_max": instructions_file_bytes,
    "instructions_bytes_max": instructions_bytes,
    **RULE_PLAYS,
    **CALL_PLAYS,
    **ASKING_PLAYS,
    **TOOL_PLAYS,
    **WORKSPACE_PLAYS,
    **TASK_PLAYS,
    **SESSION_PLAYS,
    "summary_chars_max": summary_chars,
    "pending_counted_max": pending_counted,
    **HTTP_PLAYS,
}


def test_every_row_of_the_table_is_played() -> None:
    assert list(PLAYS) == list(LIMITS)


@pytest.mark.behaviour("every_limit_is_told")
async def test_the_limits_in_force_are_those_of_the_table(kit: Kit) -> None:
    in_force = (await kit.client.request("get_capabilities"))["limits"]
    assert in_force == {name: value for name, (value, _) in LIMITS.items()}


@pytest.mark.behaviour("limits_are_met_with_the_words_of_the_table")
@pytest.mark.parametrize("offset", [-1, 0, 1], ids=["below", "at", "past"])
@pytest.mark.parametrize("name", LIMITS)
async def test_a_bound_is_met_where_the_table_says_and_harms_nothing(
    name: str, offset: int, kit: Kit
) -> None:
    await PLAYS[name](kit, offset)
    assert await kit.client.request("ping") == {"message": "pong"}
    await kit.events.subscribe(types=["session_created"])
    await kit.client.request("new_session", name="afterwards")
    assert (await kit.events.next())["payload"]["name"] == "afterwards"
