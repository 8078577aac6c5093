"""The rows of the limits table about approvals and questions; see ``test_limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nousd.daemon.commands import permissions
from nousd.daemon.policy import grants, requests
from nousd.wire.limit_table import LIMITS
from tests.daemon.asking_bench import naming
from tests.daemon.limits_bench import Kit, error_text
from tests.harness.daemon import Events, Payload, of_type
from tests.harness.stub_model import Reply, text_reply, tool_reply


async def new_asking_session(kit: Kit) -> None:
    """Make a new session the active one, in which every call is asked about."""
    await kit.client.request("new_session")
    await kit.client.request("set_permission_mode", mode="ask")


async def responder(kit: Kit) -> Events:
    return await kit.daemon.watch(types="all", confirms=True)


def writing(name: str = "a.txt") -> Reply:
    return tool_reply(("write", {"path": name, "content": "x"}))


async def start(kit: Kit, *replies: Reply) -> None:
    kit.stub.script(*replies)
    await kit.client.request("prompt", text="go", wait=False)


async def next_request(events: Events) -> Payload:
    payload: Payload = (await events.until("permission_requested"))["payload"]
    return payload


async def waiting_requests(kit: Kit, offset: int) -> None:
    most = kit.scale("waiting_requests_max", requests, "WAITING_REQUESTS_MAX", 2)
    events = await responder(kit)
    for number in range(most + offset):
        await new_asking_session(kit)
        if number < most:
            await start(kit, writing())
            await next_request(events)
        else:
            await start(kit, writing(), text_reply("done"))
            [denied] = of_type(await events.run(), "tool_call_denied")
            assert denied["by"] == "policy"
            assert denied["reason"].endswith(f"{most} others wait already")
    pending = (await kit.client.request("list_permissions"))["pending"]
    assert len(pending) == min(most, most + offset)


async def granted_rules(kit: Kit, offset: int) -> None:
    most = kit.scale("granted_rules_max", grants, "GRANTED_RULES_MAX", 2)
    events = await responder(kit)
    await new_asking_session(kit)
    for number in range(most + offset):
        await start(kit, writing(f"{number}.txt"), text_reply("done"))
        answer = naming(await next_request(events), "session")
        if number == most:
            error = await kit.client.refusal("confirm_tool", **answer)
            assert error_text(error) == LIMITS["granted_rules_max"][1]
            answer["decision"] = "once"
        await kit.client.request("confirm_tool", **answer)
        await events.run()
    granted = (await kit.client.request("list_permissions"))["granted"]
    assert len(granted) == min(most, most + offset)


async def rule_chars(kit: Kit, offset: int) -> None:
    most, words = LIMITS["rule_chars_max"]
    error = await kit.client.refusal("revoke_permission", rule="r" * (most + offset))
    expected = words.split(";")[0] if offset > 0 else "command_rejected: rule_not_granted"
    assert error_text(error) == expected


async def reason_chars(kit: Kit, offset: int) -> None:
    most, words = LIMITS["reason_chars_max"]
    events = await responder(kit)
    await new_asking_session(kit)
    await start(kit, writing(), text_reply("done"))
    answer = naming(await next_request(events), "deny", reason="r" * (most + offset))
    if offset > 0:
        assert error_text(await kit.client.refusal("confirm_tool", **answer)) == words
        answer["reason"] = "too long"
    await kit.client.request("confirm_tool", **answer)
    [denied] = of_type(await events.run(), "tool_call_denied")
    assert denied["reason"] == f"the user said no: {answer['reason']}"


async def expired_listed(kit: Kit, offset: int) -> None:
    most = kit.scale("expired_listed_max", permissions, "EXPIRED_LISTED_MAX", 2)
    events = await responder(kit)
    await new_asking_session(kit)
    asked = []
    for number in range(most + offset):
        await start(kit, writing(f"{number}.txt"))
        asked.append(await next_request(events))
        await kit.client.request("abort")
        await events.run()
    expired = (await kit.client.request("list_permissions"))["expired"]
    assert [each["request"] for each in expired] == asked[::-1][:most]


async def check_answer(
    kit: Kit, name: str, offset: int, questions: list[Any], answers: list[Any]
) -> None:
    events = await responder(kit)
    await kit.client.request("new_session")
    await start(kit, tool_reply(("question", {"questions": questions})), text_reply("done"))
    named = {"question_id": (await events.until("question_asked"))["payload"]["question_id"]}
    if offset > 0:
        error = await kit.client.refusal("answer_question", **named, answers=answers)
        assert error_text(error) == LIMITS[name][1].replace("<index>", "0")
        await kit.client.request("reject_question", **named)
    else:
        await kit.client.request("answer_question", **named, answers=answers)
    ended = "question_rejected" if offset > 0 else "question_answered"
    assert len(of_type(await events.run(), ended)) == 1


async def answers_count(kit: Kit, offset: int) -> None:
    most = LIMITS["answers_max"][0]
    questions = [{"question": "Why?"}] * min(most, most + offset)
    await check_answer(kit, "answers_max", offset, questions, [{"text": "so"}] * (most + offset))


async def choices(kit: Kit, offset: int) -> None:
    most = LIMITS["choices_max"][0]
    labels = [str(number) for number in range(most)]
    options = [{"label": label} for label in labels]
    question = {"question": "Which?", "options": options, "multiple": True}
    chosen = [*labels, "another"][: most + offset]
    await check_answer(kit, "choices_max", offset, [question], [{"chosen": chosen}])


async def answer_chars(kit: Kit, offset: int) -> None:
    text = "x" * (LIMITS["answer_chars_max"][0] + offset)
    await check_answer(kit, "answer_chars_max", offset, [{"question": "Why?"}], [{"text": text}])


ASKING_PLAYS: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    "waiting_requests_max": waiting_requests,
    "granted_rules_max": granted_rules,
    "rule_chars_max": rule_chars,
    "reason_chars_max": reason_chars,
    "expired_listed_max": expired_listed,
    "answers_max": answers_count,
    "choices_max": choices,
    "answer_chars_max": answer_chars,
}
