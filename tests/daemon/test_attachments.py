"""Files attached to a text: three kinds of source, stored with the input, sent to the model."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.blobs import attachments
from nousd.machine.context.model_input import ModelInput, UserMessage
from nousd.machine.context.text_offload import artifact_id_of
from nousd.providers.interface import NO_BLOBS, Blobs, Receive
from nousd.store.artifacts import Artifact, ArtifactInfo
from nousd.store.records import EventFilter
from nousd.wire.events import EVENTS
from tests.daemon.scripted import ScriptedProvider, says
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Events,
    Payload,
    of_type,
    socket_daemon,
)
from tests.store.helpers import append, appended, created, deleted

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
PDF = b"%PDF-1.7\n" + b"page " * 5000
COMMANDS = ["prompt", "steer", "follow_up"]


def id_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def inline_file(data: bytes, media_type: str = "image/png", **more: Any) -> Payload:
    return {"data": base64.b64encode(data).decode(), "media_type": media_type, **more}


def stored_file(data: bytes, media_type: str = "image/png", **more: Any) -> Payload:
    return {
        "artifact_id": id_of(data),
        "media_type": media_type,
        "size_bytes": len(data),
        **more,
    }


class SeeingProvider(ScriptedProvider):
    """A model that accepts the media types in ``takes``, and records the bytes that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = {"image/png", "application/pdf", "text/plain"}
        self.blobs: list[Blobs] = []

    def accepts(self, model: str, media_type: str) -> bool:
        assert model == self.default_model
        return media_type in self.takes

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        self.blobs.append(dict(blobs))
        await super().generate(request, receive, blobs)


class Kit:
    def __init__(
        self, folder: Path, daemon: Daemon, client: Client, events: Events, model: SeeingProvider
    ) -> None:
        self.folder, self.daemon, self.client = folder, daemon, client
        self.events, self.model = events, model

    def file(self, name: str, data: bytes = PNG) -> Path:
        path = self.folder / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    async def send_input(self, command: str, **payload: Any) -> Payload:
        """Send an input to a run, or start a run with it, and return the acknowledgement."""
        if command == "prompt":
            return await self.client.request("prompt", wait=False, **payload)
        await self.begin()
        return await self.client.request(command, **payload)

    async def begin(self) -> None:
        await self.client.request("prompt", text="go", wait=False)
        await self.model.calls.wait_waiting()

    async def refusal_of(self, **attachment: Any) -> str:
        """Return the error for an attachment, and assert that nothing was accepted."""
        error = await self.client.refusal("prompt", text="look", attachments=[attachment])
        assert (await self.client.request("list_sessions"))["sessions"] == []
        assert (await self.client.request("get_events", types="all"))["events"] == []
        return f"{error['code']}: {error['message']}"

    async def finish(self, *, answers: int = 1) -> list[dict[str, Any]]:
        for _ in range(answers):
            self.model.answer(says("done"))
        return await self.events.run()

    def artifact_ids(self) -> list[list[str]]:
        """Return the artifact ids of each user message of the newest call."""
        messages = self.model.requests[-1].messages
        return [
            [file.artifact_id for file in message.attachments]
            for message in messages
            if isinstance(message, UserMessage)
        ]


@pytest.fixture
async def kit(short_folder: Path) -> AsyncIterator[Kit]:
    model = SeeingProvider()
    async with socket_daemon(short_folder, provider=model) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all")
        with trio.fail_after(WAIT_SECONDS):
            yield Kit(short_folder, daemon, client, events, model)


# --- the three sources -----------------------------------------------------------------------


@pytest.mark.behaviour("files_go_with_a_text")
@pytest.mark.parametrize("command", COMMANDS)
async def test_an_attached_file_reaches_the_queue_the_transcript_and_the_model(
    kit: Kit, command: str
) -> None:
    await kit.send_input(command, text="look", attachments=[inline_file(PNG, name="shot.png")])
    events = await kit.finish(answers=2)
    file = stored_file(PNG, name="shot.png")
    inputs = [update["inputs"][0] for update in of_type(events, "queue_update")]
    assert [one["attachments"] for one in inputs if one["text"] == "look"] == [[file]] * 2
    starts = of_type(events, "message_start")
    assert [start["attachments"] for start in starts if start.get("text") == "look"] == [[file]]
    messages = (await kit.client.request("get_messages"))["messages"]
    assert [one["attachments"] for one in messages if one["text"] == "look"] == [[file]]
    assert kit.artifact_ids()[-1] == [id_of(PNG)]
    assert kit.model.blobs[-1] == {id_of(PNG): PNG}


