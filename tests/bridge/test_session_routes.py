"""Sessions over HTTP: created, read, changed, deleted, and refused requests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.workspace.workspaces import Roots, Workspace, Workspaces
from nousd.providers.interface import Provider
from nousd.tools.fs.path_sandbox import PathSandbox
from tests.bridge.harness import Bridge, bridge_to, text
from tests.harness.daemon import Client, Daemon, socket_daemon
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply

ID_ROUTES = [
    ("GET", "/session/{id}", None),
    ("PATCH", "/session/{id}", {"title": "x"}),
    ("DELETE", "/session/{id}", None),
    ("GET", "/session/{id}/message", None),
    ("POST", "/session/{id}/message", {"parts": text("x")}),
    ("POST", "/session/{id}/prompt_async", {"parts": text("x")}),
    ("POST", "/session/{id}/prompt_sync", {"parts": text("x")}),
    ("GET", "/session/{id}/run", None),
    ("POST", "/session/{id}/cancel", None),
    ("POST", "/session/{id}/abort", {}),
    ("POST", "/session/{id}/run/run-1/cancel", None),
    ("POST", "/session/{id}/attach", {"target_workspace": "/"}),
    ("POST", "/session/{id}/workspace/override", {}),
    ("GET", "/session/{id}/todo", None),
    ("GET", "/session/{id}/children", None),
    ("POST", "/session/{id}/fork", {}),
    ("POST", "/session/{id}/summarize", {}),
    ("POST", "/session/{id}/seen", {}),
    ("POST", "/session/{id}/restore", None),
]


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "/api"])
async def test_an_unknown_session_is_404_with_an_envelope_on_every_route(
    prefix: str, bridge: Bridge
) -> None:
    for id in ("sess-none", "x" * 1000, "%20", "%00", "%F0%9F%98%80"):
        for method, path, body in ID_ROUTES:
            url = prefix + path.replace("{id}", id)
            reply = await bridge.http.request(method, url, json=body)
            assert reply.status_code == 404, (method, url, reply.text)
            told = reply.json()
            assert (told["code"], told["retryable"]) == ("SESSION_NOT_FOUND", False), (method, path)
            assert told["error"]


FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("PATCH", "/session/{id}", {"json": {"title": 5}}),
    ("PATCH", "/session/{id}", {"json": {"title": " "}}),
    ("PATCH", "/session/{id}", {"json": {"permission": [{"permission": "*", "action": "x"}]}}),
    ("POST", "/session/{id}/prompt_async", {"json": {"parts": 5}}),
    ("POST", "/session/{id}/prompt_async", {"json": {"parts": text("x"), "temperature": 99}}),
    ("POST", "/session/{id}/prompt_sync", {"content": b"no json"}),
    ("POST", "/session/{id}/message", {"json": {"prts": text("x")}}),
    ("POST", "/session/{id}/attach", {"json": {"target_workspace": " "}}),
    ("POST", "/session/{id}/attach", {"content": b"{}", "headers": {"content-type": "text/plain"}}),
]


@pytest.mark.behaviour("http_prompts_without_parts_run_what_was_appended")
@pytest.mark.parametrize(("method", "path", "request_"), FAULTS)
async def test_an_unknown_session_is_told_before_a_fault_of_the_request(
    method: str, path: str, request_: dict[str, Any], bridge: Bridge
) -> None:
    reply = await bridge.http.request(method, path.replace("{id}", "nope"), **request_)
    assert (reply.status_code, reply.json()["code"]) == (404, "SESSION_NOT_FOUND"), reply.text
    session = await bridge.new_session()
    reply = await bridge.http.request(method, path.replace("{id}", session), **request_)
    assert reply.is_client_error
    assert reply.json()["code"] != "SESSION_NOT_FOUND", reply.text


async def test_a_new_session_has_the_fields_of_the_engine(
    bridge: Bridge, short_folder: Path
) -> None:
    workdir = str((short_folder / "work").resolve())
    made = await bridge.http.post("/session")
    assert made.status_code == 200
    told = made.json()
    digest = hashlib.sha256(workdir.lower().encode()).hexdigest()[:12]
    created = told["time"]["created"]
    assert told.pop("environment").keys() == {"os", "arch", "shell_family", "path_style"}
    assert told.pop("id")
    assert told == {
        "version": "v1",
        "projectID": f"workspace-{digest}",
        "directory": workdir,
        "workspaceRoot": workdir,
        "title": "New session",
        "time": {"created": created, "updated": created},
        "model": {"providerID": "openai", "modelID": "stub-model"},
        "provider": "openai",
        "archived": False,
        "createdAtMs": told["createdAtMs"],
        "messages": [],
    }
    assert told["createdAtMs"] // 1000 == created


@pytest.mark.parametrize(
    "body",
    [
        {"top_p": 0.5, "max_tokens": 7, "source_kind": "chat", "source_metadata": {"a": 1}},
        {"topP": 0.5, "maxTokens": 7, "sourceKind": "chat", "sourceMetadata": {"a": 1}},
    ],
)
@pytest.mark.parametrize(
    "spelling", ["provider_id/model_id", "providerID/modelID", "providerId/modelId"]
)
async def test_a_session_is_created_from_every_key_in_every_spelling(
    body: dict[str, Any], spelling: str, bridge: Bridge, client: Client
) -> None:
    provider, model = spelling.split("/")
    parent = await bridge.new_session()
    made = await bridge.post(
        "/session",
        title="Named",
        parent_id=parent,
        directory=".",
        project_id="mine",
        pinned_workspace_id="pinned",
        model={provider: "openai", model: "stub-2"},
        temperature=0.25,
        unknown="passed over",
        **body,
    )
    assert made["title"] == "Named"
    assert made["parentID"] == parent
    assert made["model"] == {"providerID": "openai", "modelID": "stub-2"}
    assert (made["sourceKind"], made["sourceMetadata"]) == ("chat", {"a": 1})
    ours = (await client.request("get_session", session_id=made["id"]))["session"]
    assert ours["sampling"] == {"temperature": 0.25, "top_p": 0.5, "max_tokens": 7}
    assert not ours["active"], "the active session of other clients stays what it is"
    children = await bridge.get(f"/session/{parent}/children")
    assert [child["id"] for child in children] == [made["id"]]


# --- finding, marking and keeping -----------------------------------------------------------------


@pytest.mark.behaviour("http_sessions_are_found_by_their_texts")
async def test_sessions_are_found_by_their_titles_and_messages(bridge: Bridge) -> None:
    titled = await bridge.new_session(title="About the parser")
    spoken = await bridge.new_session(title="Other")
    message = await bridge.post(f"/session/{spoken}/message", parts=text("the PARSER is slow"))
    found = await bridge.get("/session/search", q="parser")
    assert (found["hasMore"], found["partial"]) == (False, False)
    first, second = found["matches"]
    assert (first["session"]["id"], first["messageID"], first["role"]) == (
        spoken,
        message["info"]["id"],
        "user",
    )
    assert first["snippet"] == "the PARSER is slow"
    assert (second["session"]["id"], "messageID" in second) == (titled, False)
    assert second["session"]["title"] == second["snippet"] == "About the parser"

    page = await bridge.get("/session/search", q="parser", limit=1)
    assert [each["session"]["id"] for each in page["matches"]] == [spoken]
    page = await bridge.get("/session/search", q="parser", limit=1, before=page["before"])
    assert [each["session"]["id"] for each in page["matches"]] == [titled]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"q": ""}, 400),
        ({"q": "x" * 257}, 400),
        ({"q": "x", "limit": 101}, 400),
        ({"q": "x", "before": "sess-none"}, 404),
    ],
)
async def test_an_invalid_search_is_refused(
    bridge: Bridge, query: dict[str, Any], status: int
) -> None:
    reply = await bridge.http.get("/session/search", params=query)
    assert reply.status_code == status, reply.text


@pytest.mark.behaviour("http_sessions_are_marked_as_seen")
async def test_what_one_client_has_seen_is_seen_for_all(bridge: Bridge, client: Client) -> None:
    session = await bridge.new_session()
    first = (await bridge.post(f"/session/{session}/message", parts=text("one")))["info"]["id"]
    await bridge.post(f"/session/{session}/message", parts=text("two"))
    assert (await bridge.get(f"/session/{session}"))["unread"]
    assert await bridge.post(f"/session/{session}/seen", messageID=first) == {"ok": True}
    assert (await bridge.get(f"/session/{session}"))["unread"]
    await bridge.post(f"/session/{session}/seen")
    assert "unread" not in await bridge.get(f"/session/{session}")
    ours = (await client.request("get_session", session_id=session))["session"]
    assert not ours["unread"]
    refused = await bridge.http.post(f"/session/{session}/seen", json={"messageID": "msg-none"})
    assert refused.status_code == 409


@pytest.mark.behaviour("http_deleted_sessions_can_be_kept")
async def test_a_session_that_is_to_be_deleted_can_be_kept(bridge: Bridge) -> None:
    session = await bridge.new_session(title="keep me")
    reply = await bridge.http.delete(f"/session/{session}", params={"undo_seconds": 600})
    told = reply.json()
    assert (reply.status_code, told["deleted"]) == (200, False)
    assert told["deleteAtMs"] > 600_000
    assert await bridge.get("/session", scope="global") == []
    kept = await bridge.post(f"/session/{session}/restore")
    assert (kept["id"], kept["title"]) == (session, "keep me")
    assert [each["id"] for each in await bridge.get("/session", scope="global")] == [session]
    reply = await bridge.http.delete(f"/session/{session}")
    assert reply.json() == {"deleted": True}
    assert (await bridge.http.post(f"/session/{session}/restore")).status_code == 404


@pytest.mark.behaviour("http_rules_are_never_passed_over")
async def test_rules_belong_to_the_session_and_an_invalid_one_is_refused(
    bridge: Bridge, client: Client
) -> None:
    rules = [
        {"permission": "read", "action": "allow"},
        {"permission": "write", "pattern": "src/**", "action": "always"},
        {"permission": "bash", "pattern": "*", "action": "ask"},
        {"permission": "edit", "pattern": "", "action": "once"},
        {"permission": "*", "action": "deny"},
        {"permission": "bash", "pattern": "rm *", "action": "Reject"},
    ]
    session = await bridge.new_session(permission=rules)
    ours = (await client.request("get_session", session_id=session))["session"]
    assert ours["rules"] == {
        "allow": ["read", "write(src/**)"],
        "ask": ["bash", "edit"],
        "deny": ["*", "bash(rm *)"],
    }
    for rule, meant in (
        ({"permission": "glob", "pattern": "*", "action": "deny"}, "find"),
        ({"permission": "webfetch", "pattern": "webfetch", "action": "deny"}, "web_fetch"),
        ({"permission": "webfetch", "pattern": "*.org", "action": "deny"}, "web_fetch(*.org)"),
        ({"permission": "mcp.github.*", "action": "deny"}, "mcp__github__*"),
        ({"permission": "websearch", "action": "deny"}, "websearch"),
    ):
        await bridge.http.patch(f"/session/{session}", json={"permission": [rule, rule]})
        ours = (await client.request("get_session", session_id=session))["session"]
        assert ours["rules"] == {"deny": [meant]}
    for rule, words in (
        ({"permission": "read", "action": "forbid"}, "permission[0].action must be one of"),
        ({"permission": "no rule", "action": "deny"}, "permission.deny[0]"),
        ({"permission": "", "action": "deny"}, "permission.deny[0]"),
        ({"action": "deny"}, "permission"),
    ):
        refused = await bridge.http.post("/session", json={"permission": [rule]})
        assert refused.status_code == 422
        assert words in refused.json()["error"]
        refused = await bridge.http.patch(f"/session/{session}", json={"permission": [rule]})
        assert refused.status_code == 422
    await bridge.http.patch(f"/session/{session}", json={"permission": []})
    ours = (await client.request("get_session", session_id=session))["session"]
    assert "rules" not in ours


@pytest.mark.slow(keep=7)
@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"title": 7}, 422, "INVALID_REQUEST", "title must be a string"),
        ({"title": "x" * 257}, 422, "INVALID_REQUEST", "title is too long: at most 256"),
        (
            {"workspace_root": "a/b"},
            422,
            "INVALID_REQUEST",
            "workspace_root (or directory) must be",
        ),
        ({"directory": "~/x"}, 422, "INVALID_REQUEST", "(or directory) must be an absolute path"),
        ({"directory": "/"}, 403, "WORKSPACE_NOT_ALLOWED", "workspace_not_allowed: "),
        ({"temperature": 2.5}, 422, "INVALID_REQUEST", "temperature"),
        ({"temperature": "hot"}, 422, "INVALID_REQUEST", "temperature must be a number"),
        ({"topP": -1}, 422, "INVALID_REQUEST", "top_p"),
        ({"maxTokens": 0}, 422, "INVALID_REQUEST", "max_tokens"),
        ({"source_kind": "no word"}, 422, "INVALID_REQUEST", "source_kind"),
        ({"source_metadata": {"a": "x" * 5000}}, 422, "INVALID_REQUEST", "source_metadata is too"),
        ({"provider": "nobody"}, 422, "PROVIDER_NOT_FOUND", "provider_not_configured"),
        ({"parent_id": "sess-none"}, 404, "SESSION_NOT_FOUND", ""),
        ([], 422, "INVALID_REQUEST", "the body must be an object, not an array"),
    ],
)
async def test_an_invalid_session_is_refused_with_the_field(
    body: Any, status: int, code: str, words: str, bridge: Bridge
) -> None:
    refused = await bridge.http.post("/session", json=body)
    told = refused.json()
    assert (refused.status_code, told["code"]) == (status, code), told
    assert words in told["error"]
    assert await bridge.get("/session", scope="global") == []


async def test_metadata_that_is_nested_too_deep_is_refused(bridge: Bridge) -> None:
    deep = b'{"source_metadata":{"a":' + b"[" * 300 + b"]" * 300 + b"}}"
    json = {"content-type": "application/json"}
    refused = await bridge.http.post("/session", content=deep, headers=json)
    assert refused.status_code == 422, refused.text
    deep = b'{"source_metadata":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    refused = await bridge.http.post("/session", content=deep, headers=json)
    assert refused.status_code == 400, refused.text


@pytest.mark.parametrize(
    ("content", "type", "status", "code"),
    [
        (b"{", "application/json", 400, "BAD_REQUEST"),
        (b'{"title":"\xff"}', "application/json", 400, "BAD_REQUEST"),
        (b"{}", "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"{}", "application/json; charset=utf-8", 200, ""),
        (b"{}", "application/merge-patch+json", 200, ""),
        (b"{}", None, 200, ""),
        (b"{}", "", 200, ""),
        (b"", None, 200, ""),
    ],
)
async def test_a_body_is_json_of_a_json_type_or_of_none_or_missing(
    content: bytes, type: str | None, status: int, code: str, bridge: Bridge
) -> None:
    session = await bridge.new_session()
    for method, path in (("POST", "/session"), ("PATCH", f"/session/{session}")):
        reply = await bridge.http.request(
            method, path, content=content, headers={} if type is None else {"content-type": type}
        )
        assert reply.status_code == status, reply.text
        assert reply.json().get("code", "") == code


async def test_a_body_of_another_type_is_refused_with_the_header_and_both_types(
    bridge: Bridge,
) -> None:
    """It is what curl sends with -d."""
    given = "application/x-www-form-urlencoded"
    reply = await bridge.http.post("/session", content=b"{}", headers={"content-type": given})
    assert reply.status_code == 415
    assert reply.json()["error"] == f"content-type must be application/json, not {given}"


# --- changed -------------------------------------------------------------------------------------


async def test_a_changed_session_is_returned_in_both_spellings(bridge: Bridge) -> None:
    made = await bridge.post("/session", source_kind="chat", source_metadata={"a": 1})
    reply = await bridge.http.patch(
        f"/session/{made['id']}", json={"title": "Renamed", "archived": True}
    )
    told = reply.json()
    assert reply.status_code == 200
    assert (told["id"], told["title"], told["archived"]) == (made["id"], "Renamed", True)
    assert told["workspace_root"] == told["workspaceRoot"] == made["workspaceRoot"]
    assert told["project_id"] == told["projectID"] == made["projectID"]
    assert told["source_kind"] == told["sourceKind"] == "chat"
    assert told["source_metadata"] == told["sourceMetadata"] == {"a": 1}
    assert told["time"]["created"] == made["time"]["created"]
    again = await bridge.get(f"/session/{made['id']}")
    assert (again["title"], again["archived"]) == ("Renamed", True)
    untouched = await bridge.http.patch(f"/session/{made['id']}", json={"title": None})
    assert untouched.json()["title"] == "Renamed"


@pytest.mark.parametrize("title", ["", "  ", "x" * 257])
async def test_an_empty_or_too_long_title_is_refused(title: str, bridge: Bridge) -> None:
    session = await bridge.new_session(title="Kept")
    reply = await bridge.http.patch(f"/session/{session}", json={"title": title})
    assert reply.status_code == 422
    assert "title" in reply.json()["error"]
    assert (await bridge.get(f"/session/{session}"))["title"] == "Kept"


# --- deleted -------------------------------------------------------------------------------------


@pytest.mark.behaviour("http_a_session_with_a_run_is_not_deleted")
async def test_deleting_a_session_with_a_run_only_cancels_the_run(
    bridge: Bridge, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    session = await bridge.new_session()
    async with bridge.events(sessionID=session) as frames:
        begun = await bridge.http.post(
            f"/session/{session}/prompt_async", json={"parts": text("go")}
        )
        await gate.reached()
        reply = await bridge.http.delete(f"/session/{session}")
        assert reply.status_code == 200
        told = reply.json()
        assert told["activeRun"].pop("startedAtMs") <= told["activeRun"].pop("lastActivityAtMs")
        assert told == {
            "deleted": False,
            "cancelRequested": True,
            "activeRun": {"runID": begun.headers["x-tandem-run-id"]},
            "reason": "active_run",
        }
        *before, end = await frames.until("session.run.finished")
        assert end.properties["status"] == "cancelled"
        (deferred,) = [frame for frame in before if frame.type == "session.delete.deferred"]
        assert deferred.properties == {
            "sessionID": session,
            "runID": begun.headers["x-tandem-run-id"],
            "reason": "active_run",
            "tenantContext": end.properties["tenantContext"],
        }
    assert (await bridge.http.delete(f"/session/{session}")).json() == {"deleted": True}
    assert (await bridge.http.get(f"/session/{session}")).status_code == 404
    assert (await bridge.http.delete(f"/session/{session}")).status_code == 404


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("http_lists_are_of_a_workspace")
async def test_a_list_covers_the_daemons_workspace_unless_another_or_all_are_requested(
    short_folder: Path, provider: Provider
) -> None:
    folders = {name: short_folder / name for name in ("work", "other")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    (short_folder / "link").symlink_to(folders["other"])
    own = Workspace(path_sandbox=PathSandbox(folders["work"]))
    workspaces = Workspaces(own, Roots((folders["work"], folders["other"])))
    async with (
        socket_daemon(
            short_folder, provider=provider, workdir=folders["work"], workspaces=workspaces
        ) as daemon,
        bridge_to(daemon) as bridge,
    ):
        mine = await bridge.new_session(workspace_root=str(folders["work"]))
        dot = await bridge.new_session(directory=".")
        other = await bridge.new_session(workspace_root=str(short_folder / "link"), directory=".")
        made = await bridge.get(f"/session/{other}")
        assert made["workspaceRoot"] == made["directory"] == str(folders["other"].resolve())

        async def listed(**query: str) -> list[str]:
            told = await bridge.get("/session", **query)
            assert all(session["messages"] == [] for session in told)
            return [session["id"] for session in told]

        assert await listed() == [dot, mine]
        assert await listed(scope="workspace") == [dot, mine]
        assert await listed(workspace=".") == [dot, mine]
        assert await listed(scope="global") == [other, dot, mine]
        for spelling in ("link", "other", "other/", "work/../other", "./other"):
            path = f"{short_folder}/{spelling}"
            assert await listed(workspace=path) == [other], spelling
            assert await listed(scope="workspace", workspace=path) == [other], spelling
        assert await listed(workspace="/nowhere") == []
        gone = await bridge.http.post(
            "/session", json={"workspace_root": str(folders["other"] / "gone")}
        )
        assert (gone.status_code, gone.json()["code"]) == (404, "WORKSPACE_NOT_FOUND")


async def test_a_list_is_paged_filtered_and_newest_first(bridge: Bridge) -> None:
    made = [
        await bridge.new_session(title=f"Number {n}", source_kind="even" if n % 2 == 0 else "odd")
        for n in range(5)
    ]
    await bridge.http.patch(f"/session/{made[0]}", json={"archived": True})

    async def listed(**query: Any) -> list[int]:
        return [made.index(session["id"]) for session in await bridge.get("/session", **query)]

    assert await listed() == [0, 4, 3, 2, 1]
    assert await listed(page_size=2) == [0, 4]
    assert await listed(page_size=2, page=3) == [1]
    assert await listed(page=9) == []
    assert await listed(archived="true") == [0]
    assert await listed(archived="false") == [4, 3, 2, 1]
    assert await listed(source="odd") == [3, 1]
    assert await listed(q="NUMBER 3") == [3]
    assert await listed(q="", source="", workspace="") == [0, 4, 3, 2, 1]


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    "query",
    [
        {"scope": "mine"},
        {"page": "0"},
        {"page": "one"},
        {"page_size": "0"},
        {"page_size": "1001"},
        {"archived": "maybe"},
        {"workspace": "a/b"},
        {"workspace": "~"},
        {"source": "no word"},
        {"q": "x" * 257},
    ],
)
async def test_an_invalid_query_is_refused_with_the_parameter(
    query: dict[str, str], bridge: Bridge
) -> None:
    reply = await bridge.http.get("/session", params=query)
    assert (reply.status_code, reply.json()["code"]) == (400, "BAD_REQUEST"), reply.text
    assert next(iter(query)) in reply.json()["error"]


async def test_a_page_of_long_rows_has_the_requested_size(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.daemon.commands.pages.PAGE_BYTES_MAX", 2000)
    made = [await bridge.new_session(source_metadata={"a": "x" * 500}) for _ in range(9)]
    told = await bridge.get("/session", page_size=7)
    assert [session["id"] for session in told] == made[:1:-1]
    told = await bridge.get("/session", page_size=7, page=2)
    assert [session["id"] for session in told] == made[1::-1]


# --- forks, children, summaries, todos -----------------------------------------------------------


async def test_a_fork_is_returned_at_the_top_and_as_a_session_and_is_not_active(
    bridge: Bridge, stub: StubModel, client: Client
) -> None:
    stub.script(text_reply("an answer"))
    session = await bridge.new_session(title="First")
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    fork = await bridge.post(f"/session/{session}/fork")
    assert fork["ok"] is True
    assert fork["id"] == fork["session"]["id"] != session
    assert fork["title"] == fork["session"]["title"]
    assert fork["parentID"] == session
    words = [message["parts"][0]["text"] for message in fork["messages"]]
    assert words == ["go", "an answer"]
    assert [child["id"] for child in await bridge.get(f"/session/{session}/children")] == [
        fork["id"]
    ]
    ours = (await client.request("get_session", session_id=fork["id"]))["session"]
    assert not ours["active"]


@pytest.mark.behaviour("http_children_are_those_of_tasks_too")
async def test_sessions_of_tasks_are_children_and_not_listed(
    bridge: Bridge, stub: StubModel
) -> None:
    stub.script(
        tool_reply(("task", {"tasks": [{"prompt": "look"}]})),
        text_reply("seen"),
        text_reply("done"),
    )
    session = await bridge.new_session()
    await bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    fork = await bridge.post(f"/session/{session}/fork")
    children = await bridge.get(f"/session/{session}/children")
    (of_task,) = [child for child in children if child["id"] != fork["id"]]
    assert [child["parentID"] for child in children] == [session] * 2
    messages = await bridge.get(f"/session/{of_task['id']}/message")
    assert [message["parts"] for message in messages] == [text("look"), text("seen")]
    assert (await bridge.get(f"/session/{of_task['id']}"))["parentID"] == session
    assert of_task["id"] not in {each["id"] for each in await bridge.get("/session?scope=global")}


async def test_summarizing_an_empty_or_running_session_is_a_conflict(
    bridge: Bridge, stub: StubModel
) -> None:
    session = await bridge.new_session()
    reply = await bridge.http.post(f"/session/{session}/summarize")
    assert (reply.status_code, reply.json()["code"]) == (409, "CONFLICT")
    gate = Gate()
    stub.script(text_reply("Hel", gate, "lo"))
    async with bridge.events(sessionID=session) as frames:
        begun = await bridge.http.post(
            f"/session/{session}/prompt_async", json={"parts": text("go")}
        )
        await gate.reached()
        reply = await bridge.http.post(f"/session/{session}/summarize")
        assert reply.status_code == 409
        told = reply.json()
        assert told["code"] == "SESSION_RUN_CONFLICT"
        assert told["activeRun"]["runID"] == begun.headers["x-tandem-run-id"]
        gate.open()
        await frames.until("session.run.finished")


async def test_the_todos_of_a_new_session_are_an_empty_list(bridge: Bridge) -> None:
    session = await bridge.new_session()
    assert await bridge.get(f"/session/{session}/todo") == []


async def test_sessions_survive_a_restart(short_folder: Path, provider: Provider) -> None:
    async def listed_sessions(daemon: Daemon) -> list[Any]:
        async with bridge_to(daemon) as bridge:
            if not await bridge.get("/session"):
                await bridge.new_session(title="Kept", source_kind="chat")
            told: list[Any] = await bridge.get("/session")
            return told

    async with socket_daemon(short_folder, provider=provider) as daemon:
        before = await listed_sessions(daemon)
    async with socket_daemon(short_folder, provider=provider) as daemon:
        assert await listed_sessions(daemon) == before
