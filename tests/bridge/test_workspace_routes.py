"""Workspaces over HTTP: attaching with its audit, and overrides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.workspaces import Roots, Workspace, Workspaces
from nousd.providers.interface import Provider
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.views.tandem.sessions import project_id
from tests.bridge.harness import Bridge, bridge_to, text
from tests.harness.daemon import Client, socket_daemon
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply


class Place(NamedTuple):
    """A bridge, a client of the daemon's sockets, and directories of which the first two are allowed."""

    bridge: Bridge
    client: Client
    work: Path
    other: Path
    outside: Path


@pytest.fixture
def folders(short_folder: Path) -> tuple[Path, ...]:
    made = tuple(short_folder.resolve() / name for name in ("work", "other", "outside"))
    for folder in made:
        folder.mkdir()
        (folder / "a.txt").write_text(f"in {folder.name}")
    return made


@pytest.fixture
async def place(
    short_folder: Path, folders: tuple[Path, ...], provider: Provider
) -> AsyncIterator[Place]:
    work, other, outside = folders
    workspaces = Workspaces(
        Workspace(path_sandbox=PathSandbox(work)), Roots((work, other), (outside / "hidden",))
    )
    async with (
        socket_daemon(
            short_folder,
            provider=provider,
            workdir=work,
            workspaces=workspaces,
            permissions=RulePermissions("auto", (), workspaces),
        ) as daemon,
        bridge_to(daemon) as bridge,
    ):
        yield Place(bridge, await daemon.connect(), work, other, outside)


async def read_of(place: Place, stub: StubModel, session: str, path: str) -> dict[str, Any]:
    """Let the model read a file, and return the part of the call."""
    stub.script(tool_reply(("read", {"path": path})), text_reply("done"))
    told = await place.bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    part: dict[str, Any] = told[-2]["parts"][-1]
    return part


# --- attached ------------------------------------------------------------------------------------


@pytest.mark.behaviour("http_attaching_leaves_its_audit")
async def test_an_attached_session_records_its_former_workspace_and_the_time_and_reason(
    place: Place, stub: StubModel
) -> None:
    bridge = place.bridge
    made = await bridge.post("/session")
    session, path = made["id"], f"/api/session/{made['id']}/attach"
    assert "in work" in (await read_of(place, stub, session, "a.txt"))["result"]
    async with bridge.events(sessionID=session) as frames:
        reply = await bridge.http.post(
            path, json={"target_workspace": f" {place.other}/ ", "reason_tag": " moved by hand "}
        )
        assert reply.status_code == 200
        [*_, event] = await frames.until("session.attached")
    told = reply.json()
    moved = str(place.other)
    audit = {
        "originWorkspaceRoot": str(place.work),
        "attachedFromWorkspace": str(place.work),
        "attachedToWorkspace": moved,
        "attachReason": "moved by hand",
        "workspaceRoot": moved,
        "directory": moved,
        "projectID": project_id(moved),
        "ok": True,
    }
    assert {name: told[name] for name in audit} == audit
    assert told["attachTimestampMs"] >= made["createdAtMs"]
    assert len(told["messages"]) == 3
    assert {
        name: event.properties[name]
        for name in ("sessionID", "workspaceRoot", "attachedFromWorkspace", "attachedToWorkspace")
    } == {
        "sessionID": session,
        "workspaceRoot": moved,
        "attachedFromWorkspace": str(place.work),
        "attachedToWorkspace": moved,
    }
    assert event.properties["attachReason"] == "moved by hand"
    assert "in other" in (await read_of(place, stub, session, "a.txt"))["result"]
    assert [each["id"] for each in await bridge.get("/session", workspace=moved)] == [session]
    assert await bridge.get("/session") == []
    back = await bridge.post(f"/session/{session}/attach", target_workspace=str(place.work))
    assert back["originWorkspaceRoot"] == str(place.work)
    assert back["attachedFromWorkspace"] == moved
    assert back["attachReason"] == "manual_attach"
    assert await bridge.get(f"/session/{session}") == {
        key: value for key, value in (back | {"messages": None}).items() if key != "ok"
    } | {"messages": (await bridge.get(f"/session/{session}"))["messages"]}


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({}, 422, "INVALID_REQUEST", "target_workspace"),
        ({"target_workspace": 7}, 422, "INVALID_REQUEST", "target_workspace must be a string"),
        ({"target_workspace": ""}, 404, "NOT_FOUND", "target_workspace"),
        ({"target_workspace": " \t"}, 404, "NOT_FOUND", "target_workspace"),
        ({"target_workspace": "other"}, 422, "INVALID_REQUEST", "target_workspace must be an abs"),
        ({"target_workspace": "~/other"}, 422, "INVALID_REQUEST", "target_workspace must be an"),
        ({"target_workspace": "/" + "x" * 4096}, 422, "INVALID_REQUEST", "target_workspace is too"),
        ({"target_workspace": "{outside}"}, 403, "WORKSPACE_NOT_ALLOWED", "workspace_not_allowed"),
        ({"target_workspace": "{work}/../outside"}, 403, "WORKSPACE_NOT_ALLOWED", ""),
        ({"target_workspace": "{other}/gone"}, 404, "WORKSPACE_NOT_FOUND", "no such folder"),
        (
            {"target_workspace": "{other}", "reason_tag": "x" * 4097},
            422,
            "INVALID_REQUEST",
            "reason_tag is too long",
        ),
    ],
)
async def test_attaching_to_an_invalid_workspace_is_refused(
    body: dict[str, Any], status: int, code: str, words: str, place: Place
) -> None:
    session = await place.bridge.new_session()
    folders = {name: str(getattr(place, name)) for name in ("work", "other", "outside")}
    body = {
        name: value.format(**folders) if isinstance(value, str) else value
        for name, value in body.items()
    }
    refused = await place.bridge.http.post(f"/session/{session}/attach", json=body)
    told = refused.json()
    assert (refused.status_code, told["code"]) == (status, code), told
    assert words in told["error"]
    assert (await place.bridge.get(f"/session/{session}"))["workspaceRoot"] == str(place.work)