async def test_a_workspace_file_is_read_when_the_command_arrives(kit: Kit) -> None:
    path = kit.file("shots/one.png")
    await kit.send_input("prompt", text="look", attachments=[{"path": "shots/one.png"}])
    path.unlink()
    await kit.finish()
    (message, _) = (await kit.client.request("get_messages"))["messages"]
    assert message["attachments"] == [stored_file(PNG, name="one.png")]
    assert kit.model.blobs[-1] == {id_of(PNG): PNG}


async def test_a_stored_artifact_can_be_attached(kit: Kit) -> None:
    await kit.send_input("prompt", text="first", attachments=[inline_file(PDF, "application/pdf")])
    await kit.finish()
    await kit.client.request("new_session")
    await kit.send_input("prompt", text="again", attachments=[{"artifact_id": id_of(PDF)}])
    await kit.finish()
    (message, _) = (await kit.client.request("get_messages"))["messages"]
    assert message["attachments"] == [stored_file(PDF, "application/pdf")]
    assert kit.model.blobs[-1] == {id_of(PDF): PDF}


async def test_several_files_keep_their_order(kit: Kit) -> None:
    kit.file("a.txt", b"text")
    files = [inline_file(PDF, "application/pdf"), {"path": "a.txt"}, inline_file(PNG)]
    await kit.send_input("prompt", text="look", attachments=files)
    await kit.finish()
    assert kit.artifact_ids() == [[id_of(PDF), id_of(b"text"), id_of(PNG)]]


async def test_the_media_type_of_a_text_is_stored_without_parameters(kit: Kit) -> None:
    file = inline_file(b"hi", "Text/Plain; charset=utf-8")
    await kit.send_input("prompt", text="look", attachments=[file])
    await kit.finish()
    (message, _) = (await kit.client.request("get_messages"))["messages"]
    assert message["attachments"] == [stored_file(b"hi", "text/plain")]


async def test_files_of_joined_inputs_are_sent_in_order(kit: Kit) -> None:
    await kit.client.request("set_follow_up_mode", mode="all")
    await kit.begin()
    await kit.client.request("follow_up", text="one", attachments=[inline_file(PNG)])
    await kit.client.request("follow_up", text="two")
    await kit.client.request(
        "follow_up", text="three", attachments=[inline_file(PDF, "application/pdf")]
    )
    await kit.finish(answers=2)
    assert kit.artifact_ids() == [[], [id_of(PNG), id_of(PDF)]]


async def test_a_queued_input_keeps_its_file_over_a_restart(short_folder: Path) -> None:
    model = SeeingProvider()
    async with socket_daemon(short_folder, provider=model) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        await model.calls.wait_waiting()
        await client.request("follow_up", text="look", attachments=[inline_file(PNG)])
    async with socket_daemon(short_folder, provider=model) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        (waiting,) = (await client.request("get_queue"))["inputs"]
        assert waiting["attachments"] == [stored_file(PNG)]
        model.answer(says("done"))
        await client.request("resume")
        await events.run()
    assert model.blobs[-1] == {id_of(PNG): PNG}


async def test_a_cleared_input_names_its_files_for_attaching_them_again(kit: Kit) -> None:
    await kit.begin()
    await kit.client.request("follow_up", text="look", attachments=[inline_file(PNG)])
    (cleared,) = (await kit.client.request("abort"))["cleared"]
    assert cleared["attachments"] == [stored_file(PNG)]
    await kit.events.run()
    # So it can be attached again.
    again = [{"artifact_id": file["artifact_id"]} for file in cleared["attachments"]]
    await kit.send_input("prompt", text="look", attachments=again)
    await kit.finish()
    assert kit.model.blobs[-1] == {id_of(PNG): PNG}


