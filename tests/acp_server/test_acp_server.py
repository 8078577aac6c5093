"""``nousd acp`` with an editor and a real daemon."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import trio

from nousd.acp_server.host import talk
from nousd.daemon.policy.permissions import RulePermissions
from nousd.net.jsonrpc import CANCELLED, INVALID_PARAMS
from nousd.providers.setup.registry import make_provider
from tests.acp_server.bench import Bench, bench_in, choosing
from tests.acp_server.editor import Editor, Message, RpcFailed, editor_at
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import Wire, of_type, socket_daemon

ONE_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
CALLING = "[[tool {} {}]] [[then]] [[text Done.]]".format


# --- the connection --------------------------------------------------------------------------


@pytest.mark.slow
async def test_version_1_is_what_an_editor_of_a_later_version_gets(bench: Bench) -> None:
    answer = await bench.editor.ask("initialize", protocolVersion=7)
    assert answer["protocolVersion"] == 1
    assert answer["agentCapabilities"]["loadSession"] is True
    assert answer["authMethods"] == []


async def test_a_line_that_is_no_json_is_answered_and_the_next_one_too(bench: Bench) -> None:
    await bench.editor.send(b"{oops\n")
    error = await bench.editor.until(lambda message: message.get("id", "") is None)
    assert error["error"]["code"] == -32700
    assert await bench.prompt("[[text Fine.]]") == "end_turn"


@pytest.mark.parametrize("line", [b"[]", b"42", b"{}", b'{"id":{},"method":"session/list"}'])
async def test_a_line_that_is_no_message_is_answered(bench: Bench, line: bytes) -> None:
    await bench.editor.send(line + b"\n")
    error = await bench.editor.until(lambda message: message.get("id", "") is None)
    assert error["error"]["code"] == -32600


async def test_a_request_with_half_a_character_is_answered_under_its_id(bench: Bench) -> None:
    """It can be written in JSON, and stands in no text."""
    params = {"sessionId": bench.session_id, "prompt": [{"type": "text", "text": "\ud83d"}]}
    await bench.editor.send({"id": 99, "method": "session/prompt", "params": params})
    error = await bench.editor.until(lambda message: message.get("id") == 99)
    assert error["error"]["code"] == -32700


async def test_paths_and_addresses_that_cannot_exist_cost_only_their_request(bench: Bench) -> None:
    with pytest.raises(RpcFailed, match="cwd: embedded null"):
        await bench.editor.ask("session/list", cwd="/a\0b")
    link = {"type": "resource_link", "uri": "http://[", "name": "n"}
    assert await bench.prompt("[[text Fine.]]", link) == "end_turn"
    for path in ("a\\u0000b", "a\\ud83db"):
        args = f'{{"path":"{path}","content":"x"}}'
        assert await bench.prompt(CALLING("write", args)) == "end_turn"
    assert len(bench.editor.updates("tool_call")) == 2


async def test_an_answer_to_nothing_is_not_answered(bench: Bench) -> None:
    await bench.editor.send({"id": 99, "result": {}})
    await bench.editor.send({"id": 99, "error": {"code": 1, "message": "no"}})
    await bench.editor.ask("session/list")
    assert [message for message in bench.editor.seen if message.get("id", "") is None] == []


async def test_an_unknown_method_is_an_error(bench: Bench) -> None:
    with pytest.raises(RpcFailed, match="there is no method logout"):
        await bench.editor.ask("logout")


# --- prompts ---------------------------------------------------------------------------------


async def test_a_prompt_is_answered_after_the_text_of_its_turn(bench: Bench) -> None:
    assert await bench.prompt("[[think 2]] [[say 3]]") == "end_turn"
    assert bench.editor.said("agent_thought_chunk") == "word1 word2"
    assert bench.editor.said() == "word1 word2 word3"
    assert len(bench.editor.updates("agent_message_chunk")) == 3
    assert bench.editor.updates("user_message_chunk") == []
    assert bench.editor.seen[-1]["result"] == {"stopReason": "end_turn"}
    (usage,) = bench.editor.updates("usage_update")
    assert 0 < usage["used"] < usage["size"]


@pytest.mark.behaviour("prompts_of_editors_queue")
async def test_prompts_that_are_sent_together_each_get_their_own_turn_and_answer(
    bench: Bench,
) -> None:
    ids = [await bench.begin(f"[[slow 20]] [[text {name}. {name}.]]") for name in "abc"]
    for id in ids:
        assert (await bench.editor.result(id))["stopReason"] == "end_turn"
    order = [
        message["id"] if "result" in message else message["params"]["update"]["content"]["text"]
        for message in bench.editor.seen
        if message.get("id") in ids or "content" in message.get("params", {}).get("update", {})
    ]
    assert order == [
        *("a. ", "a.", ids[0]),
        *("b. ", "b.", ids[1]),
        *("c. ", "c.", ids[2]),
    ]
    assert len((await bench.client.request("list_runs"))["runs"]) == 1


@pytest.mark.behaviour("editors_cancel_what_they_sent")
async def test_cancelling_ends_the_running_prompt_and_those_that_wait(bench: Bench) -> None:
    ids = [await bench.begin(text) for text in ("[[text Begun.]] [[hang]]", "never")]
    await bench.editor.update("agent_message_chunk")
    await bench.editor.notify("session/cancel", sessionId=bench.session_id)
    for id in ids:
        assert (await bench.editor.result(id))["stopReason"] == "cancelled"
    assert (await bench.client.request("get_queue", session_id=bench.session_id))["inputs"] == []
    assert await bench.prompt("[[text Again.]]") == "end_turn"


@pytest.mark.behaviour("editors_cancel_what_they_sent")
async def test_a_cancellation_right_behind_its_prompt_finds_it(bench: Bench) -> None:
    for _ in range(10):
        id = await bench.begin("[[hang]]")
        await bench.editor.notify("session/cancel", sessionId=bench.session_id)
        assert (await bench.editor.result(id))["stopReason"] == "cancelled"


async def test_a_request_that_the_editor_gives_up_stops_its_run(bench: Bench) -> None:
    id = await bench.begin("[[text Begun.]] [[hang]]")
    await bench.editor.update("agent_message_chunk")
    await bench.editor.notify("$/cancel_request", requestId=id)
    with pytest.raises(RpcFailed) as caught:
        await bench.editor.result(id)
    assert caught.value.code == CANCELLED
    assert await bench.prompt("[[text Again.]]") == "end_turn"


async def test_a_request_that_is_given_up_while_it_waits_leaves_the_running_one(
    bench: Bench,
) -> None:
    running = await bench.begin("[[slow 20]] [[say 20]]")
    await bench.editor.update("agent_message_chunk")
    waiting = await bench.begin("never")
    await bench.editor.notify("$/cancel_request", requestId=waiting)
    with pytest.raises(RpcFailed):
        await bench.editor.result(waiting)
    assert (await bench.editor.result(running))["stopReason"] == "end_turn"
    assert [entry["role"] for entry in await bench.entries()] == ["user", "assistant"]


async def test_a_request_that_is_given_up_at_once_leaves_nothing_behind(bench: Bench) -> None:
    for _ in range(10):
        id = await bench.begin("[[hang]]")
        await bench.editor.notify("$/cancel_request", requestId=id)
        with pytest.raises(RpcFailed):
            await bench.editor.result(id)
    assert await bench.prompt("[[text Again.]]") == "end_turn"
    assert (await bench.client.request("get_queue", session_id=bench.session_id))["inputs"] == []


async def test_a_run_that_fails_is_an_error_with_the_reason(bench: Bench) -> None:
    failing = await bench.begin("[[slow 100]] [[say 2]] [[error 400]]")
    waiting = await bench.begin("[[text Never.]]")
    with pytest.raises(RpcFailed, match="mock error 400"):
        await bench.editor.result(failing)
    with pytest.raises(RpcFailed, match="not delivered"):
        await bench.editor.result(waiting)
    assert (await bench.client.request("get_queue", session_id=bench.session_id))["inputs"] == []
    assert await bench.prompt("[[text Again.]]") == "end_turn"


async def test_files_of_a_prompt_are_attached_and_named_where_they_stand(bench: Bench) -> None:
    uri = (bench.folder / "src" / "a.py").as_uri()
    assert await bench.prompt(
        "Compare ",
        {"type": "resource_link", "uri": uri, "name": "a.py"},
        " with ",
        {"type": "resource", "resource": {"uri": "file:///else/b.json", "text": "{}"}},
        {"type": "image", "data": base64.b64encode(ONE_PIXEL).decode(), "mimeType": "image/png"},
    )
    (user, _) = await bench.entries()
    assert user["text"] == "Compare src/a.py with /else/b.json"
    attached = [(each["name"], each["media_type"]) for each in user["attachments"]]
    assert attached == [("/else/b.json", "text/plain"), ("image 2", "image/png")]
    assert user["client_id"] == "quill"


@pytest.mark.parametrize("blocks", [(), ("",), (" ", "\n")])
async def test_an_empty_prompt_is_refused(bench: Bench, blocks: tuple[str, ...]) -> None:
    with pytest.raises(RpcFailed, match="the prompt is empty") as caught:
        await bench.prompt(*blocks)
    assert caught.value.code == INVALID_PARAMS


async def test_large_files_go_beside_the_line(bench: Bench) -> None:
    image = ONE_PIXEL + bytes(2_500_000)
    data = base64.b64encode(image).decode()
    await bench.prompt({"type": "image", "data": data, "mimeType": "image/png"})
    (user, _) = await bench.entries()
    assert user["text"] == "(see the attached files)"
    (attached,) = user["attachments"]
    assert attached["artifact_id"] == "sha256:" + hashlib.sha256(image).hexdigest()


async def test_what_cannot_be_attached_is_refused_with_the_reason(bench: Bench) -> None:
    resource = {"uri": "file:///else/a.bin", "blob": "AAEC", "mimeType": "application/x-thing"}
    with pytest.raises(RpcFailed, match="attachment"):
        await bench.prompt("See ", {"type": "resource", "resource": resource})


async def test_a_steer_goes_to_the_run_and_a_compaction_ends_at_once(bench: Bench) -> None:
    first = await bench.begin("[[slow 20]] [[say 20]] [[tool ls {}]]")
    await bench.editor.update("agent_message_chunk")
    assert await bench.prompt("/steer [[text Steered.]]") == "end_turn"
    assert (await bench.editor.result(first))["stopReason"] == "end_turn"
    assert bench.editor.said().endswith("Steered.")
    assert await bench.prompt("/compact keep names") == "end_turn"
    assert "mock summary" in bench.editor.said()


# --- tool calls ------------------------------------------------------------------------------


@pytest.mark.behaviour("editors_show_changes_as_diffs")
async def test_a_change_is_shown_as_what_it_changes(bench: Bench) -> None:
    (bench.folder / "a.txt").write_text("one\ntwo\n")
    patch = "--- a/a.txt\\n+++ b/a.txt\\n@@ -1,2 +1,2 @@\\n-1\\n+first\\n 2\\n"
    for tool, args in (
        ("edit", '{"path": "a.txt", "oldText": "one", "newText": "1"}'),
        ("write", '{"path": "a.txt", "content": "1\\n2\\n"}'),
        ("write", '{"path": "b.txt", "content": "new"}'),
        ("patch", f'{{"patch": "{patch}"}}'),
    ):
        assert await bench.prompt(CALLING(tool, args)) == "end_turn"
    calls = bench.editor.updates("tool_call")
    path = str(bench.folder / "a.txt")
    assert [call["content"] for call in calls] == [
        [{"type": "diff", "path": path, "oldText": "one", "newText": "1"}],
        [{"type": "diff", "path": path, "oldText": "1\ntwo\n", "newText": "1\n2\n"}],
        [{"type": "diff", "path": str(bench.folder / "b.txt"), "newText": "new"}],
        [{"type": "diff", "path": path, "oldText": "1\n2\n", "newText": "first\n2\n"}],
    ]
    assert [call["title"] for call in calls] == [
        *("edit a.txt", "write a.txt", "write b.txt", "patch a.txt"),
    ]
    assert {call["kind"] for call in calls} == {"edit"}
    assert calls[0]["locations"] == [{"path": path}]
    assert (bench.folder / "a.txt").read_text() == "first\n2\n"


@pytest.mark.behaviour("editors_show_changes_as_diffs")
async def test_a_long_change_is_shown_whole(bench: Bench) -> None:
    content = "word " * 5000
    await bench.prompt(CALLING("write", f'{{"path": "a.txt", "content": "{content}"}}'))
    (call,) = bench.editor.updates("tool_call")
    assert call["content"][0]["newText"] == content


@pytest.mark.slow
async def test_a_call_goes_through_its_states_and_ends_with_its_output(bench: Bench) -> None:
    await bench.prompt(CALLING("bash", '{"command": "echo hi; sleep 0.6; echo ho"}'))
    (call,) = bench.editor.updates("tool_call")
    updates = bench.editor.updates("tool_call_update")
    assert (call["kind"], call["status"]) == ("execute", "pending")
    begun, *running, ended = [update.get("status") for update in updates]
    assert (begun, set(running), ended) == ("in_progress", {None}, "completed")
    texts = [update["content"][0]["content"]["text"] for update in updates[1:]]
    assert (texts[0], texts[-1]) == ("hi\n", "hi\nho")


async def test_a_call_that_fails_says_why(bench: Bench) -> None:
    await bench.prompt(CALLING("edit", '{"path": "no.txt", "oldText": "a", "newText": "b"}'))
    end = await bench.editor.update("tool_call_update", status="failed")
    assert "no.txt" in end["content"][0]["content"]["text"]


async def test_a_result_that_is_cut_says_so(bench: Bench) -> None:
    (bench.folder / "a.txt").write_text("line\n" * 5000)
    await bench.prompt(CALLING("read", '{"path": "a.txt"}'))
    end = await bench.editor.update("tool_call_update", status="completed")
    text = end["content"][0]["content"]["text"]
    assert len(text) < 10_000
    assert re.search(r"\n\.\.\. \(of \d+ bytes\)$", text)


async def test_todos_are_the_plan(bench: Bench) -> None:
    todos = (
        '{"todos": [{"content": "look", "status": "in_progress", "priority": "high"},'
        ' {"content": "act", "status": "pending"}, {"content": "no", "status": "cancelled"}]}'
    )
    await bench.prompt(CALLING("todo", todos))
    (plan,) = bench.editor.updates("plan")
    assert plan["entries"] == [
        {"content": "look", "status": "in_progress", "priority": "high"},
        {"content": "act", "status": "pending", "priority": "medium"},
    ]
    await bench.editor.ask("session/close", sessionId=bench.session_id)
    bench.editor.seen.clear()
    await bench.editor.ask("session/resume", sessionId=bench.session_id, cwd=str(bench.folder))
    assert await bench.editor.update("plan") == plan


# --- permissions and questions ---------------------------------------------------------------

WRITING = CALLING("write", '{"path": "a.txt", "content": "x"}')


@pytest.mark.behaviour("editors_are_asked_for_permission")
async def test_a_call_that_is_allowed_in_the_editor_runs(asking: Bench) -> None:
    asking.editor.answers["session/request_permission"] = choosing("once")
    assert await asking.prompt(WRITING) == "end_turn"
    (asked,) = asking.editor.of("session/request_permission")
    shown = asked["params"]["toolCall"]
    assert shown["content"][0]["newText"] == "x"
    assert asking.editor.updates("tool_call")[0]["toolCallId"] == shown["toolCallId"]
    assert {option["kind"] for option in asked["params"]["options"]} == {
        *("allow_once", "allow_always", "reject_once", "reject_always"),
    }
    # The call is known before a permission for it is asked.
    before = asking.editor.seen[: asking.editor.seen.index(asked)]
    told = [message.get("params", {}).get("update", {}) for message in before]
    assert "tool_call" in {update.get("sessionUpdate") for update in told}
    assert (asking.folder / "a.txt").read_text() == "x"


async def test_an_allowance_for_the_session_is_asked_once(asking: Bench) -> None:
    asking.editor.answers["session/request_permission"] = choosing("session")
    await asking.prompt(WRITING)
    await asking.prompt(WRITING)
    assert len(asking.editor.of("session/request_permission")) == 1


@pytest.mark.parametrize("answer", [choosing("deny"), {"outcome": {"outcome": "cancelled"}}])
async def test_a_call_that_is_not_allowed_does_not_run_and_the_turn_goes_on(
    answer: Message, asking: Bench
) -> None:
    asking.editor.answers["session/request_permission"] = answer
    assert await asking.prompt(WRITING) == "end_turn"
    assert await asking.editor.update("tool_call_update", status="failed")
    assert asking.editor.said() == "Done."
    assert not (asking.folder / "a.txt").exists()


@pytest.mark.behaviour("editors_are_asked_for_permission")
async def test_a_request_that_another_client_answers_is_withdrawn(asking: Bench) -> None:
    prompt = await asking.begin(WRITING)
    asked = await asking.editor.asked("session/request_permission")
    (pending,) = (await asking.client.request("list_permissions", session_id=asking.session_id))[
        "pending"
    ]
    decided = {key: pending[key] for key in ("tool_call_id", "attempt", "input_hash")}
    await asking.client.request("confirm_tool", decision="once", **decided)
    assert (await asking.editor.result(prompt))["stopReason"] == "end_turn"
    withdrawn = await asking.editor.asked("$/cancel_request")
    assert withdrawn["params"] == {"requestId": asked["id"]}
    assert (asking.folder / "a.txt").exists()


async def test_a_request_that_waits_is_asked_when_the_session_is_opened(asking: Bench) -> None:
    prompt = await asking.begin(WRITING)
    await asking.editor.asked("session/request_permission")
    asking.editor.answers["session/request_permission"] = choosing("once")
    old = {"sessionId": asking.session_id, "cwd": str(asking.folder), "mcpServers": []}
    await asking.editor.ask("session/resume", **old)
    await asking.editor.asked("session/request_permission", count=2)
    await asking.editor.update("tool_call_update", status="completed")
    with pytest.raises(RpcFailed, match="opened again"):
        await asking.editor.result(prompt)


async def test_a_call_of_a_task_is_asked_in_the_session_at_the_top(asking: Bench) -> None:
    asking.editor.answers["session/request_permission"] = choosing("once")
    task = {"prompt": WRITING}
    assert await asking.prompt(CALLING("task", json.dumps(task))) == "end_turn"
    titles = [
        asked["params"]["toolCall"]["title"]
        for asked in asking.editor.of("session/request_permission")
    ]
    assert titles == ["write a.txt"]
    assert (asking.folder / "a.txt").exists()


QUESTION = CALLING(
    "question",
    '{"questions": [{"question": "Which colour?", "options": [{"label": "red"}, {"label": "blue"}]}]}',
)


async def test_a_question_is_a_form(bench: Bench) -> None:
    bench.editor.answers["elicitation/create"] = {"action": "accept", "content": {"q0": "blue"}}
    await bench.prompt(QUESTION)
    end = await bench.editor.update("tool_call_update", status="completed")
    assert "blue" in end["content"][0]["content"]["text"]


@pytest.mark.parametrize("answer", [{"action": "decline"}, {"action": "accept", "content": {}}])
async def test_a_question_without_an_answer_does_not_keep_the_run(
    answer: Message, bench: Bench
) -> None:
    bench.editor.answers["elicitation/create"] = answer
    assert await bench.prompt(QUESTION) == "end_turn"
    assert await bench.editor.update("tool_call_update", status="failed")


async def test_an_editor_without_forms_is_offered_the_options(folder: Path) -> None:
    async with bench_in(folder, capabilities={}) as bench:
        bench.editor.answers["session/request_permission"] = choosing("o1")
        await bench.prompt(QUESTION)
        end = await bench.editor.update("tool_call_update", status="completed")
        assert "blue" in end["content"][0]["content"]["text"]
        await bench.prompt(CALLING("question", '{"questions": [{"question": "Why?"}]}'))
        end = await bench.editor.update("tool_call_update", status="failed")
        assert "without options" in end["content"][0]["content"]["text"]


# --- one session, many clients ---------------------------------------------------------------


@pytest.mark.behaviour("editors_share_their_sessions")
async def test_the_run_of_another_client_is_shown(bench: Bench) -> None:
    await bench.prompt("[[text Hello.]]")
    await bench.client.request(
        "prompt", session_id=bench.session_id, text="[[text From elsewhere.]]"
    )
    await bench.editor.update("user_message_chunk")
    assert bench.editor.said("user_message_chunk") == "[[text From elsewhere.]]"
    await bench.editor.until(lambda _: bench.editor.said() == "Hello.From elsewhere.")


@pytest.mark.slow
@pytest.mark.behaviour("editors_share_their_sessions")
async def test_another_client_sees_and_steers_the_run_of_the_editor(bench: Bench) -> None:
    events = await bench.daemon.watch(session_id=bench.session_id, types="all")
    prompt = await bench.begin("[[slow 20]] [[say 20]] [[tool ls {}]]")
    begun = await events.until("message_update")
    await bench.client.request(
        "steer", expected_run_id=begun["payload"]["run_id"], text="[[text Steered.]]"
    )
    run = await events.run()
    assert [user["text"] for user in of_type(run, "message_start") if user["role"] == "user"]
    assert (await bench.editor.result(prompt))["stopReason"] == "end_turn"
    await bench.editor.until(lambda _: bench.editor.said().endswith("Steered."))
    assert bench.editor.said("user_message_chunk") == "[[text Steered.]]"


@pytest.mark.slow
async def test_an_input_that_another_client_takes_back_is_cancelled(bench: Bench) -> None:
    running = await bench.begin("[[slow 20]] [[say 30]]")
    await bench.editor.update("agent_message_chunk")
    waiting = await bench.begin("never")
    while not (await bench.client.request("get_queue", session_id=bench.session_id))["inputs"]:
        pass
    await bench.client.request("clear_queue", session_id=bench.session_id)
    assert (await bench.editor.result(waiting))["stopReason"] == "cancelled"
    assert (await bench.editor.result(running))["stopReason"] == "end_turn"


async def test_the_mode_is_set_and_seen_from_both_sides(bench: Bench) -> None:
    here = {"session_id": bench.session_id}
    await bench.editor.ask("session/set_mode", sessionId=bench.session_id, modeId="ask")
    assert (await bench.client.request("get_state", **here))["permission_mode"] == "ask"
    await bench.client.request("set_permission_mode", mode="auto", **here)
    assert await bench.editor.update("current_mode_update", currentModeId="auto")
    with pytest.raises(RpcFailed, match="mode must be"):
        await bench.editor.ask("session/set_mode", sessionId=bench.session_id, modeId="plan")


# --- sessions --------------------------------------------------------------------------------


@pytest.mark.behaviour("editors_load_a_transcript_once")
async def test_loading_replays_the_transcript_before_it_is_answered(bench: Bench) -> None:
    (bench.folder / "a.txt").write_text("hello")
    await bench.prompt("[[think 1]] [[text Looking.]] " + CALLING("read", '{"path": "a.txt"}'))
    await bench.editor.ask("session/close", sessionId=bench.session_id)
    bench.editor.seen.clear()
    old = {"sessionId": bench.session_id, "cwd": str(bench.folder), "mcpServers": []}
    loaded = await bench.editor.ask("session/load", **old)
    assert loaded["modes"]["currentModeId"]
    before = [message["params"]["update"] for message in bench.editor.seen[:-1]]
    assert [update["sessionUpdate"] for update in before] == [
        *("user_message_chunk", "agent_thought_chunk", "agent_message_chunk"),
        *("tool_call", "tool_call_update", "agent_message_chunk"),
    ]
    assert before[4]["status"] == "completed"
    bench.editor.seen.clear()
    assert await bench.prompt("[[text Go on.]]") == "end_turn"
    assert bench.editor.said() == "Go on."


@pytest.mark.behaviour("editors_load_a_transcript_once")
async def test_a_session_that_is_loaded_during_a_run_shows_the_rest_once(bench: Bench) -> None:
    await bench.client.request(
        "prompt", session_id=bench.session_id, text="[[slow 20]] [[say 30]]", wait=False
    )
    await bench.editor.update("agent_message_chunk")
    bench.editor.seen.clear()
    old = {"sessionId": bench.session_id, "cwd": str(bench.folder), "mcpServers": []}
    await bench.editor.ask("session/load", **old)
    await bench.editor.until(lambda _: bench.editor.said().endswith("word30"))
    # Until the agent has the request, the session goes on where it was open; the user's text begins
    # the transcript.
    begins = [update["sessionUpdate"] for update in bench.editor.updates()].index(
        "user_message_chunk"
    )
    loaded = [
        update["content"]["text"]
        for update in bench.editor.updates()[begins + 1 :]
        if update["sessionUpdate"] == "agent_message_chunk"
    ]
    assert "".join(loaded) == " ".join(f"word{n}" for n in range(1, 31))


async def test_resuming_replays_nothing(bench: Bench) -> None:
    await bench.prompt("[[text Hello.]]")
    await bench.editor.ask("session/close", sessionId=bench.session_id)
    bench.editor.seen.clear()
    await bench.editor.ask("session/resume", sessionId=bench.session_id, cwd=str(bench.folder))
    assert await bench.prompt("[[text Go on.]]") == "end_turn"
    assert bench.editor.said() == "Go on."


async def test_a_prompt_opens_the_session_that_it_names(bench: Bench) -> None:
    await bench.editor.ask("session/close", sessionId=bench.session_id)
    assert await bench.prompt("[[text Hello.]]") == "end_turn"
    assert bench.editor.said() == "Hello."


async def test_a_session_of_another_folder_is_not_opened_in_this_one(bench: Bench) -> None:
    with pytest.raises(RpcFailed, match="the session works in") as caught:
        await bench.editor.ask("session/resume", sessionId=bench.session_id, cwd="/tmp")
    assert caught.value.code == INVALID_PARAMS
    with pytest.raises(RpcFailed) as caught:
        await bench.editor.ask("session/resume", sessionId="sess-no", cwd=str(bench.folder))
    assert caught.value.code == -32002


@pytest.mark.slow
async def test_sessions_are_listed_page_by_page(bench: Bench) -> None:
    made = {bench.session_id, *[await bench.editor.new(bench.folder) for _ in range(59)]}
    found: set[str] = set()
    page = await bench.editor.ask("session/list", cwd=str(bench.folder))
    assert len(page["sessions"]) == 50
    while "nextCursor" in page:
        found |= {row["sessionId"] for row in page["sessions"]}
        page = await bench.editor.ask("session/list", cursor=page["nextCursor"])
    assert found | {row["sessionId"] for row in page["sessions"]} == made
    assert (await bench.editor.ask("session/list", cwd="/tmp"))["sessions"] == []


async def test_closing_a_session_stops_its_run(bench: Bench) -> None:
    prompt = await bench.begin("[[text Begun.]] [[hang]]")
    await bench.editor.update("agent_message_chunk")
    events = await bench.daemon.watch()
    await bench.editor.ask("session/close", sessionId=bench.session_id)
    assert (await bench.editor.result(prompt))["stopReason"] == "cancelled"
    await events.until("agent_end", status="cancelled")


@pytest.mark.slow
@pytest.mark.behaviour("runs_outlive_their_editor")
async def test_a_run_goes_on_when_the_editor_is_closed(folder: Path) -> None:
    async with socket_daemon(folder, provider=make_provider("mock")) as daemon:
        events = await daemon.watch(types="all")
        async with editor_at(folder / "nous.sock") as editor:
            await editor.begin_prompt(await editor.new(folder / "work"), "[[slow 20]] [[say 20]]")
            await editor.update("agent_message_chunk")
        end = (await events.run())[-1]
        assert end["payload"]["status"] == "completed"


async def test_a_prompt_is_cancelled_when_the_daemon_is_gone(folder: Path) -> None:
    async with trio.open_nursery() as nursery:

        async def daemon(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with socket_daemon(folder, provider=make_provider("mock")):
                    task_status.started(scope)
                    await trio.sleep_forever()

        scope = await nursery.start(daemon)
        async with editor_at(folder / "nous.sock") as editor:
            session_id = await editor.new(folder / "work")
            prompt = await editor.begin_prompt(session_id, "[[text Begun.]] [[hang]]")
            await editor.update("agent_message_chunk")
            scope.cancel()
            await editor.notify("session/cancel", sessionId=session_id)
            assert (await editor.result(prompt))["stopReason"] == "cancelled"


async def test_a_session_outlives_the_daemon(folder: Path) -> None:
    """The run does not, and the editor learns it; the session goes on in the next daemon."""
    async with trio.open_nursery() as nursery:
        begun, stopped, again = trio.Event(), trio.Event(), trio.Event()

        async def daemons() -> None:
            options: dict[str, Any] = {
                "provider": make_provider("mock"),
                "permissions": RulePermissions("ask"),
            }
            async with socket_daemon(folder, **options):
                begun.set()
                await stopped.wait()
            async with socket_daemon(folder, **options):
                again.set()
                await trio.sleep_forever()

        nursery.start_soon(daemons)
        await begun.wait()
        async with editor_at(folder / "nous.sock", ensure=again.wait) as editor:
            session_id = await editor.new(folder / "work")
            prompt = await editor.begin_prompt(session_id, "[[text Begun.]] [[hang]]")
            await editor.update("agent_message_chunk")
            stopped.set()
            with pytest.raises(RpcFailed, match="the daemon was stopped"):
                await editor.result(prompt)
            # There is somebody to ask when the first call comes.
            editor.answers["session/request_permission"] = choosing("once")
            assert await editor.prompt(session_id, WRITING) == "end_turn"
            assert (folder / "work" / "a.txt").exists()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_killed_daemon_is_started_where_a_prompt_waits_for_its_turn(folder: Path) -> None:
    """Only the next daemon can say how the turn ended."""
    place = Place(folder)
    async with trio.open_nursery() as nursery:

        async def another(task_status: trio.TaskStatus[None]) -> None:
            async with running(place):
                task_status.started()
                await trio.sleep_forever()

        async def ensure() -> None:
            await nursery.start(another)

        async with running(place) as process, editor_at(place.socket, ensure=ensure) as editor:
            session_id = await editor.new(place.work)
            prompt = await editor.begin_prompt(session_id, "[[text Begun.]] [[hang]]")
            await editor.update("agent_message_chunk")
            await process.kill()
            with pytest.raises(RpcFailed, match="the daemon was stopped"):
                await editor.result(prompt)
            assert await editor.prompt(session_id, "[[text Again.]]") == "end_turn"
        nursery.cancel_scope.cancel()


async def test_the_program_starts_and_serves_until_its_input_ends(folder: Path) -> None:
    """The whole program, with real streams, against a daemon that runs."""
    async with socket_daemon(folder, provider=make_provider("mock")):
        async with trio.open_nursery() as nursery:
            program = await nursery.start(
                partial(
                    trio.run_process,
                    [sys.executable, "-m", "nousd", "acp", "--socket", str(folder / "nous.sock")],
                    stdin=PIPE,
                    stdout=PIPE,
                )
            )
            wire = Wire(trio.StapledStream(program.stdin, program.stdout))
            made = {"cwd": str(folder / "work"), "mcpServers": []}
            await wire.send({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": made})
            answer = json.loads(await wire.receive_line())
            assert answer["result"]["sessionId"]
            await program.stdin.aclose()
        assert program.returncode == 0


async def test_a_daemon_is_started_where_none_runs(folder: Path) -> None:
    """What starts it is called once, when it is needed first, however many requests need it."""
    editor = Editor()
    async with trio.open_nursery() as nursery:
        starts: list[str] = []

        async def daemon(task_status: trio.TaskStatus[None]) -> None:
            async with socket_daemon(folder, provider=make_provider("mock")):
                task_status.started()
                await trio.sleep_forever()

        async def ensure() -> None:
            starts.append("a daemon")
            await nursery.start(daemon)

        async def run() -> None:
            await talk(folder / "nous.sock", read=editor.read, write=editor.write, ensure=ensure)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await editor.initialize()
        assert starts == []
        (folder / "work").mkdir()
        made = {"cwd": str(folder / "work"), "mcpServers": []}
        ids = [await editor.begin("session/new", **made) for _ in range(3)]
        for id in ids:
            session_id = (await editor.result(id))["sessionId"]
            assert await editor.prompt(session_id, "[[text Hello.]]") == "end_turn"
        assert starts == ["a daemon"]
        editor.end()