async def test_attaching_a_session_during_its_run_is_refused(place: Place, stub: StubModel) -> None:
    bridge = place.bridge
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        begun = await bridge.http.post(
            f"/session/{session}/prompt_async", json={"parts": text("go")}
        )
        await gate.reached()
        refused = await bridge.http.post(
            f"/session/{session}/attach", json={"target_workspace": str(place.other)}
        )
        assert refused.status_code == 409
        told = refused.json()
        assert told["code"] == "SESSION_RUN_CONFLICT"
        assert told["activeRun"]["runID"] == begun.headers["x-tandem-run-id"]
        gate.open()
        await frames.until("session.run.finished")
    assert (await bridge.get(f"/session/{session}"))["workspaceRoot"] == str(place.work)


# --- overridden ----------------------------------------------------------------------------------


@pytest.mark.behaviour("http_overrides_last_as_told")
@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({}, 900),
        ({"ttl_seconds": 600}, 600),
        ({"ttl_seconds": 30}, 30),
        ({"ttl_seconds": 29}, 30),
        ({"ttl_seconds": 0}, 30),
        ({"ttl_seconds": -5}, 30),
        ({"ttl_seconds": 86_400}, 86_400),
        ({"ttl_seconds": 86_401}, 86_400),
        ({"ttl_seconds": 10**15}, 86_400),
    ],
)
async def test_the_response_and_the_events_and_the_daemon_agree_on_the_length_of_an_override(
    body: dict[str, Any], seconds: int, place: Place
) -> None:
    bridge = place.bridge
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        reply = await bridge.http.post(f"/session/{session}/workspace/override", json=body)
        told = await frames.until("session.workspace_override.granted")
    assert reply.status_code == 200
    granted = reply.json()
    assert granted == {
        "ok": True,
        "ttlSeconds": seconds,
        "expiresAtMs": granted["expiresAtMs"],
    }
    activated, again = told[-2:]
    assert activated.type == "workspace.override.activated"
    assert activated.properties["cappedTtlSeconds"] == again.properties["ttlSeconds"] == seconds
    assert activated.properties["expiresAt"] == again.properties["expiresAtMs"]
    assert again.properties["expiresAtMs"] == granted["expiresAtMs"]
    ours = (await place.client.request("get_state", session_id=session))["override"]
    assert ours["ttl_seconds"] == seconds


@pytest.mark.parametrize("body", ["[]", '{"ttl_seconds": "long"}', '{"ttl_seconds": 1.5}', "7"])
async def test_an_override_requires_an_object_with_integer_seconds(body: str, place: Place) -> None:
    session = await place.bridge.new_session()
    path = f"/session/{session}/workspace/override"
    json = {"content-type": "application/json"}
    refused = await place.bridge.http.post(path, content=body, headers=json)
    assert (refused.status_code, refused.json()["code"]) == (422, "INVALID_REQUEST")


async def test_an_override_without_a_body_lasts_fifteen_minutes(place: Place) -> None:
    session = await place.bridge.new_session()
    granted = await place.bridge.http.post(f"/session/{session}/workspace/override")
    assert granted.json()["ttlSeconds"] == 900


@pytest.mark.parametrize("path", ["prompt_async", "prompt_sync", "message", "attach"])
async def test_a_missing_body_is_judged_as_an_empty_object(path: str, place: Place) -> None:
    session = await place.bridge.new_session()
    missing = await place.bridge.http.post(f"/session/{session}/{path}")
    empty = await place.bridge.http.post(f"/session/{session}/{path}", json={})
    assert (missing.status_code, missing.json()) == (422, empty.json())


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("answer", "state"), [("once", "completed"), ("reject", "failed")])
async def test_a_path_outside_is_refused_and_under_an_override_needs_approval(
    answer: str, state: str, place: Place, stub: StubModel
) -> None:
    bridge = place.bridge
    session = await bridge.new_session()
    path = str(place.outside / "a.txt")
    refused = await read_of(place, stub, session, path)
    assert refused["state"] == "failed"
    assert (await bridge.get("/permission"))["requests"] == []
    await bridge.post(f"/session/{session}/workspace/override", ttl_seconds=60)
    stub.script(tool_reply(("read", {"path": path})), text_reply("done"))
    async with bridge.events(sessionID=session) as frames:
        await bridge.http.post(f"/session/{session}/prompt_async", json={"parts": text("go")})
        [*_, asked] = await frames.until("permission.asked")
        [request] = (await bridge.get("/permission"))["requests"]
        assert request["id"] == asked.properties["requestID"]
        assert request["args"]["path"] == path
        applied = await bridge.post(f"/permission/{request['id']}/reply", reply=answer)
        assert applied["ok"] is True
        await frames.until("session.run.finished")
    told = await bridge.get(f"/session/{session}/message")
    part = told[-2]["parts"][-1]
    assert part["state"] == state
    assert ("in outside" in part.get("result", "")) is (state == "completed")


async def test_an_override_survives_a_restart(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        granted = await bridge.post(f"/session/{session}/workspace/override")
    async with (
        socket_daemon(short_folder, provider=provider) as daemon,
        bridge_to(daemon) as bridge,
    ):
        client = await daemon.connect()
        ours = (await client.request("get_state", session_id=session))["override"]
        assert ours["ttl_seconds"] == granted["ttlSeconds"]
        assert (await bridge.get(f"/session/{session}"))["id"] == session