async def test_a_file_is_deleted_with_the_last_session_that_refers_to_it(kit: Kit) -> None:
    await kit.send_input("prompt", text="look", attachments=[inline_file(PNG)])
    await kit.finish()
    parent = (await kit.client.request("get_state"))["session_id"]
    branch = (await kit.client.request("branch_session", session_id=parent))["session_id"]
    await kit.client.request("delete_session", session_id=parent)
    assert await kit.daemon.services.store.artifact(id_of(PNG)) is not None
    await kit.client.request("delete_session", session_id=branch)
    assert await kit.daemon.services.store.artifact(id_of(PNG)) is None


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attachment",
    [
        {},
        {"media_type": "image/png", "name": "a"},
        {"data": "aGk=", "path": "a.txt", "media_type": "text/plain"},
        {"path": "a.txt", "artifact_id": "sha256:0"},
    ],
)
async def test_an_attachment_has_exactly_one_source(kit: Kit, attachment: Payload) -> None:
    words = "attachments[0] must have exactly one of data, path, artifact_id"
    assert await kit.refusal_of(**attachment) == f"invalid_payload: {words}"


async def test_bytes_need_a_media_type(kit: Kit) -> None:
    words = "invalid_payload: attachments[0].media_type is required"
    assert await kit.refusal_of(data="aGk=") == words


@pytest.mark.parametrize("media_type", ["image/bmp", "application/json", "text", "x"])
async def test_other_media_types_are_refused_with_the_supported_ones(
    kit: Kit, media_type: str
) -> None:
    assert await kit.refusal_of(**inline_file(PNG, media_type)) == (
        "invalid_payload: attachments[0].media_type must be image/png, image/jpeg, image/gif, "
        "image/webp, application/pdf or text/*"
    )


@pytest.mark.behaviour("files_are_what_they_say")
@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", b"GIF89a"),
        ("image/png", b""),
        ("application/pdf", PNG),
        ("text/plain", b"\xff\xfe"),
        ("text/plain", b""),
    ],
)
async def test_bytes_that_do_not_match_their_media_type_are_refused(
    kit: Kit, media_type: str, data: bytes
) -> None:
    assert await kit.refusal_of(**inline_file(data, media_type)) == (
        f"invalid_payload: attachments[0].media_type is {media_type}, but the bytes are not"
    )


async def test_a_file_with_the_wrong_suffix_is_refused(kit: Kit) -> None:
    kit.file("shot.png", b"GIF89a")
    words = "invalid_payload: attachments[0].media_type is image/png, but the bytes are not"
    assert await kit.refusal_of(path="shot.png") == words


async def test_an_unknown_artifact_is_refused(kit: Kit) -> None:
    error = await kit.client.refusal(
        "prompt", text="look", attachments=[inline_file(PNG), {"artifact_id": "sha256:00"}]
    )
    assert (error["code"], error["message"]) == ("command_rejected", "artifact_not_found")
    assert error["details"] == {"artifact_id": "sha256:00", "field": "attachments[1]"}


