"""Approvals and questions over HTTP: every answer, refusal and frame."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import pytest
import trio

from nousd.daemon.policy.permissions import RulePermissions
from nousd.providers.interface import Provider
from nousd.wire.limits import SESSION_RULES_MAX
from tests.bridge.harness import Bridge, Frame, Frames, bridge_to, text
from tests.harness.daemon import WAIT_SECONDS, Daemon, socket_daemon
from tests.harness.stub_model import StubModel, text_reply, tool_reply

WRITE = ("write", {"path": "a.txt", "content": "x"})
COLOUR = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "warm"}, {"label": "Blue"}],
}
SIZES = {
    "question": "Which sizes?",
    "options": [{"label": "S"}, {"label": "M"}, {"label": "L"}],
    "multiple": True,
}
NAME = {"question": "Which name?"}


class Kit(NamedTuple):
    daemon: Daemon
    bridge: Bridge
    stub: StubModel


@asynccontextmanager
async def asking_kit(
    folder: Path, provider: Provider, stub: StubModel, **options: Any
) -> AsyncIterator[Kit]:
    """A bridge before a daemon in mode ask."""
    permissions = RulePermissions("ask")
    with trio.fail_after(60):
        async with (
            socket_daemon(folder, provider=provider, permissions=permissions, **options) as daemon,
            bridge_to(daemon) as bridge,
        ):
            yield Kit(daemon, bridge, stub)


@pytest.fixture
async def kit(short_folder: Path, provider: Provider, stub: StubModel) -> AsyncIterator[Kit]:
    async with asking_kit(short_folder, provider, stub) as kit:
        yield kit


async def start(kit: Kit, *calls: tuple[str, Any]) -> str:
    """Start a run whose model makes these calls, and return its session."""
    session = await kit.bridge.new_session()
    kit.stub.script(tool_reply(*calls), text_reply("done"))
    await kit.bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
    return session


@asynccontextmanager
async def waiting_request(
    kit: Kit, *calls: tuple[str, Any], until: str = "permission.asked"
) -> AsyncIterator[tuple[Frames, Frame]]:
    """Start a run whose model makes these calls; yield the stream after the frame that asks."""
    async with kit.bridge.events() as frames:
        await start(kit, *calls)
        (*_, frame) = await frames.until(until)
        yield frames, frame


def question(*questions: dict[str, Any]) -> tuple[str, Any]:
    return "question", {"questions": list(questions)}


async def pending(bridge: Bridge, **query: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await bridge.get("/permission", **query))["requests"]
    return listed


def refusal_of(reply: httpx2.Response) -> tuple[int, str]:
    body = reply.json()
    assert body["retryable"] is False
    return reply.status_code, body["code"]


# --- permissions ---------------------------------------------------------------------------------


async def test_a_pending_request_is_listed_with_the_fields_of_its_frame(kit: Kit) -> None:
    async with waiting_request(kit, WRITE) as (_, frame):
        (listed,) = await pending(kit.bridge)
        told = frame.properties
        assert listed == {
            "id": told["requestID"],
            "sessionID": told["sessionID"],
            "tenantContext": told["tenantContext"],
            "permission": "write",
            "pattern": listed["pattern"],
            "tool": told["tool"],
            "args": told["args"],
            "argsSource": told["argsSource"],
            "argsIntegrity": told["argsIntegrity"],
            "query": told["query"],
            "status": "pending",
            "requestedAtMs": told["requestedAtMs"],
            "expiresAtMs": told["expiresAtMs"],
            "actionDigest": told["actionDigest"],
        }
        assert told["requestedAtMs"] < told["expiresAtMs"]
        assert quote(listed["id"], safe="") == listed["id"], "an id is safe in a path"
        assert await pending(kit.bridge, sessionID=listed["sessionID"]) == [listed]
        other = await kit.bridge.new_session()
        assert await pending(kit.bridge, sessionID=other) == []


@pytest.mark.parametrize(
    ("reply", "told_as", "rule"),
    [
        ("once", "once", None),
        ("always", "always", "allow:write(a.txt)"),
        ("allow", "always", "allow:write(a.txt)"),
        ("reject", "reject", "deny:write(a.txt)"),
        ("deny", "reject", "deny:write(a.txt)"),
    ],
)
async def test_a_reply_is_applied_and_returns_the_rule_it_created(
    kit: Kit, short_folder: Path, reply: str, told_as: str, rule: str | None
) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        id, session = frame.properties["requestID"], frame.properties["sessionID"]
        applied = await kit.bridge.post(f"/permission/{id}/reply", reply=reply)
        assert applied == {
            "ok": True,
            "requestID": id,
            "reply": reply,
            "status": "applied",
            "persistedRule": rule is not None,
            "standingRuleID": rule,
        }
        told = await frames.until("session.run.finished")
        (replied,) = [frame.properties for frame in told if frame.type == "permission.replied"]
        assert (replied["requestID"], replied["sessionID"]) == (id, session)
        assert replied["decidedBy"] == "user"
        assert replied["reply"] == told_as
        assert replied["standingRuleID"] == rule
        assert replied["standingRulePersisted"] == (rule is not None)
        now = await kit.bridge.get("/permission", sessionID=session)
        assert now["requests"] == []
        assert (rule in [rule["id"] for rule in now["rules"]]) == (rule is not None)
        assert (short_folder / "work" / "a.txt").exists() == (told_as != "reject")


@pytest.mark.parametrize("reply", ["always", "reject"])
async def test_a_created_rule_decides_later_calls_of_its_session_only(kit: Kit, reply: str) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        id, session = frame.properties["requestID"], frame.properties["sessionID"]
        await kit.bridge.post(f"/permission/{id}/reply", reply=reply)
        await frames.until("session.run.finished")
        kit.stub.script(tool_reply(WRITE), text_reply("done"))
        await kit.bridge.post(f"/session/{session}/prompt_async", parts=text("again"))
        told = await frames.until("session.run.finished")
        assert "permission.asked" not in {frame.type for frame in told}
        await start(kit, WRITE)
        await frames.until("permission.asked")


async def test_an_invalid_reply_is_refused_also_for_an_unknown_request(
    kit: Kit,
) -> None:
    async with waiting_request(kit, WRITE) as (_, frame):
        for id in (frame.properties["requestID"], "nobody"):
            path = f"/permission/{id}/reply"
            reply = await kit.bridge.http.post(path, json={"reply": "perhaps"})
            assert refusal_of(reply) == (400, "APPROVAL_REPLY_INVALID")
            reply = await kit.bridge.http.post(path, json={})
            assert refusal_of(reply) == (422, "INVALID_REQUEST")
        assert len(await pending(kit.bridge)) == 1


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "id",
    ["nobody", "msg-none.0-1", "nobody-0", "nobody-99999999999", "x" * 200, "-", "-1", "a%20b"],
)
async def test_an_unknown_request_is_not_found(kit: Kit, id: str) -> None:
    reply = await kit.bridge.http.post(f"/permission/{id}/reply", json={"reply": "once"})
    assert refusal_of(reply) == (404, "APPROVAL_REQUEST_NOT_FOUND")


async def test_a_call_that_needed_no_approval_has_no_request(kit: Kit) -> None:
    async with kit.bridge.events() as frames:
        await start(kit, ("todo", {"todos": []}))
        told = await frames.until("session.run.finished")
    (part,) = {
        frame.properties["part"]["id"]
        for frame in told
        if frame.properties.get("part", {}).get("type") == "tool"
    }
    for id in (part, f"{part}-1", f"{part}-2"):
        reply = await kit.bridge.http.post(f"/permission/{id}/reply", json={"reply": "once"})
        assert refusal_of(reply) == (404, "APPROVAL_REQUEST_NOT_FOUND")


async def test_the_first_of_concurrent_replies_wins_and_the_others_are_refused(
    kit: Kit, short_folder: Path
) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        path = f"/permission/{frame.properties['requestID']}/reply"
        replies = []

        async def reply(word: str) -> None:
            replies.append((word, await kit.bridge.http.post(path, json={"reply": word})))

        async with trio.open_nursery() as nursery:
            for word in ("once", "deny", "always", "reject"):
                nursery.start_soon(reply, word)
        ((word, won),) = [(word, reply) for word, reply in replies if reply.is_success]
        lost = [refusal_of(reply) for _, reply in replies if reply is not won]
        assert lost == [(409, "APPROVAL_REPLY_INVALID")] * 3
        await frames.until("session.run.finished")
        written = (short_folder / "work" / "a.txt").exists()
        assert written == (word in ("once", "always"))
        late = await kit.bridge.http.post(path, json={"reply": "once"})
        assert refusal_of(late) == (409, "APPROVAL_REPLY_INVALID")


async def test_an_expired_request_is_not_pending(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with (
        asking_kit(short_folder, provider, stub, approval_timeout_seconds=0.2) as kit,
        waiting_request(kit, WRITE) as (frames, frame),
    ):
        id = frame.properties["requestID"]
        (*_, waited) = await frames.until("permission.wait.timeout")
        assert waited.properties["requestID"] == id
        assert waited.properties["tool"] == "write"
        assert await pending(kit.bridge) == []
        reply = await kit.bridge.http.post(f"/permission/{id}/reply", json={"reply": "once"})
        assert refusal_of(reply) == (409, "APPROVAL_REPLY_INVALID")
        assert "expired" in reply.json()["error"]


async def test_a_request_whose_run_is_cancelled_is_not_pending(kit: Kit) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        id, session = frame.properties["requestID"], frame.properties["sessionID"]
        await kit.bridge.post(f"/session/{session}/cancel")
        await frames.until("session.run.finished")
        assert await pending(kit.bridge) == []
        reply = await kit.bridge.http.post(f"/permission/{id}/reply", json={"reply": "once"})
        assert refusal_of(reply) == (409, "APPROVAL_REPLY_INVALID")


async def test_a_request_from_before_a_restart_is_not_pending(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with (
        asking_kit(short_folder, provider, stub) as kit,
        waiting_request(kit, WRITE) as (_, frame),
    ):
        id = frame.properties["requestID"]
    async with asking_kit(short_folder, provider, stub) as kit:
        assert await pending(kit.bridge) == []
        reply = await kit.bridge.http.post(f"/permission/{id}/reply", json={"reply": "once"})
        assert refusal_of(reply) == (409, "APPROVAL_REPLY_INVALID")


@pytest.mark.slow
async def test_a_reply_about_a_path_outside_the_workspace_creates_no_rule(
    kit: Kit, short_folder: Path
) -> None:
    (short_folder / "secret.txt").write_text("outside")
    session = await kit.bridge.new_session()
    await kit.bridge.post(f"/session/{session}/workspace/override", ttl_seconds=600)
    async with kit.bridge.events() as frames:
        for reply in ("reject", "always", "always"):
            kit.stub.script(tool_reply(("read", {"path": "../secret.txt"})), text_reply("done"))
            await kit.bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
            (*_, frame) = await frames.until("permission.asked")
            id = frame.properties["requestID"]
            applied = await kit.bridge.post(f"/permission/{id}/reply", reply=reply)
            assert (applied["persistedRule"], applied["standingRuleID"]) == (False, None)
            told = await frames.until("session.run.finished")
            results = [frame.properties.get("part", {}).get("result") for frame in told]
            assert any("outside" in str(result) for result in results) == (reply == "always")


async def test_a_reply_is_applied_although_its_rule_exceeds_the_limit(
    kit: Kit, short_folder: Path
) -> None:
    other = [{"permission": f"other{n}", "action": "deny"} for n in range(SESSION_RULES_MAX)]
    async with waiting_request(kit, WRITE) as (frames, frame):
        id, session = frame.properties["requestID"], frame.properties["sessionID"]
        await kit.bridge.http.patch(f"/session/{session}", json={"permission": other})
        applied = await kit.bridge.post(f"/permission/{id}/reply", reply="reject")
        assert (applied["persistedRule"], applied["standingRuleID"]) == (False, None)
        await frames.until("session.run.finished")
    assert not (short_folder / "work" / "a.txt").exists()


async def test_clearing_the_rules_of_a_session_revokes_a_rejection(kit: Kit) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        id, session = frame.properties["requestID"], frame.properties["sessionID"]
        await kit.bridge.post(f"/permission/{id}/reply", reply="reject")
        await frames.until("session.run.finished")
        await kit.bridge.http.patch(f"/session/{session}", json={"permission": []})
        kit.stub.script(tool_reply(WRITE), text_reply("done"))
        await kit.bridge.post(f"/session/{session}/prompt_async", parts=text("again"))
        await frames.until("permission.asked")


@pytest.mark.parametrize(("word", "runs"), [("approve", True), ("deny", False)])
async def test_a_tool_call_is_approved_or_denied_within_its_own_session(
    kit: Kit, short_folder: Path, word: str, runs: bool
) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        id, session = frame.properties["requestID"], frame.properties["sessionID"]
        other = await kit.bridge.new_session()
        wrong = await kit.bridge.http.post(f"/sessions/{other}/tools/{id}/{word}")
        assert refusal_of(wrong) == (404, "APPROVAL_REQUEST_NOT_FOUND")
        nowhere = await kit.bridge.http.post(f"/sessions/ses-none/tools/{id}/{word}")
        assert refusal_of(nowhere) == (404, "SESSION_NOT_FOUND")
        assert len(await pending(kit.bridge)) == 1
        path = f"/sessions/{session}/tools/{id}/{word}"
        assert (await kit.bridge.http.post(path)).json() == {"ok": True}
        await frames.until("session.run.finished")
        assert (short_folder / "work" / "a.txt").exists() == runs
        again = await kit.bridge.http.post(path, json={})
        assert refusal_of(again) == (409, "APPROVAL_REPLY_INVALID")


async def test_the_id_of_a_tool_part_names_its_request_too(kit: Kit) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        session = frame.properties["sessionID"]
        (*_, part) = await frames.until("message.part.updated")
        assert part.properties["part"]["state"] == "pending"
        id = part.properties["part"]["id"]
        assert await kit.bridge.post(f"/sessions/{session}/tools/{id}/approve") == {"ok": True}


async def test_the_model_receives_the_reason_of_a_denial(kit: Kit) -> None:
    async with waiting_request(kit, WRITE) as (frames, frame):
        id = frame.properties["requestID"]
        await kit.bridge.post(f"/permission/{id}/reply", reply="reject", reason="not on Sundays")
        await frames.until("session.run.finished")
    assert "not on Sundays" in str(kit.stub.requests[-1].json["messages"])


async def test_a_request_of_a_task_is_listed_once_and_answered_in_either_session(kit: Kit) -> None:
    async with kit.bridge.events() as frames:
        for which in (0, 1):
            session = await kit.bridge.new_session()
            kit.stub.script(
                tool_reply(("task", {"tasks": [{"prompt": "write it"}]})),
                tool_reply(WRITE),
                text_reply("written"),
                text_reply("done"),
            )
            await kit.bridge.post(f"/session/{session}/prompt_async", parts=text("go"))
            (*_, first) = await frames.until("permission.asked")
            if first.properties["tool"] == "task":
                id = first.properties["requestID"]
                await kit.bridge.post(f"/permission/{id}/reply", reply="once")
                (*_, first) = await frames.until("permission.asked")
            (*_, second) = await frames.until("permission.asked")
            sessions = [first.properties["sessionID"], second.properties["sessionID"]]
            assert session in sessions
            assert len(set(sessions)) == 2
            (listed,) = await pending(kit.bridge)
            id = listed["id"]
            assert {first.properties["requestID"], second.properties["requestID"]} == {id}
            assert await pending(kit.bridge, sessionID=session) == [listed]
            await kit.bridge.post(f"/sessions/{sessions[which]}/tools/{id}/approve")
            told = await frames.until("session.run.finished")
            while told[-1].properties["sessionID"] != session:
                told += await frames.until("session.run.finished")
            assert told[-1].properties["status"] == "completed"


# --- questions -----------------------------------------------------------------------------------


@asynccontextmanager
async def waiting_question(
    kit: Kit, *questions: dict[str, Any]
) -> AsyncIterator[tuple[Frames, dict[str, Any]]]:
    async with waiting_request(kit, question(*questions), until="question.asked") as (
        frames,
        frame,
    ):
        yield frames, frame.properties


async def test_a_question_is_listed_with_the_fields_of_its_frame(kit: Kit) -> None:
    async with waiting_question(kit, COLOUR, SIZES, NAME) as (_, told):
        (listed,) = await kit.bridge.get("/question")
        assert listed == {
            **{key: told[key] for key in ("id", "sessionID", "tenantContext", "expiresAtMs")},
            **{key: told[key] for key in ("questions", "tool")},
            "text": "Which colour?",
            "choices": ["Red", "Blue"],
        }
        assert listed["questions"][0] == {
            "header": "Colour",
            "question": "Which colour?",
            "options": [
                {"label": "Red", "description": "warm"},
                {"label": "Blue", "description": ""},
            ],
            "multiple": False,
            "custom": True,
        }
        assert quote(listed["id"], safe="") == listed["id"]
        other = await kit.bridge.new_session()
        assert await kit.bridge.get("/question", sessionID=other) == []


ANSWERS: list[tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]], str]] = [
    ([COLOUR], {"answer": "Blue"}, [{"chosen": ["Blue"]}], "Blue"),
    ([COLOUR], {"answer": " Blue "}, [{"chosen": ["Blue"]}], "Blue"),
    ([COLOUR], {"answer": "Green"}, [{"text": "Green"}], "Green"),
    ([COLOUR], {"answer": "Red, Blue"}, [{"text": "Red, Blue"}], "Red, Blue"),
    ([COLOUR], {"answers": [["Red"]]}, [{"chosen": ["Red"]}], "Red"),
    ([SIZES], {"answer": "S, L"}, [{"chosen": ["S", "L"]}], "S, L"),
    ([SIZES], {"answer": ["S", "L"]}, [{"chosen": ["S", "L"]}], "S, L"),
    ([SIZES], {"answers": [["L", "S", "L"]]}, [{"chosen": ["L", "S"]}], "L, S"),
    ([SIZES], {"answers": [["S", "no M"]]}, [{"chosen": ["S"], "text": "no M"}], "S, no M"),
    (
        [COLOUR, SIZES, NAME],
        {"answers": ["Red", ["S", "M"], "Ada"]},
        [{"chosen": ["Red"]}, {"chosen": ["S", "M"]}, {"text": "Ada"}],
        "Red\nS, M\nAda",
    ),
    ([NAME, NAME], {"answer": "Ada"}, [{"text": "Ada"}, {"text": "Ada"}], "Ada\nAda"),
]


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(("questions", "body", "answers", "words"), ANSWERS)
async def test_an_answer_equal_to_a_label_counts_as_chosen(
    kit: Kit,
    questions: list[dict[str, Any]],
    body: dict[str, Any],
    answers: list[dict[str, Any]],
    words: str,
) -> None:
    events = await kit.daemon.watch(types=["question_answered"])
    async with waiting_question(kit, *questions) as (frames, told):
        assert await kit.bridge.post(f"/question/{told['id']}/reply", **body) == {"ok": True}
        assert (await events.until("question_answered"))["payload"]["answers"] == answers
        (*_, replied) = await frames.until("question.replied")
        assert replied.properties["id"] == told["id"]
        assert (replied.properties["ok"], replied.properties["answer"]) == (True, words)
        await frames.until("session.run.finished")
        assert await kit.bridge.get("/question") == []


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({"answers": ["Red"]}, "answers must have 2 items"),
        ({"answers": ["Red", "S", "M"]}, "answers must have 2 items"),
        ({"answers": ["Red", " "]}, "answers[1] must choose an option or have a text"),
        ({"answers": [["Red", "Blue"], "S"]}, "answers[0].chosen must name one option"),
        ({"answers": "Red"}, "array"),
        ({"answer": 1}, "answer"),
        ({"answer": "x" * 40_000}, "too long"),
    ],
)
async def test_invalid_answers_are_refused_and_the_question_stays_pending(
    kit: Kit, body: dict[str, Any], fault: str
) -> None:
    async with waiting_question(kit, COLOUR, SIZES) as (_, told):
        reply = await kit.bridge.http.post(f"/question/{told['id']}/reply", json=body)
        assert refusal_of(reply) == (422, "INVALID_REQUEST")
        assert fault in reply.json()["error"]
        assert len(await kit.bridge.get("/question")) == 1


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("word", "request_", "reason"),
    [
        ("reply", {}, "the user replied without an answer"),
        ("reply", {"json": {}}, "the user replied without an answer"),
        ("reply", {"json": {"answer": ""}}, "the user replied without an answer"),
        ("reject", {}, "the user does not want to answer"),
        ("reject", {"json": {}}, "the user does not want to answer"),
        ("reject", {"json": {"reason": "ask Bob"}}, "ask Bob"),
    ],
)
async def test_a_question_without_an_answer_ends_with_the_reason(
    kit: Kit, word: str, request_: dict[str, Any], reason: str
) -> None:
    events = await kit.daemon.watch(types=["question_rejected"])
    async with waiting_question(kit, COLOUR) as (frames, told):
        path = f"/question/{told['id']}/{word}"
        reply = await kit.bridge.http.post(path, **request_)
        assert (reply.status_code, reply.json()) == (200, {"ok": True})
        assert (await events.until("question_rejected"))["payload"]["reason"] == reason
        (*_, replied) = await frames.until("question.replied")
        assert (replied.properties["id"], replied.properties["ok"]) == (told["id"], False)


async def test_a_question_is_answered_only_within_its_own_session(kit: Kit) -> None:
    async with waiting_question(kit, NAME) as (_, told):
        other = await kit.bridge.new_session()
        body = {"answer": "Ada"}
        wrong = await kit.bridge.http.post(
            f"/sessions/{other}/questions/{told['id']}/answer", json=body
        )
        assert refusal_of(wrong) == (404, "QUESTION_NOT_FOUND")
        nowhere = await kit.bridge.http.post(
            f"/sessions/ses-none/questions/{told['id']}/answer", json=body
        )
        assert refusal_of(nowhere) == (404, "SESSION_NOT_FOUND")
        path = f"/sessions/{told['sessionID']}/questions/{told['id']}/answer"
        assert await kit.bridge.post(path, **body) == {"ok": True}


async def test_the_first_of_concurrent_answers_wins_and_the_others_are_refused(kit: Kit) -> None:
    async with waiting_question(kit, NAME) as (frames, told):
        replies = []

        async def answer(words: str) -> None:
            path = f"/question/{told['id']}/reply"
            replies.append(await kit.bridge.http.post(path, json={"answer": words}))

        async with trio.open_nursery() as nursery:
            for words in ("Ada", "Bob", "Cy"):
                nursery.start_soon(answer, words)
        assert sorted(reply.status_code for reply in replies) == [200, 409, 409]
        await frames.until("session.run.finished")
        for word in ("reply", "reject"):
            late = await kit.bridge.http.post(
                f"/question/{told['id']}/{word}", json={"answer": "Di"}
            )
            assert refusal_of(late) == (409, "QUESTION_NOT_PENDING")


async def test_an_expired_question_is_a_conflict_and_an_unknown_one_is_not_found(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with (
        asking_kit(short_folder, provider, stub, approval_timeout_seconds=0.2) as kit,
        waiting_question(kit, NAME) as (frames, told),
    ):
        (*_, replied) = await frames.until("question.replied")
        assert (replied.properties["id"], replied.properties["ok"]) == (told["id"], False)
        pending, unknown = (409, "QUESTION_NOT_PENDING"), (404, "QUESTION_NOT_FOUND")
        for id, outcome in ((told["id"], pending), ("ques-none", unknown), ("x" * 5000, unknown)):
            for word in ("reply", "reject"):
                path = f"/question/{id}/{word}"
                reply = await kit.bridge.http.post(path, json={"answer": "Ada"})
                assert refusal_of(reply) == outcome


# --- present clients -----------------------------------------------------------------------------


async def test_without_a_reader_a_call_is_denied_with_the_reason(kit: Kit) -> None:
    session = await kit.bridge.new_session()
    kit.stub.script(tool_reply(WRITE), text_reply("done"))
    messages = await kit.bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
    assert "no connected client can be asked" in str(messages)


async def test_a_client_that_listed_the_requests_is_asked(kit: Kit) -> None:
    await kit.bridge.get("/permission")
    session = await kit.bridge.new_session()
    kit.stub.script(tool_reply(WRITE), text_reply("done"))
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            path = f"/session/{session}/prompt_sync"
            nursery.start_soon(lambda: kit.bridge.post(path, parts=text("go")))
            while not (listed := await pending(kit.bridge)):
                await trio.testing.wait_all_tasks_blocked(0.01)
            await kit.bridge.post(f"/permission/{listed[0]['id']}/reply", reply="once")
    told = await kit.bridge.get(f"/session/{session}/message")
    assert [part["state"] for one in told for part in one["parts"] if part["type"] == "tool"] == [
        "completed"
    ]


async def test_a_reader_of_another_session_is_not_asked(kit: Kit) -> None:
    other = await kit.bridge.new_session()
    async with kit.bridge.events(sessionID=other):
        session = await kit.bridge.new_session()
        kit.stub.script(tool_reply(WRITE), text_reply("done"))
        messages = await kit.bridge.post(f"/session/{session}/prompt_sync", parts=text("go"))
        assert "no connected client can be asked" in str(messages)


# --- names of clients ----------------------------------------------------------------------------

WHO = {"x-tandem-client-id": "tui-1"}


async def test_a_message_a_decision_and_a_cancellation_name_their_client_in_the_daemon(
    kit: Kit,
) -> None:
    events = await kit.daemon.watch(types="all")
    session = await kit.bridge.new_session()
    http = kit.bridge.http
    await http.post(f"/session/{session}/message", json={"parts": text("aside")}, headers=WHO)
    accepted = (await events.until("queue_update", change="accepted"))["payload"]
    assert accepted["inputs"][0]["client_id"] == "tui-1"
    async with waiting_request(kit, WRITE) as (_, frame):
        decided = f"/permission/{quote(frame.properties['requestID'], safe='')}/reply"
        await http.post(decided, json={"reply": "once"}, headers=WHO)
        assert (await events.until("tool_call_approved"))["payload"]["client_id"] == "tui-1"
    async with waiting_request(kit, WRITE) as (_, frame):
        asking = frame.properties["sessionID"]
        await http.post(f"/session/{asking}/cancel", headers=WHO)
        assert (await events.until("run_aborting"))["payload"]["client_id"] == "tui-1"


async def test_an_answer_names_its_client_in_the_daemon(kit: Kit) -> None:
    events = await kit.daemon.watch(types="all")
    async with waiting_request(kit, question(NAME), until="question.asked"):
        asked = (await events.until("question_asked"))["payload"]["question_id"]
        answer = {"answers": ["Ada"]}
        await kit.bridge.http.post(f"/question/{asked}/reply", json=answer, headers=WHO)
        assert (await events.until("question_answered"))["payload"]["client_id"] == "tui-1"
