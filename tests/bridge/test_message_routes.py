"""Messages over HTTP: appended, with files, and read back with any content."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from nousd.bridge.routes import transcripts
from nousd.providers.interface import Provider
from nousd.runtimes.native.loop import NativeSettings
from tests.bridge.harness import Bridge, bridge_to, text
from tests.harness.daemon import Client, socket_daemon
from tests.harness.stub_model import Gate, StubModel, error_reply, text_reply, tool_reply

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
MIB = 1024 * 1024


def data_url(data: bytes, media_type: str = "text/plain") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def file(data: bytes, mime: str = "text/plain", **more: Any) -> dict[str, Any]:
    return {"type": "file", "mime": mime, "url": data_url(data, mime), **more}


async def roles_and_texts(bridge: Bridge, session: str) -> list[tuple[str, list[str]]]:
    """Return the roles and texts of a transcript."""
    told = await bridge.get(f"/session/{session}/message")
    return [
        (message["info"]["role"], [part.get("text", "") for part in message["parts"]])
        for message in told
    ]


async def test_a_message_is_appended_as_one_text_and_readable_at_once(bridge: Bridge) -> None:
    session = await bridge.new_session()
    parts = [*text("one"), *text("two")]
    reply = await bridge.http.post(
        f"/api/session/{session}/message", params={"mode": "append"}, json={"parts": parts}
    )
    assert reply.status_code == 200
    message = reply.json()
    assert message == {
        "info": {
            "id": message["info"]["id"],
            "sessionID": session,
            "role": "user",
            "time": {"created": message["info"]["time"]["created"]},
        },
        "parts": text("one\ntwo"),
    }
    assert await bridge.get(f"/session/{session}/message") == [message]
    assert (await bridge.get(f"/session/{session}"))["messages"] == [message]
    assert await bridge.get(f"/session/{session}/run") == {"active": None}


async def test_a_message_appended_during_a_run_is_readable_before_the_run_sees_it(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"), text_reply("second"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
        await gate.reached()
        first = await bridge.post(f"/session/{session}/message", parts=text("by the way"))
        second = await bridge.post(f"/session/{session}/message", parts=text("and"))
        told = await bridge.get(f"/session/{session}/message")
        assert told[-2:] == [first, second]
        gate.open()
        await frames.until("session.run.finished")
    told = await bridge.get(f"/session/{session}/message")
    ids = [message["info"]["id"] for message in told]
    assert ids.index(first["info"]["id"]) < ids.index(second["info"]["id"])
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("title", [None, "", "New session"])
async def test_the_first_message_names_a_session_that_has_no_name(
    title: str | None, bridge: Bridge
) -> None:
    session = await bridge.new_session(title=title)
    await bridge.post(f"/session/{session}/message", parts=text(" \n what is  this?\nit"))
    named = (await bridge.get(f"/session/{session}"))["title"]
    assert named == "what is this?"
    await bridge.post(f"/session/{session}/message", parts=text("another"))
    assert (await bridge.get(f"/session/{session}"))["title"] == named


async def test_a_session_that_the_user_has_named_keeps_its_name(bridge: Bridge) -> None:
    session = await bridge.new_session(title="Mine")
    await bridge.post(f"/session/{session}/message", parts=text("hello"))
    assert (await bridge.get(f"/session/{session}"))["title"] == "Mine"


# --- files ---------------------------------------------------------------------------------------


async def test_files_are_listed_after_the_text_and_reach_the_model(
    bridge: Bridge, stub: StubModel, client: Client
) -> None:
    session = await bridge.new_session()
    parts = [file(PNG, "image/png", filename="a.png"), *text("look"), file(b"notes")]
    message = await bridge.post(f"/session/{session}/message", parts=parts)
    lines = message["parts"][0]["text"].splitlines()
    assert lines[0] == "look"
    assert lines[1].startswith("[file mime=image/png name=a.png url=artifact:")
    assert lines[2].startswith("[file mime=text/plain url=artifact:")
    entry = (await client.request("get_messages", session_id=session))["messages"][0]
    assert [each["size_bytes"] for each in entry["attachments"]] == [len(PNG), 5]
    await bridge.post(f"/session/{session}/prompt_sync", parts=parts)
    asked = (await stub.next_request()).body
    assert base64.b64encode(PNG).decode() in str(asked)
    assert [role for role, _ in await roles_and_texts(bridge, session)] == ["user", "assistant"]


async def test_a_message_of_files_alone_has_their_names_as_text(bridge: Bridge) -> None:
    session = await bridge.new_session()
    parts = [file(b"a", filename="notes.txt"), file(PNG, "image/png")]
    message = await bridge.post(f"/session/{session}/message", parts=parts)
    assert message["parts"][0]["text"].splitlines()[:2] == ["notes.txt", "image/png"]


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("data:text/plain;base64,aGk=", b"hi"),
        ("data:text/plain;base64,aGk%3D", b"hi"),
        ("data:text/plain,a%20b+c", b"a b+c"),
        ("data:text/plain;charset=utf-8,hello", b"hello"),
        ("DATA:,plain", b"plain"),
        ("data:;BASE64,aGk=", b"hi"),
    ],
)
async def test_a_file_has_the_content_of_its_data_url(
    url: str, data: bytes, bridge: Bridge, client: Client
) -> None:
    session = await bridge.new_session()
    parts = [*text("x"), {"type": "file", "url": url}]
    await bridge.post(f"/session/{session}/message", parts=parts)
    entry = (await client.request("get_messages", session_id=session))["messages"][0]
    (attached,) = entry["attachments"]
    assert attached["media_type"] == "text/plain"
    kept = await client.request("get_artifact", artifact_id=attached["artifact_id"])
    assert base64.b64decode(kept["data"]) == data


@pytest.mark.slow(keep=2)
@pytest.mark.behaviour("http_files_come_as_data")
@pytest.mark.parametrize("sizes", [(MIB, 1), (MIB + 1, 2), (MIB, 1, MIB, 3), (7 * MIB,)])
async def test_files_larger_than_a_protocol_line_are_attached_whole(
    sizes: tuple[int, ...], bridge: Bridge, client: Client
) -> None:
    session = await bridge.new_session()
    files = [file(b"a" * size, filename=f"{size}.txt") for size in sizes]
    await bridge.post(f"/session/{session}/message", parts=[*text("x"), *files])
    entry = (await client.request("get_messages", session_id=session))["messages"][0]
    assert [each["size_bytes"] for each in entry["attachments"]] == list(sizes)
    assert [each["name"] for each in entry["attachments"]] == [f"{size}.txt" for size in sizes]


@pytest.mark.slow(keep=8)
@pytest.mark.behaviour("http_files_come_as_data")
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "parts"),
        (text(""), "parts"),
        (text(" \n "), "parts"),
        ([{"type": "text"}], "parts[0].text is required"),
        ([{"type": "text", "text": 7}], "body: parts[0].text must be"),
        ([{"type": "image", "text": "x"}], "body: parts[0].type must be file or text"),
        ([{"text": "x"}], "type"),
        ([*text("x"), {"type": "file"}], "parts[1].url is to be a data: URL"),
        ([{"type": "file", "url": "https://example.com/a"}], "files come as data only"),
        ([{"type": "file", "url": "file:///etc/passwd"}], "files come as data only"),
        ([{"type": "file", "url": "/etc/passwd"}], "files come as data only"),
        ([{"type": "file", "url": "data:text/plain;base64"}], "parts[0].url"),
        ([{"type": "file", "url": "data:text/plain;base64,a"}], "parts[0].url is not base64"),
        ([{"type": "file", "url": "data:text/plain;base64,ä"}], "parts[0].url is not base64"),
        ([file(b"a", filename="x" * 257)], "parts[0].filename is too long: at most 256"),
        ([file(b"")], "files[0].media_type is text/plain, but the bytes are not"),
        ([file(b"a" * (MIB + 1)), file(b"")], "files[1].media_type"),
        ([file(b"a", "application/zip")], "files[0].media_type must be"),
        ([file(b"a", "image/png")], "files[0].media_type is image/png, but the bytes are not"),
        ([file(b"a", "no type")], "files[0].media_type"),
        ([*text("x"), *[file(b"a")] * 17], "files is too long: at most 16"),
        (text(" " * (9 * MIB)), "parts"),
    ],
)
async def test_invalid_parts_are_refused_with_their_position(
    parts: list[dict[str, Any]], words: str, bridge: Bridge
) -> None:
    session = await bridge.new_session()
    for path in ("message", "prompt_async", "prompt_sync"):
        refused = await bridge.http.post(f"/session/{session}/{path}", json={"parts": parts})
        assert refused.status_code == 422, refused.text
        assert words in refused.json()["error"]
    assert await bridge.get(f"/session/{session}/message") == []


@pytest.mark.slow
@pytest.mark.behaviour("http_texts_are_as_long_as_bodies")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("x" * (MIB + 1), "x" * (MIB + 1)),
        ("\\u0001" * 1_700_000 + "x", "\x01" * 1_700_000 + "x"),
        (" " * (5 * MIB) + "x" * (4 * MIB), " " * (5 * MIB) + "x" * (4 * MIB)),
        ("ü" * (9 * MIB // 2), "ü" * (9 * MIB // 2)),
    ],
    ids=["just more than a line", "long in a line", "blanks before it", "as much as a body"],
)
async def test_a_text_longer_than_a_protocol_line_is_appended_whole(
    written: str, meant: str, bridge: Bridge
) -> None:
    session = await bridge.new_session()
    reply = await bridge.http.post(
        f"/session/{session}/message",
        content=b'{"parts":[{"type":"text","text":"%b"}]}' % written.encode(),
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 200, reply.text[:200]
    assert reply.json()["parts"] == text(meant)
    (told,) = await bridge.get(f"/session/{session}/message")
    assert told == reply.json()


@pytest.mark.behaviour("http_texts_are_as_long_as_bodies")
@pytest.mark.behaviour("http_failed_runs_are_told")
@pytest.mark.slow
async def test_an_appended_text_too_long_for_the_model_is_not_repeated_and_fails_the_run(
    bridge: Bridge,
) -> None:
    session = await bridge.new_session()
    await bridge.post(f"/session/{session}/message", parts=text("before"))
    parts = [*text("x" * (3 * MIB)), *text("y" * (3 * MIB))]
    await bridge.post(f"/session/{session}/message", parts=parts)
    for _ in range(2):
        told = await bridge.post(f"/session/{session}/prompt_sync", parts=parts)
        assert [message["info"]["role"] for message in told] == ["user", "user", "assistant"]
        assert told[1]["parts"] == text("x" * (3 * MIB) + "\n" + "y" * (3 * MIB))
        (failure,) = told[2]["parts"]
        assert failure["text"].startswith("ENGINE_ERROR: CONTEXT_LENGTH_EXCEEDED: ")


# --- read ----------------------------------------------------------------------------------------


async def test_tool_calls_are_parts_with_their_results_and_errors(
    bridge: Bridge, stub: StubModel, short_folder: Path
) -> None:
    (short_folder / "work" / "a.txt").write_text("in the file")
    calls = tool_reply(("read", {"path": "a.txt"}), ("read", {"path": "b.txt"}), text="I look.")
    stub.script(calls, text_reply("done"))
    session = await bridge.new_session()
    told = await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    assert told == await bridge.get(f"/session/{session}/message")
    assert [message["info"]["role"] for message in told] == ["user", "assistant", "assistant"]
    words, good, bad = told[1]["parts"]
    assert words == {"type": "text", "text": "I look."}
    assert "in the file" in good.pop("result")
    assert good.pop("id") != bad.pop("id")
    assert good == {
        "type": "tool",
        "tool": "read",
        "args": {"path": "a.txt"},
        "state": "completed",
    }
    assert "b.txt" in bad.pop("error")
    assert bad == {"type": "tool", "tool": "read", "args": {"path": "b.txt"}, "state": "failed"}
    assert told[2]["parts"] == text("done")


@pytest.mark.behaviour("http_failed_runs_are_told")
@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, "no such thing", "PROVIDER_SERVER_ERROR"),
        (400, "maximum context length exceeded", "CONTEXT_LENGTH_EXCEEDED"),
    ],
)
async def test_a_failed_run_ends_with_an_error_text(
    status: int, message: str, code: str, bridge: Bridge, stub: StubModel
) -> None:
    kind = "context_length_exceeded" if code == "CONTEXT_LENGTH_EXCEEDED" else None
    stub.script(*[error_reply(status, message, code=kind)] * 3)
    session = await bridge.new_session()
    told = await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    assert [item["info"]["role"] for item in told] == ["user", "assistant"]
    last = told[-1]["parts"][-1]["text"]
    assert last.startswith(f"ENGINE_ERROR: {code}: ")
    assert message in last
    assert told == await bridge.get(f"/session/{session}/message")
    sdk = {"user-agent": "python-httpx/0.27"}
    stub.script(*[error_reply(status, message, code=kind)] * 3)
    reply = await bridge.http.post(
        f"/session/{session}/prompt_sync", json={"parts": text("again")}, headers=sdk
    )
    assert reply.json()["reply"].startswith(f"ENGINE_ERROR: {code}: ")


@pytest.mark.behaviour("http_failed_runs_are_told")
async def test_a_partial_answer_survives_a_restart_with_the_reason_it_stopped(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        async with bridge.events(sessionID=session) as frames:
            await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
            frame = (await frames.until("message.part.updated"))[-1]
            while frame.properties["delta"] != "Hel":
                frame = (await frames.until("message.part.updated"))[-1]
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        assert await roles_and_texts(bridge, session) == [
            ("user", ["go"]),
            (
                "assistant",
                ["Hel", "ENGINE_ERROR: ENGINE_DISPATCH_FAILED: the daemon was stopped"],
            ),
        ]


async def test_a_failure_comes_after_the_earlier_messages_of_its_run(
    bridge: Bridge, stub: StubModel, short_folder: Path
) -> None:
    (short_folder / "work" / "a.txt").write_text("in the file")
    stub.script(
        tool_reply(("read", {"path": "a.txt"})), error_reply(400, "broken"), text_reply("ok")
    )
    session = await bridge.new_session()
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("again"))
    told = await roles_and_texts(bridge, session)
    assert [role for role, _ in told] == ["user", "assistant", "assistant", "user", "assistant"]
    assert told[2][1][0].startswith("ENGINE_ERROR: PROVIDER_SERVER_ERROR: ")
    assert told[-1][1] == ["ok"]


async def test_a_cancelled_run_has_no_error_text(bridge: Bridge, stub: StubModel) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
        await gate.reached()
        await bridge.post(f"/session/{session}/cancel")
        await frames.until("session.run.finished")
    told = await roles_and_texts(bridge, session)
    assert not any("ENGINE_ERROR" in words for _, texts in told for words in texts)


@pytest.mark.slow
async def test_long_texts_and_long_sessions_are_returned_whole(
    bridge: Bridge, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "PAGE_ROWS_MAX", 3)
    session = await bridge.new_session()
    long = "".join(f"{n} " for n in range(20_000))
    stub.script(text_reply(long))
    await bridge.post(f"/session/{session}/prompt_sync", parts=text(long[::-1]))
    for number in range(8):
        await bridge.post(f"/session/{session}/message", parts=text(f"number {number}"))
    told = await roles_and_texts(bridge, session)
    assert told[:2] == [("user", [long[::-1]]), ("assistant", [long])]
    assert [texts for _, texts in told[2:]] == [[f"number {n}"] for n in range(8)]


async def test_a_transcript_beyond_the_limit_has_its_newest_messages(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "PAGE_ROWS_MAX", 2)
    session = await bridge.new_session()
    for number in range(7):
        await bridge.post(f"/session/{session}/message", parts=text(f"number {number}"))
    monkeypatch.setattr(transcripts, "ENTRIES_MAX", 4)
    assert [texts for _, texts in await roles_and_texts(bridge, session)] == [
        [f"number {n}"] for n in range(3, 7)
    ]
    monkeypatch.setattr(transcripts, "BYTES_MAX", 1)
    assert len(await roles_and_texts(bridge, session)) == 2


async def test_compacted_messages_are_still_returned(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    native = NativeSettings(keep_recent_tokens=10)
    async with (
        socket_daemon(short_folder, provider=provider, native=native) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        for number in range(4):
            stub.script(text_reply(f"answer {number} " * 20))
            await bridge.post(f"/session/{session}/prompt_sync", parts=text(f"question {number}"))
        before = await bridge.get(f"/session/{session}/message")
        stub.script(text_reply("what was said"))
        summary = await bridge.post(f"/session/{session}/summarize")
        assert summary.keys() == {"ok", "summary"}
        assert "what was said" in summary["summary"]
        assert await bridge.get(f"/session/{session}/message") == before


async def test_a_failure_is_returned_unchanged_after_a_restart(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(error_reply(400, "broken"))
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        before = await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        assert await bridge.get(f"/session/{session}/message") == before