async def test_an_artifact_deleted_while_it_is_attached_is_not_found(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.daemon.services.store
    named = Artifact(artifact_id_of(PNG), "image/png", PNG)
    await append(store, created(), appended("e1", artifact_id=named.id), artifacts=[named])
    renew = store.renew_artifact

    async def renew_and_lose(artifact_id: str, *, now: str) -> ArtifactInfo | None:
        renewed = await renew(artifact_id, now=now)
        await append(store, deleted())
        return renewed

    monkeypatch.setattr(store, "renew_artifact", renew_and_lose)
    error = await kit.client.refusal("prompt", text="look", attachments=[{"artifact_id": named.id}])
    assert error["message"] == "artifact_not_found"
    assert error["details"] == {"artifact_id": named.id, "field": "attachments[0]"}


@pytest.mark.behaviour("a_file_the_model_cannot_take_is_refused")
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_file_that_the_model_cannot_take_is_refused_before_anything_is_accepted(
    kit: Kit, command: str
) -> None:
    kit.model.takes.remove("image/png")
    kit.file("shot.png")
    if command != "prompt":
        await kit.begin()
    for file in (inline_file(PNG), {"path": "shot.png"}):
        error = await kit.client.refusal(command, text="look", attachments=[file])
        assert (error["code"], error["message"]) == ("command_rejected", "attachment_not_supported")
        assert error["details"] == {
            "media_type": "image/png",
            "model": "scripted-model",
            "field": "attachments[0]",
        }
    if command == "prompt":
        assert (await kit.client.request("list_sessions"))["sessions"] == []
    else:
        assert (await kit.client.request("abort"))["cleared"] == []
        await kit.events.run()


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.behaviour("files_stay_in_the_workdir")
async def test_paths_outside_the_workspace_are_refused(kit: Kit) -> None:
    (kit.folder / "secret.png").write_bytes(PNG)
    (kit.folder / "work" / "link.png").symlink_to("../secret.png")
    (kit.folder / "work" / "folder").symlink_to("..")
    for path in ("../secret.png", str(kit.folder / "secret.png"), "link.png", "folder/secret.png"):
        words = f"invalid_payload: attachments[0].path: path_outside_workdir: {path}"
        assert await kit.refusal_of(path=path) == words


async def test_paths_of_anything_but_regular_files_are_refused_without_blocking(kit: Kit) -> None:
    os.mkfifo(kit.folder / "work" / "pipe.png")
    (kit.folder / "work" / "folder.png").mkdir()
    start = "invalid_payload: attachments[0].path: read_failed: "
    assert await kit.refusal_of(path="pipe.png") == f"{start}pipe.png: not a regular file"
    assert await kit.refusal_of(path="folder.png") == f"{start}folder.png: Is a directory"
    assert await kit.refusal_of(path="gone.png") == f"{start}gone.png: No such file or directory"


async def test_a_path_may_be_absolute_or_a_link_within_the_workspace(kit: Kit) -> None:
    path = kit.file("real.png")
    (kit.folder / "work" / "link.png").symlink_to("real.png")
    files = [{"path": str(path)}, {"path": "link.png"}]
    await kit.send_input("prompt", text="look", attachments=files)
    await kit.finish()
    (message, _) = (await kit.client.request("get_messages"))["messages"]
    assert [file["name"] for file in message["attachments"]] == ["real.png", "link.png"]


# --- resending -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_resent_command_reads_no_file_and_returns_the_first_acknowledgement(
    kit: Kit, command: str
) -> None:
    path = kit.file("shot.png")
    more = {"text": "look", "attachments": [{"path": "shot.png"}], "client_message_id": "mine"}
    first = await kit.send_input(command, **more)
    path.unlink()
    wait: Payload = {"wait": False} if command == "prompt" else {}
    again = {**first, "repeated": True}
    assert await kit.client.request(command, **more, **wait) == again
    await kit.finish(answers=2)
    assert await kit.client.request(command, **more, **wait) == again


async def test_a_prompt_sent_twice_at_the_same_time_is_accepted_once(kit: Kit) -> None:
    kit.file("shot.png")
    other = await kit.daemon.connect()
    more = {"text": "look", "attachments": [{"path": "shot.png"}], "client_message_id": "mine"}
    one = await kit.client.ask("prompt", wait=False, **more)
    two = await other.ask("prompt", wait=False, **more)
    payloads = [(await kit.client.answer(one))["payload"], (await other.answer(two))["payload"]]
    assert sorted(payload.pop("repeated", False) for payload in payloads) == [False, True]
    assert payloads[0] == payloads[1]
    assert len((await kit.client.request("list_sessions"))["sessions"]) == 1
    await kit.finish()


async def test_a_prompt_is_refused_if_its_session_is_deleted_while_a_file_is_read(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = (await kit.client.request("new_session"))["session_id"]
    other = await kit.daemon.connect()
    read = attachments.read_attachments

    async def slowly(*arguments: Any) -> attachments.AttachedFiles:
        await other.request("delete_session", session_id=session_id)
        return await read(*arguments)

    monkeypatch.setattr("nousd.daemon.commands.accepting.read_attachments", slowly)
    error = await kit.client.refusal(
        "prompt", text="look", session_id=session_id, attachments=[inline_file(PNG)]
    )
    assert error["code"] == "session_not_found"


async def test_no_event_holds_the_bytes_of_a_file(kit: Kit) -> None:
    await kit.send_input("prompt", text="look", attachments=[inline_file(PNG)])
    await kit.finish()
    wanted = EventFilter(types=frozenset(EVENTS))
    found = await kit.daemon.services.store.events_after(0, wanted, limit=1000, bytes_max=2**30)
    assert found
    assert max(len(event.line) for event in found) < 4000
