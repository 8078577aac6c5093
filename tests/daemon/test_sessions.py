"""Session metadata: at creation, in updates and lists, across restarts, and sent to model and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.commands import pages
from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import rules_of
from nousd.providers.interface import Provider
from nousd.providers.mock.provider import MockProvider
from nousd.wire.objects.entries import PermissionMode
from tests.daemon.asking_bench import calls
from tests.daemon.scripted import ScriptedProvider, says
from tests.daemon.task_bench import children_of, result_of, task_daemon, tasks
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    Payload,
    memory_daemon,
    of_type,
    socket_daemon,
)
from tests.harness.stub_model import Gate, StubModel, error_reply, hanging_reply, text_reply

SETTINGS: Payload = {
    "source": "chat",
    "source_metadata": {"thread": {"id": 7, "old": None}, "big": 10**18},
    "model": "stub-2",
    "sampling": {"temperature": 0.5, "max_tokens": 100},
    "rules": {"deny": ["write"], "ask": ["fetch"]},
}


async def record(client: Client, session_id: str) -> Payload:
    session: Payload = (await client.request("get_session", session_id=session_id))["session"]
    return session


async def create_session(client: Client, **fields: Any) -> str:
    session_id: str = (await client.request("new_session", **fields))["session_id"]
    return session_id


def settings_in(session: Payload) -> Payload:
    return {key: session.get(key) for key in SETTINGS}


# --- read ----------------------------------------------------------------------------------------


@pytest.mark.behaviour("a_session_comes_with_its_newest_messages")
async def test_get_session_returns_the_newest_messages_and_the_failed_runs(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(text_reply("well"), error_reply(400, "no"), text_reply("well"), hanging_reply())
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        session_id = await create_session(client)
        runs = []
        for text in ("one", "two", "three", "four"):
            runs.append((await client.request("prompt", text=text, wait=False))["run_id"])
            if text == "four":
                await stub.next_request()
                await client.request("abort")
            await events.run()
        newest = await client.request("get_session", session_id=session_id, messages=2)
        assert newest["transcript"] == await client.request("get_messages", limit=2)
        assert newest["transcript"]["has_more"] is True
        assert newest["session"] == await record(client, session_id)
        failed = await client.request("list_runs", session_id=session_id)
        assert newest["failed_runs"] == [run for run in failed["runs"] if run["status"] == "error"]
        assert [run["run_id"] for run in newest["failed_runs"]] == [runs[1]]
        alone = await client.request("get_session", session_id=session_id)
        assert set(alone) == {"session"}


async def test_get_session_agrees_with_the_list_and_is_the_same_after_a_restart(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(text_reply("well"))
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        session_id = await create_session(client, **SETTINGS)
        await client.request("prompt", session_id=session_id, text="go", wait=False)
        await events.run()
        before = await record(client, session_id)
        (row,) = (await client.request("list_sessions"))["sessions"]
        assert {key: before[key] for key in row} == row
    async with socket_daemon(short_folder, provider=provider) as daemon:
        assert await record(await daemon.connect(), session_id) == before


# --- creating ------------------------------------------------------------------------------------


@pytest.mark.behaviour("a_session_is_made_as_it_is_to_be")
async def test_a_session_created_with_a_parent_is_listed_under_it_and_starts_empty(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(text_reply("said in the first"))
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        parent = await create_session(client, name="parent")
        await client.request("prompt", text="go", session_id=parent)
        child = await create_session(client, parent_id=parent)
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        found = await client.request("list_sessions", parent_id=parent)
        assert [row["session_id"] for row in found["sessions"]] == [child]
        assert (await record(client, child))["parent_id"] == parent
        assert (await client.request("get_messages", session_id=child))["messages"] == []
        assert (await client.request("get_tree", session_id=child))["nodes"] == []
        error = await client.refusal("new_session", parent_id="sess-none")
        assert error["code"] == "session_not_found"


@pytest.mark.behaviour("a_session_is_made_as_it_is_to_be")
async def test_settings_given_at_creation_survive_a_restart_and_apply_to_one_session_only(
    short_folder: Path, provider: Provider
) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        session_id = await create_session(client, **SETTINGS)
        assert settings_in(await record(client, session_id)) == SETTINGS
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        assert settings_in(await record(client, session_id)) == SETTINGS
        other = await record(client, await create_session(client))
        assert other["model"] == "stub-model"
        assert not {"source", "source_metadata", "sampling", "rules"} & set(other)


async def test_a_branch_inherits_its_parents_settings_and_changes_independently(
    client: Client,
) -> None:
    parent = await create_session(client, name="parent", **SETTINGS)
    await client.request("update_session", session_id=parent, archived=True)
    answer = await client.request("branch_session", session_id=parent)
    branch = await record(client, answer["session_id"])
    assert settings_in(branch) == SETTINGS
    assert (branch["parent_id"], branch["archived"], "name" in branch) == (parent, False, False)
    await client.request("update_session", session_id=branch["session_id"], rules=None)
    assert (await record(client, parent))["rules"] == SETTINGS["rules"]


async def test_a_session_created_without_activation_keeps_the_active_session(
    client: Client, daemon: Daemon
) -> None:
    active = await create_session(client)
    events = await daemon.watch(types=["session_created", "session_activated"])
    aside = await client.request("new_session", activate=False)
    branch = await client.request("branch_session", session_id=active, activate=False)
    assert not aside["active"]
    assert not branch["active"]
    assert (await client.request("get_state"))["session_id"] == active
    after = await client.request("new_session")
    kinds = [(await events.next())["type"] for _ in range(4)]
    assert kinds == ["session_created"] * 3 + ["session_activated"]
    assert (await client.request("get_state"))["session_id"] == after["session_id"]


async def test_a_first_session_created_without_activation_leaves_none_active(
    client: Client,
) -> None:
    await client.request("new_session", activate=False)
    assert (await client.request("get_state"))["session_id"] == ""


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"model": "x"}, "openai/x"),
        ({"model": "openai/x"}, "openai/x"),
        ({"provider": "openai"}, "openai/stub-model"),
        ({"provider": "openai", "model": "x"}, "openai/x"),
        ({"provider": "openai", "model": "openai/x"}, "openai/x"),
        ({"provider": "openai", "model": "meta/llama"}, "openai/meta/llama"),
    ],
)
async def test_new_session_accepts_a_model_with_or_without_its_provider(
    client: Client, fields: Payload, model: str
) -> None:
    session = await record(client, await create_session(client, **fields))
    assert f"{session['provider']}/{session['model']}" == model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"provider": "nobody"}, "provider_not_configured"),
        ({"provider": "nobody", "model": "x"}, "provider_not_configured"),
        ({"model": "opnai/x"}, "model_unknown"),
        ({"model": "openai"}, "model_unknown"),
        ({"rules": {"ask": ["bash(git *)", "!"]}}, None),
    ],
)
async def test_new_session_with_invalid_settings_creates_nothing(
    client: Client, fields: Payload, message: str | None
) -> None:
    error = await client.refusal("new_session", **fields)
    if message is None:
        assert error["message"].startswith("rules.ask[1]: ask rule '!'")
    else:
        assert error["message"] == message
    assert (await client.request("list_sessions"))["count"] == 0


# --- changing ------------------------------------------------------------------------------------


async def test_an_update_is_durable_and_leaves_other_fields_unchanged(
    short_folder: Path, provider: Provider
) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        session_id = await create_session(client, name="a", **SETTINGS)
        await client.request(
            "update_session",
            session_id=session_id,
            name="b",
            archived=True,
            sampling={"top_p": 0.5},
            source_metadata=None,
        )
        after = await record(client, session_id)
        assert (after["name"], after["archived"]) == ("b", True)
        assert settings_in(after) == {
            **SETTINGS,
            "sampling": {"top_p": 0.5},
            "source_metadata": None,
        }
    async with socket_daemon(short_folder, provider=provider) as daemon:
        assert await record(await daemon.connect(), session_id) == after


async def test_an_update_without_a_change_is_acknowledged_and_writes_no_event(
    client: Client, daemon: Daemon
) -> None:
    session_id = await create_session(client, name="a", **SETTINGS)
    before = (await client.request("get_state"))["cursor"]
    again = {key: SETTINGS[key] for key in ("source_metadata", "sampling", "rules")}
    for payload in ({}, {"name": "a", "archived": False}, again):
        await client.request("update_session", session_id=session_id, **payload)
    assert (await client.request("get_state"))["cursor"] == before
    await client.request("rename_session", session_id=session_id, name="a")
    assert (await client.request("get_state"))["cursor"] == before


async def test_a_deleted_session_cannot_be_read_or_changed(client: Client) -> None:
    session_id = await create_session(client, name="a")
    await client.request("delete_session", session_id=session_id)
    for type_ in ("get_session", "update_session"):
        error = await client.refusal(type_, session_id=session_id)
        assert error["code"] == "session_not_found"


# --- lists ---------------------------------------------------------------------------------------


async def test_a_row_of_the_list_shows_the_run_and_the_model_of_its_session(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    accepted = await client.request("prompt", text="go", wait=False)
    await events.until("message_update", run_id=accepted["run_id"])
    [row] = (await client.request("list_sessions"))["sessions"]
    assert (row["run_state"], row["run_id"]) == ("running", accepted["run_id"])
    assert (row["provider"], row["model"]) == ("openai", "stub-model")
    alone = await record(client, row["session_id"])
    assert {key: alone[key] for key in row} == row
    gate.open()
    await events.run()
    [row] = (await client.request("list_sessions"))["sessions"]
    assert (row["run_state"], "run_id" in row) == ("idle", False)


async def test_sessions_are_found_by_any_spelling_of_their_workspace(
    client: Client, daemon: Daemon, short_folder: Path
) -> None:
    session_id = await create_session(client)
    workdir = Path((await record(client, session_id))["workspace"])
    link = short_folder / "link"
    link.symlink_to(workdir)
    for spelling in (str(workdir), f"{workdir}/", f"{workdir}/../{workdir.name}", str(link)):
        found = await client.request("list_sessions", workspace=spelling)
        assert [row["session_id"] for row in found["sessions"]] == [session_id]
    assert (await client.request("list_sessions", workspace="/"))["count"] == 0


async def test_a_list_too_large_for_one_response_continues_on_the_next_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await create_session(client, source_metadata={"a": "x" * 500}) for _ in range(5)]
    monkeypatch.setattr(pages, "PAGE_BYTES_MAX", 2000)
    seen: list[str] = []
    page = await client.request("list_sessions")
    while True:
        seen += [row["session_id"] for row in page["sessions"]]
        assert page["count"] == 5
        if not page["has_more"]:
            break
        page = await client.request("list_sessions", before=seen[-1])
    assert seen == ids[::-1]


# --- sampling ------------------------------------------------------------------------------------


async def sampling_of_last_request(stub: StubModel) -> Payload:
    body: Payload = stub.requests[-1].json
    names = ("model", "temperature", "top_p", "max_tokens")
    return {name: body[name] for name in names if name in body}


@pytest.mark.behaviour("sampling_reaches_the_model")
async def test_a_model_call_uses_the_sessions_sampling_overridden_by_the_runs(
    client: Client, daemon: Daemon, stub: StubModel
) -> None:
    inputs = await daemon.watch(types=["model_input"])
    session_id = await create_session(client, sampling={"temperature": 0.5, "max_tokens": 100})
    stub.script(*(text_reply("ok") for _ in range(4)))
    hashes = []

    async def sampling_of_run(**more: Any) -> tuple[Payload, Payload | None]:
        await client.request("prompt", text="go", **more)
        event = (await inputs.next())["payload"]
        hashes.append(event["input_hash"])
        return await sampling_of_last_request(stub), event.get("sampling")

    model = {"model": "stub-model"}
    assert await sampling_of_run() == (
        {**model, "temperature": 0.5, "max_tokens": 100},
        {"temperature": 0.5, "max_tokens": 100},
    )
    assert await sampling_of_run(sampling={"temperature": 1, "top_p": 0.25}) == (
        {**model, "temperature": 1, "top_p": 0.25, "max_tokens": 100},
        {"temperature": 1, "top_p": 0.25, "max_tokens": 100},
    )
    await client.request("update_session", session_id=session_id, sampling={"top_p": 0.75})
    assert await sampling_of_run() == ({**model, "top_p": 0.75}, {"top_p": 0.75})
    await client.request("update_session", session_id=session_id, sampling=None)
    assert await sampling_of_run() == (model, None)
    assert len(set(hashes)) == 4


async def test_a_sampling_change_during_a_run_applies_from_the_next_model_call(
    client: Client, events: Events, stub: StubModel
) -> None:
    session_id = await create_session(client)
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"), text_reply("done"))
    accepted = await client.request("prompt", text="go", wait=False)
    await events.until("message_update", run_id=accepted["run_id"])
    await client.request("update_session", session_id=session_id, sampling={"top_p": 0.5})
    await client.request("follow_up", text="and?")
    gate.open()
    await events.run()
    first, second = (request.json for request in stub.requests)
    assert ("top_p" in first, second["top_p"]) == (False, 0.5)


async def test_a_summary_is_not_limited_by_the_sessions_max_tokens(
    client: Client, stub: StubModel
) -> None:
    await create_session(client, sampling={"max_tokens": 5})
    stub.script(text_reply("one"), text_reply("two"), text_reply("a summary"))
    await client.request("prompt", text="first " + "x" * 100)
    await client.request("prompt", text="second")
    await client.request("compact_session")
    assert "max_tokens" not in stub.requests[-1].json


# --- rules ---------------------------------------------------------------------------------------

WRITE = '[[tool write {"path": "a", "content": "b"}]] [[then]] [[say 1]]'


async def result(client: Client, session_id: str, prompt: str = WRITE) -> str:
    await client.request("prompt", text=prompt, session_id=session_id)
    entries = (await client.request("get_messages", session_id=session_id))["messages"]
    text: str = [entry["text"] for entry in entries if entry["role"] == "tool"][-1]
    return text


@pytest.mark.behaviour("a_sessions_rules_hold_for_it_alone")
@pytest.mark.parametrize("mode", ["auto", "yolo"])
async def test_a_sessions_deny_rule_applies_to_that_session_only(
    tmp_path: Path, mode: PermissionMode
) -> None:
    async with memory_daemon(
        workdir=tmp_path, provider=MockProvider(), permissions=RulePermissions(mode)
    ) as daemon:
        client = await daemon.connect()
        bound = await create_session(client, rules={"deny": ["write(a)"]})
        free = await create_session(client)
        denied = await result(client, bound)
        assert "the rule write(a) of the session" in denied
        assert not (tmp_path / "a").exists()
        assert "the rule" not in await result(client, free)
        assert (tmp_path / "a").read_text() == "b"
        listed = (await client.request("list_permissions", session_id=bound))["rules"]
        assert listed == [{"decision": "deny", "rule": "write(a)", "origin": "the session"}]
        assert (await client.request("list_permissions", session_id=free))["rules"] == []
        await client.request("update_session", session_id=bound, rules=None)
        assert "the rule" not in await result(client, bound)


async def test_a_sessions_allow_rule_avoids_an_approval_but_overrides_no_deny_rule(
    tmp_path: Path,
) -> None:
    permissions = RulePermissions("ask", rules_of("deny", ["write(secret)"], "the settings"))
    async with memory_daemon(
        workdir=tmp_path, provider=MockProvider(), permissions=permissions
    ) as daemon:
        client = await daemon.connect()
        session_id = await create_session(client, rules={"allow": ["write"]})
        assert "permission" not in await result(client, session_id)
        assert (tmp_path / "a").exists()
        secret = WRITE.replace('"a"', '"secret"')
        assert "the rule write(secret) of the settings" in await result(client, session_id, secret)


async def test_rules_set_during_a_run_apply_to_its_next_tool_call(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        session_id = await create_session(client)
        await client.request("prompt", text="go", wait=False)
        await provider.calls.wait_waiting()
        await client.request("update_session", session_id=session_id, rules={"deny": ["ls"]})
        provider.answer(calls(("ls", "{}")))
        await provider.calls.wait_waiting()
        provider.answer(says("done"))
        [end] = of_type(await events.run(), "tool_execution_end")
        assert "the rule ls of the session" in end["result"]


async def test_a_task_obeys_the_rules_of_its_parent_and_its_own(
    tmp_path: Path,
) -> None:
    write = ("write", '{"path": "a", "content": "b"}')
    async with task_daemon(tmp_path, permissions=RulePermissions("yolo")) as bench:
        session_id = await create_session(bench.client, rules={"deny": ["write"]})
        bench.on("go", tasks({"prompt": "a"}), says("done"))
        bench.on("a", calls(write), says("told"))
        run = await bench.run()
        assert "the rule write of the session" in result_of(run, "write")["result"]
        [child] = children_of(run)
        await bench.client.request("update_session", session_id=session_id, rules=None)
        own = {"session_id": child["session_id"]}
        await bench.client.request("update_session", **own, rules={"deny": ["write(a)"]})
        bench.on("a", calls(write), says("told"))
        again = await bench.run("more", **own)
        assert "the rule write(a) of the session" in result_of(again, "write")["result"]
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("worker", "inherits"), [({}, True), ({"model": "other"}, False)])
async def test_a_task_inherits_its_parents_sampling_unless_it_uses_another_model(
    tmp_path: Path, worker: Payload, inherits: bool
) -> None:
    async with task_daemon(tmp_path) as bench:
        await create_session(bench.client, sampling={"top_p": 0.5})
        bench.on("go", tasks({"prompt": "a", "worker": {"name": "w", **worker}}), says("done"))
        bench.on("a", says("told"))
        [child] = children_of(await bench.run())
        session = await record(bench.client, child["session_id"])
        assert session.get("sampling") == ({"top_p": 0.5} if inherits else None)
