"""Tool calls that wait for approval: requests, answers, time-outs, and granted rules."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.daemon.policy.requests import status_of
from nousd.wire.events import PermissionRequested, Status
from nousd.wire.limits import SESSION_RULES_MAX
from tests.daemon.asking_bench import FETCHES, Bench, asking_daemon, calls, naming
from tests.daemon.scripted import says
from tests.harness.daemon import Event, Payload, of_type, types

DECISIONS = ("tool_call_approved", "tool_call_denied")
ASKING = ("tool_call_policy_evaluated", "permission_requested", "status", *DECISIONS)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with asking_daemon(tmp_path) as bench:
        yield bench


def the_decision(run: list[Event]) -> tuple[str, Payload]:
    """Return type and payload of the one decision in a run with one call."""
    [decision] = [event for event in run if event["type"] in DECISIONS]
    return decision["type"], decision["payload"]


# --- requests --------------------------------------------------------------------------------


@pytest.mark.behaviour("a_call_waits_for_a_word_of_the_user")
async def test_a_request_holds_everything_needed_to_answer_it(bench: Bench) -> None:
    request = await bench.asked(calls(("fetch", '{"url": "https://example.org"}')))
    [requested] = of_type(bench.events.seen, "tool_call_requested")
    assert request == {
        **{key: requested[key] for key in ("session_id", "run_id", "turn_id", "tool_call_id")},
        "attempt": 1,
        "tool_name": "fetch",
        "input_hash": requested["input_hash"],
        "args": {"url": "https://example.org"},
        "reason": "it reaches a network",
        "requested_at": request["requested_at"],
        "expires_at": request["expires_at"],
        "rule": "fetch(example.org)",
    }
    assert requested["args"] == request["args"]
    assert request["requested_at"] < request["expires_at"]
    assert bench.fetched.urls == []


@pytest.mark.behaviour("plain_clients_are_told_of_requests_in_a_status")
async def test_subscribers_of_the_frozen_types_receive_the_request_in_a_status(
    bench: Bench,
) -> None:
    plain = await bench.daemon.watch()
    request = await bench.asked()
    status = (await plain.until("status", run_id=request["run_id"]))["payload"]
    while not status["message"].startswith("permission_requested: "):
        status = (await plain.until("status"))["payload"]
    assert json.loads(status["message"].removeprefix("permission_requested: ")) == request
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await plain.run()


@pytest.mark.parametrize("decision", ["once", "session", "always"])
async def test_an_approved_call_runs_once(bench: Bench, decision: str) -> None:
    request = await bench.asked()
    answer = await bench.client.request("confirm_tool", **naming(request, decision, reason="go on"))
    assert (answer["command"], answer["decision"]) == ("confirm_tool", decision)
    run = await bench.events.run()
    kind, payload = the_decision(run)
    assert (kind, payload["by"]) == ("tool_call_approved", "user")
    assert payload["reason"].endswith(": go on")
    assert payload["input_hash"] == request["input_hash"]
    assert [each["source"] for each in of_type(run, "tool_call_policy_evaluated")][-1] == "user"
    assert types(run).index("tool_call_approved") < types(run).index("tool_call_started")
    assert bench.fetched.urls == ["https://example.org"]


@pytest.mark.behaviour("a_denial_is_a_result_and_the_run_goes_on")
async def test_a_denial_reaches_the_model_and_the_run_continues(bench: Bench) -> None:
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, "deny", reason="not today"))
    run = await bench.events.run()
    kind, payload = the_decision(run)
    assert (kind, payload["by"]) == ("tool_call_denied", "user")
    assert payload["reason"] == "the user said no: not today"
    [end] = of_type(run, "tool_execution_end")
    assert end["result"] == "tool_error: tool_blocked: the user said no: not today"
    assert (end["is_error"], end["executed"]) == (True, False)
    assert run[-1]["payload"]["status"] == "completed"
    result = bench.provider.requests[1].messages[-1]
    assert "the user said no: not today" in str(result)
    assert bench.fetched.urls == []


@pytest.mark.behaviour("every_call_is_decided_once")
async def test_each_call_of_a_turn_is_requested_and_decided_once(bench: Bench) -> None:
    two = calls(("fetch", '{"url": "https://a.org"}'), ("fetch", '{"url": "https://b.org"}'))
    first = await bench.asked(two)
    await bench.client.request("confirm_tool", **naming(first, "once"))
    second = (await bench.events.until("permission_requested"))["payload"]
    assert second["input_hash"] != first["input_hash"]
    await bench.client.request("confirm_tool", **naming(second, "deny"))
    run = await bench.events.run()
    decided = [event["payload"]["tool_call_id"] for event in run if event["type"] in DECISIONS]
    assert decided == [first["tool_call_id"], second["tool_call_id"]]
    assert bench.fetched.urls == ["https://a.org"]


# --- mismatched answers ----------------------------------------------------------------------


@pytest.mark.behaviour("an_answer_names_the_very_call")
@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"tool_call_id": "msg-0.0"}, "tool_call_not_found"),
        ({"attempt": 2}, "attempt_mismatch"),
        ({"input_hash": "sha256:0"}, "input_hash_mismatch"),
        ({"rule": "fetch(other.org)", "decision": "always"}, None),
        ({"rule": "fetch(", "decision": "session"}, None),
    ],
)
async def test_a_mismatched_answer_changes_nothing(
    bench: Bench, wrong: dict[str, object], word: str | None
) -> None:
    request = await bench.asked()
    before = await bench.client.request("list_permissions")
    error = await bench.client.refusal("confirm_tool", **{**naming(request, "once"), **wrong})
    if word is None:
        assert error["code"] == "invalid_payload"
        assert error["message"].startswith("rule ")
    else:
        assert (error["code"], error["message"]) == ("command_rejected", word)
    assert await bench.client.request("list_permissions") == before
    assert before["pending"] == [request]
    assert bench.fetched.urls == []
    await bench.client.request("confirm_tool", **naming(request, "once"))
    assert the_decision(await bench.events.run())[0] == "tool_call_approved"


@pytest.mark.behaviour("the_first_answer_wins")
@pytest.mark.parametrize(("first", "decided"), [("once", "approved"), ("deny", "denied")])
async def test_the_second_answer_is_refused_as_already_decided(
    bench: Bench, first: str, decided: str
) -> None:
    other = await bench.daemon.connect()
    request = await bench.asked()
    mine = await bench.client.ask("confirm_tool", **naming(request, first))
    theirs = await other.ask("confirm_tool", **naming(request, "once"))
    assert (await bench.client.answer(mine))["ok"]
    error = (await other.answer(theirs))["error"]
    assert (error["code"], error["message"]) == ("command_rejected", "already_decided")
    assert (error["details"]["decision"], error["details"]["by"]) == (decided, "user")
    assert the_decision(await bench.events.run())[0] == f"tool_call_{decided}"
    again = await other.refusal("confirm_tool", **naming(request, "once"))
    assert again["message"] == "already_decided"
    error = await other.refusal("confirm_tool", **{**naming(request, "once"), "attempt": 7})
    assert error["message"] == "attempt_mismatch"


# --- ends of waiting -------------------------------------------------------------------------


@pytest.mark.behaviour("without_an_answer_a_call_is_denied")
async def test_a_call_without_an_answer_in_time_is_denied(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with asking_daemon(tmp_path, approval_timeout_seconds=900.0, stale_seconds=30.0) as bench:
        request = await bench.asked()
        await trio.sleep(899)
        assert await bench.pending() == [request]
        await trio.sleep(2)
        run = await bench.events.run()
        kind, payload = the_decision(run)
        assert (kind, payload["by"]) == ("tool_call_denied", "timeout")
        assert payload["reason"] == "nobody answered within 900 seconds"
        assert run[-1]["payload"]["status"] == "completed"
        late = await bench.client.refusal("confirm_tool", **naming(request, "once"))
        assert late["message"] == "already_decided"
        assert late["details"]["by"] == "timeout"
        assert await bench.pending() == []


@pytest.mark.parametrize("margin", [-0.001, 0.0, 0.001])
async def test_an_answer_at_the_deadline_is_either_applied_or_refused(
    tmp_path: Path, autojump_clock: MockClock, margin: float
) -> None:
    async with asking_daemon(tmp_path, approval_timeout_seconds=60.0) as bench:
        began = trio.current_time()
        request = await bench.asked()
        await trio.sleep_until(began + 60 + margin)
        answer = await bench.client.answer(
            await bench.client.ask("confirm_tool", **naming(request, "once"))
        )
        kind, payload = the_decision(await bench.events.run())
        if answer["ok"]:
            assert (kind, payload["by"]) == ("tool_call_approved", "user")
        else:
            assert answer["error"]["message"] == "already_decided"
            assert (kind, payload["by"]) == ("tool_call_denied", "timeout")
        assert bench.fetched.urls == (["https://example.org"] if answer["ok"] else [])


@pytest.mark.behaviour("abort_resolves_what_waits")
async def test_an_abort_denies_the_waiting_call(bench: Bench) -> None:
    request = await bench.asked()
    await bench.client.request("abort")
    run = await bench.events.run()
    kind, payload = the_decision(run)
    assert (kind, payload["by"]) == ("tool_call_denied", "stop")
    assert payload["input_hash"] == request["input_hash"]
    assert run[-1]["payload"]["status"] == "cancelled"
    assert await bench.pending() == []
    late = await bench.client.refusal("confirm_tool", **naming(request, "once"))
    assert (late["message"], late["details"]["by"]) == ("already_decided", "stop")


@pytest.mark.parametrize("first", ["abort", "confirm_tool"])
async def test_a_simultaneous_abort_and_answer_take_effect_in_their_order(
    bench: Bench, first: str
) -> None:
    request = await bench.asked()
    other = await bench.daemon.connect()
    sent = {"abort": {}, "confirm_tool": naming(request, "once")}
    second = "confirm_tool" if first == "abort" else "abort"
    mine = await bench.client.ask(first, **sent[first])
    theirs = await other.ask(second, **sent[second])
    assert (await bench.client.answer(mine))["ok"]
    answer = await other.answer(theirs)
    run = await bench.events.run()
    kind, payload = the_decision(run)
    if first == "abort":
        assert answer["error"]["message"] == "already_decided"
        assert (kind, payload["by"]) == ("tool_call_denied", "stop")
    else:
        assert (kind, payload["by"]) == ("tool_call_approved", "user")
    assert run[-1]["payload"]["status"] == "cancelled"


async def test_a_shutdown_denies_the_waiting_call(tmp_path: Path) -> None:
    from nousd.daemon.app import shut_down

    async with asking_daemon(tmp_path) as bench:
        await bench.asked()
        await shut_down(bench.daemon.services)
        run = await bench.events.run()
        assert the_decision(run)[1]["by"] == "stop"
        assert run[-1]["payload"]["status"] == "interrupted"


# --- clients that can answer -----------------------------------------------------------------


@pytest.mark.behaviour("nobody_is_asked_while_nobody_can_answer")
@pytest.mark.parametrize("subscription", [{"types": "all"}, {"types": "all", "confirms": False}])
async def test_a_call_that_needs_approval_is_denied_while_no_client_can_answer(
    tmp_path: Path, subscription: dict[str, object]
) -> None:
    async with asking_daemon(tmp_path, subscription=subscription) as bench:
        run = await bench.run()
        kind, payload = the_decision(run)
        assert (kind, payload["by"]) == ("tool_call_denied", "policy")
        assert payload["reason"] == "it reaches a network, and no connected client can be asked"
        assert of_type(run, "permission_requested") == []
        [warning] = of_type(run, "warning")
        assert warning["code"] == "tool_blocked"
        assert "nousctl chat asks you" in warning["hint"]
        assert run[-1]["payload"]["status"] == "completed"
        assert not (await bench.client.request("list_permissions"))["can_answer"]


async def test_the_declaration_applies_only_to_the_subscribed_session(bench: Bench) -> None:
    session_id = (await bench.client.request("new_session"))["session_id"]
    subscribed = await bench.events.subscribe(types="all", session_id="sess-0", confirms=True)
    assert subscribed["confirms"]
    watcher = await bench.daemon.watch(types="all")
    await bench.start()
    assert the_decision(await watcher.run())[1]["by"] == "policy"
    await bench.events.subscribe(types="all", session_id=session_id, confirms=True)
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    assert the_decision(await bench.events.run())[1]["by"] == "user"


async def test_a_new_subscription_without_confirms_withdraws_the_declaration(
    bench: Bench,
) -> None:
    assert "confirms" not in await bench.events.subscribe(types="all")
    assert the_decision(await bench.run())[1]["by"] == "policy"


async def test_a_refused_subscription_leaves_the_declaration_unchanged(bench: Bench) -> None:
    await bench.events.send(
        {"v": "1", "id": "s9", "type": "subscribe", "payload": {"types": ["nope"]}}
    )
    assert (await bench.events.receive())["ok"] is False
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.run()


@pytest.mark.behaviour("a_request_outlives_those_who_could_answer")
async def test_a_request_keeps_waiting_after_the_last_responder_leaves(
    bench: Bench,
) -> None:
    watcher = await bench.daemon.watch(types="all")
    request = await bench.asked()
    await bench.events.aclose()
    await wait_all_tasks_blocked()
    assert not (await bench.client.request("list_permissions"))["can_answer"]
    [pending] = await bench.pending()
    assert pending == request
    # Any client may answer, with or without the declaration.
    await (await bench.daemon.connect()).request("confirm_tool", **naming(pending, "once"))
    assert the_decision(await watcher.run())[1]["by"] == "user"
    # The next call is denied: no client can answer.
    await bench.start()
    assert the_decision(await watcher.run())[1]["by"] == "policy"


@pytest.mark.behaviour("pending_requests_survive_reconnecting")
async def test_a_request_is_listed_until_it_is_decided(bench: Bench) -> None:
    assert await bench.pending() == []
    request = await bench.asked()
    listed = await bench.client.request("list_permissions", session_id=request["session_id"])
    assert listed["pending"] == [request]
    assert listed["cursor"].startswith("evt-")
    other = (await bench.client.request("new_session"))["session_id"]
    assert (await bench.client.request("list_permissions", session_id=other))["pending"] == []
    assert await bench.pending() == [request]
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    assert await bench.pending() == []
    await bench.events.run()


# --- modes and grants ------------------------------------------------------------------------


@pytest.mark.behaviour("set_permission_mode_holds_from_the_next_call")
async def test_a_mode_set_while_a_call_waits_applies_from_the_next_call(
    bench: Bench,
) -> None:
    two = calls(("fetch", "{}"), ("fetch", "{}"))
    request = await bench.asked(two)
    await bench.client.request("set_permission_mode", mode="yolo")
    assert (await bench.client.request("get_state"))["permission_mode"] == "yolo"
    assert await bench.pending() == [request]
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    run = await bench.events.run()
    decided = [event["type"] for event in run if event["type"] in DECISIONS]
    assert decided == ["tool_call_denied", "tool_call_approved"]
    [completed] = of_type(run, "tool_call_completed")
    assert completed["policy_snapshot"]["permission_mode"] == "yolo"
    assert len(of_type(run, "permission_requested")) == 1


async def test_the_policy_snapshot_has_the_mode_that_the_call_was_judged_by(
    bench: Bench,
) -> None:
    request = await bench.asked()
    await bench.client.request("set_permission_mode", mode="ask")
    await bench.client.request("confirm_tool", **naming(request, "once", reason="go on"))
    [completed] = of_type(await bench.events.run(), "tool_call_completed")
    snapshot = completed["policy_snapshot"]
    assert snapshot["permission_mode"] == "auto"
    assert [(each["source"], each["decision"]) for each in snapshot["sources"]][-3:] == [
        ("mode", "ask"),
        ("runtime", "abstain"),
        ("user", "allow"),
    ]


async def test_a_branch_inherits_the_permission_mode_and_a_new_session_does_not(
    bench: Bench,
) -> None:
    session_id = (await bench.client.request("new_session"))["session_id"]
    await bench.client.request("set_permission_mode", mode="yolo")
    await bench.run()
    branch = await bench.client.request("branch_session", session_id=session_id)
    state = await bench.client.request("get_state", session_id=branch["session_id"])
    assert state["permission_mode"] == "yolo"
    fresh = await bench.client.request("new_session")
    state = await bench.client.request("get_state", session_id=fresh["session_id"])
    assert state["permission_mode"] == "auto"


@pytest.mark.behaviour("granted_rules_spare_the_question")
@pytest.mark.parametrize("decision", ["session", "always"])
async def test_a_granted_rule_prevents_further_requests_within_its_scope(
    bench: Bench, decision: str
) -> None:
    request = await bench.asked()
    answer = await bench.client.request("confirm_tool", **naming(request, decision))
    assert answer["rule"] == request["rule"] == "fetch(example.org)"
    await bench.events.run()
    run = await bench.run()
    assert of_type(run, "permission_requested") == []
    assert the_decision(run)[0] == "tool_call_approved"
    listed = await bench.client.request("list_permissions")
    key = "granted" if decision == "session" else "granted_everywhere"
    assert listed[key] == [request["rule"]]
    await bench.client.request("new_session")
    if decision == "always":
        assert of_type(await bench.run(), "permission_requested") == []
    else:
        await bench.client.request("confirm_tool", **naming(await bench.asked(), "deny"))
        await bench.events.run()


@pytest.mark.behaviour("a_denial_can_hold_for_the_session")
@pytest.mark.behaviour("decisions_say_what_the_user_said")
async def test_deny_session_denies_matching_calls_for_the_rest_of_the_session(bench: Bench) -> None:
    request = await bench.asked()
    answer = await bench.client.request(
        "confirm_tool", **naming(request, "deny_session", reason="not there")
    )
    assert (answer["decision"], answer["rule"]) == ("deny_session", "fetch(example.org)")
    kind, payload = the_decision(await bench.events.run())
    assert (kind, payload["decision"], payload["rule"]) == (
        "tool_call_denied",
        "deny_session",
        "fetch(example.org)",
    )
    assert payload["reason"].endswith("denied fetch(example.org) for the session: not there")
    run = await bench.run()
    assert of_type(run, "permission_requested") == []
    assert (the_decision(run)[0], the_decision(run)[1]["by"]) == ("tool_call_denied", "policy")
    other = calls(("fetch", '{"url": "https://other.org"}'))
    await bench.client.request("confirm_tool", **naming(await bench.asked(other), "once"))
    await bench.events.run()
    assert bench.fetched.urls == ["https://other.org"]
    await bench.client.request("new_session")
    await bench.client.request("confirm_tool", **naming(await bench.asked(), "deny"))
    await bench.events.run()


async def test_deny_session_adds_its_rule_to_the_sessions_own_rules(bench: Bench) -> None:
    session_id = (await bench.client.request("new_session", rules={"ask": ["fetch"]}))["session_id"]
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, "deny_session", rule="fetch"))
    await bench.events.run()
    record = (await bench.client.request("get_session", session_id=session_id))["session"]
    assert record["rules"] == {"ask": ["fetch"], "deny": ["fetch"]}
    await bench.client.request("update_session", session_id=session_id, rules=None)
    await bench.client.request("confirm_tool", **naming(await bench.asked(), "deny"))
    await bench.events.run()


async def test_deny_session_requires_a_rule_that_denies_the_call_and_room_for_it(
    bench: Bench,
) -> None:
    full = [f"other{number}" for number in range(SESSION_RULES_MAX)]
    await bench.client.request("new_session", rules={"deny": full})
    request = await bench.asked()
    for rule, words in (
        ("fetch(other.org)", "rule does not deny the call that it is given for"),
        ("fetch(", "rule is none: "),
    ):
        error = await bench.client.refusal(
            "confirm_tool", **naming(request, "deny_session", rule=rule)
        )
        assert error["message"].startswith(words)
    error = await bench.client.refusal("confirm_tool", **naming(request, "deny_session"))
    assert (error["message"], error["details"]) == (
        "too_many_rules",
        {"limit": SESSION_RULES_MAX},
    )
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.run()


async def test_once_and_deny_grant_nothing(bench: Bench) -> None:
    for decision in ("once", "deny"):
        request = await bench.asked()
        answer = await bench.client.request("confirm_tool", **naming(request, decision))
        assert "rule" not in answer
        await bench.events.run()
    listed = await bench.client.request("list_permissions")
    assert (listed["granted"], listed["granted_everywhere"]) == ([], [])


async def test_an_answer_may_grant_a_wider_rule(bench: Bench) -> None:
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, "session", rule="fetch"))
    await bench.events.run()
    run = await bench.run(calls(("fetch", '{"url": "https://other.org"}')))
    assert of_type(run, "permission_requested") == []


@pytest.mark.behaviour("a_granted_rule_can_be_taken_back")
@pytest.mark.parametrize("decision", ["session", "always"])
async def test_a_revoked_rule_no_longer_applies(bench: Bench, decision: str) -> None:
    request = await bench.asked()
    await bench.client.request("confirm_tool", **naming(request, decision))
    await bench.events.run()
    where = {"session_id": request["session_id"]} if decision == "session" else {}
    answer = await bench.client.request("revoke_permission", rule=request["rule"], **where)
    assert answer["rule"] == request["rule"]
    error = await bench.client.refusal("revoke_permission", rule=request["rule"], **where)
    assert error["message"] == "rule_not_granted"
    await bench.client.request("confirm_tool", **naming(await bench.asked(), "deny"))
    await bench.events.run()


async def test_a_request_too_long_for_a_rule_suggests_none(bench: Bench) -> None:
    url = "https://" + ".".join(["a" * 60] * 100)
    request = await bench.asked(calls(("fetch", json.dumps({"url": url}))))
    assert "rule" not in request
    error = await bench.client.refusal("confirm_tool", **naming(request, "always"))
    assert error["message"] == "rule_required"
    await bench.client.request("confirm_tool", **naming(request, "always", rule="fetch"))
    await bench.events.run()
    assert bench.fetched.urls == [url]


async def test_long_arguments_are_truncated_in_a_request_that_names_their_size(
    bench: Bench,
) -> None:
    url = "https://" + "x" * 100_000
    request = await bench.asked(calls(("fetch", json.dumps({"url": url}))))
    assert request["args_bytes"] > 100_000
    assert len(request["args"]["url"]) < 2000
    [pending] = await bench.pending()
    assert pending == request
    status = (await bench.events.until("status"))["payload"]["message"]
    assert status.startswith("permission_requested: ")
    assert len(status) < 20_000
    await bench.client.request("confirm_tool", **naming(request, "deny"))
    await bench.events.run()


async def test_a_rule_granted_twice_is_listed_once(bench: Bench) -> None:
    requests = []
    bench.provider.answer(FETCHES, FETCHES, says("done"), says("done"))
    for _ in range(2):
        await bench.client.request("new_session")
        await bench.client.request("prompt", text="go", wait=False)
        requests.append((await bench.events.until("permission_requested"))["payload"])
    for request in requests:
        answer = await bench.client.request("confirm_tool", **naming(request, "always"))
        assert answer["rule"] == request["rule"]
        await bench.events.run()
    listed = await bench.client.request("list_permissions")
    assert listed["granted_everywhere"] == [requests[0]["rule"]]


def test_a_status_about_a_request_is_short_for_arguments_of_any_size() -> None:
    asks = PermissionRequested(
        session_id="s",
        run_id="r",
        tool_call_id="c",
        attempt=1,
        tool_name="t",
        input_hash="sha256:0",
        args={"text": "x" * 1_000_000},
        reason="why",
        expires_at="2026-01-01T00:00:00Z",
    )
    [status] = status_of("permission_requested", asks)
    assert isinstance(status, Status)
    assert len(status.message) < 20_000
    assert json.loads(status.message.partition(": ")[2])["args_bytes"] > 1_000_000


async def test_a_repeated_call_is_requested_again_and_the_old_answer_is_refused(
    bench: Bench,
) -> None:
    first = await bench.asked()
    await bench.client.request("abort")
    await bench.events.run()
    message_id = first["tool_call_id"].rpartition(".")[0]
    await bench.client.request("set_leaf", leaf_id=message_id)
    await bench.client.request("resume")
    second = (await bench.events.until("permission_requested"))["payload"]
    assert (second["tool_call_id"], second["attempt"]) == (first["tool_call_id"], 2)
    error = await bench.client.refusal("confirm_tool", **naming(first, "once"))
    assert (error["message"], error["details"]) == ("attempt_mismatch", {"attempt": 2})
    assert await bench.pending() == [second]
    await bench.client.request("confirm_tool", **naming(second, "once"))
    run = await bench.events.run()
    assert the_decision(run)[1]["attempt"] == 2
    assert bench.fetched.urls == ["https://example.org"]


async def test_a_client_call_waits_for_approval_like_a_models_call(bench: Bench) -> None:
    await bench.client.request("new_session")
    other = await bench.daemon.connect()
    accepted = await other.request("call_tool", tool="fetch")
    request = (await bench.events.until("permission_requested"))["payload"]
    assert request["tool_call_id"] == accepted["tool_call_id"]
    assert "run_id" not in request
    assert await bench.pending() == [request]
    await bench.client.request("confirm_tool", **naming(request, "session"))
    ended = await bench.events.until("tool_call_completed")
    assert ended["payload"]["policy_snapshot"]["sources"][-1]["source"] == "user"
    listed = await bench.client.request("list_permissions", session_id=request["session_id"])
    assert listed["granted"] == [request["rule"]]
    assert bench.fetched.urls == ["https://example.org"]
