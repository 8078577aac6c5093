"""Asks the user for permissions and answers to questions, with requests to the editor.

If another client answers first, the request is withdrawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from nousd.acp_server.requests import FormAnswer, PermissionAnswer
from nousd.acp_server.tool_calls import describe_call
from nousd.errors import Refused
from nousd.net.jsonrpc import JsonRpc, RpcError
from nousd.wire.codec.decoding import decode_json

Payload = Mapping[str, Any]
Command = tuple[str, dict[str, Any]]
"""A command and its payload."""

END_EVENTS: Final[Mapping[str, str]] = {
    "tool_call_approved": "tool_call_id",
    "tool_call_denied": "tool_call_id",
    "question_answered": "question_id",
    "question_rejected": "question_id",
}
"""Event that settles a permission or question -> the key of its id."""

_ENDED_CODES: Final = frozenset(
    {
        "already_decided",
        "already_answered",
        "tool_call_not_found",
        "tool_call_not_pending",
        "question_not_found",
    }
)
"""Refusals which mean that the answer is no longer needed."""

_OF_DEFINITION: Final = re.compile(r"\(#[0-9a-f]+\)$")
"""The part of a rule with the hash of an MCP tool's description, which is meaningless to people."""

_DISMISSED: Final = "the user dismissed it"
_SKIP: Final = "skip"
_OWN_WORDS: Final = "_own_words"


class Asking:
    """Asks the user of an editor on behalf of one session.

    Args:
        send: sends a command to the daemon.
        has_forms: whether the editor can show a form.
    """

    def __init__(
        self,
        rpc: JsonRpc,
        send: Callable[[str, dict[str, Any]], Awaitable[Any]],
        *,
        session_id: str,
        folder: str,
        has_forms: bool,
    ) -> None:
        self._rpc = rpc
        self._send = send
        self._session_id = session_id
        self._folder = folder
        self._has_forms = has_forms

    async def permission(self, request: Payload) -> None:
        """Ask whether a call may run, and submit the answer.

        Raises:
            ClientError: the answer cannot be delivered to the daemon.
        """
        call = describe_call(request["tool_name"], request["args"], self._folder)
        shown = {"toolCallId": request["tool_call_id"], "status": "pending", **call}
        try:
            decision, reason = await self._request_choice(shown, permission_options(request)), ""
        except (RpcError, msgspec.DecodeError) as error:
            decision, reason = None, f"the editor could not ask: {error}"
        decided: dict[str, Any] = {
            key: request[key] for key in ("tool_call_id", "attempt", "input_hash")
        }
        if decision is None:
            decided |= {"decision": "deny", "reason": reason or _DISMISSED}
        else:
            decided["decision"] = decision
        await self._hand_in("confirm_tool", decided)

    async def question(self, request: Payload) -> None:
        """Ask a tool's questions, and submit the answers.

        Raises:
            ClientError: the answers cannot be delivered to the daemon.
        """
        try:
            if self._has_forms:
                answers = await self._by_form(request)
            else:
                answers = await self._one_by_one(request)
        except (RpcError, msgspec.DecodeError) as error:
            answers = f"the editor could not ask: {error}"
        ids = {"question_id": request["question_id"]}
        if not isinstance(answers, str):
            try:
                await self._hand_in("answer_question", {**ids, "answers": answers})
            except Refused as refused:  # such as for an empty field
                answers = refused.message
        if isinstance(answers, str):
            await self._hand_in("reject_question", {**ids, "reason": answers})

    async def _hand_in(self, command: str, payload: dict[str, Any]) -> None:
        try:
            await self._send(command, payload)
        except Refused as refused:
            if refused.message not in _ENDED_CODES:
                raise

    async def _request_choice(self, call: Payload, options: list[dict[str, str]]) -> str | None:
        """Return the id of the option that the user chose; None if the request was dismissed."""
        params = {"sessionId": self._session_id, "toolCall": call, "options": options}
        # The daemon ends the approval after ``approval_timeout_seconds``; that withdraws the request.
        raw = await self._rpc.call("session/request_permission", params, seconds=math.inf)
        outcome = decode_json(raw, type=PermissionAnswer).outcome
        offered = {option["optionId"] for option in options}
        return outcome.option_id if outcome.option_id in offered else None

    async def _by_form(self, request: Payload) -> list[dict[str, Any]] | str:
        questions = request["questions"]
        form = {
            "mode": "form",
            "sessionId": self._session_id,
            "toolCallId": request["tool_call_id"],
            "message": "\n".join(question["question"] for question in questions),
            "requestedSchema": form_of(questions),
        }
        raw = await self._rpc.call("elicitation/create", form, seconds=math.inf)
        answer = decode_json(raw, type=FormAnswer)
        if answer.action != "accept":
            return "the user declined to answer" if answer.action == "decline" else _DISMISSED
        return [_answer(n, question, answer.content or {}) for n, question in enumerate(questions)]

    async def _one_by_one(self, request: Payload) -> list[dict[str, Any]] | str:
        """Ask each question as a permission request with the question's options."""
        questions = request["questions"]
        if not all(question.get("options") for question in questions):
            return (
                "the editor cannot show a question without options: ask it in your answer instead"
            )
        answers = []
        for question in questions:
            options = [
                {"optionId": f"o{n}", "name": option["label"], "kind": "allow_once"}
                for n, option in enumerate(question["options"])
            ]
            none = {"optionId": _SKIP, "name": "Do not answer", "kind": "reject_once"}
            call = {
                "toolCallId": request["tool_call_id"],
                "title": question["question"],
                "kind": "other",
            }
            chosen = await self._request_choice(call, [*options, none])
            if chosen is None or chosen == _SKIP:
                return _DISMISSED
            answers.append({"chosen": [question["options"][int(chosen[1:])]["label"]]})
        return answers


def permission_options(request: Payload) -> list[dict[str, str]]:
    """Return the options of the user; their ids are the decisions of ``confirm_tool``."""
    rule = request.get("rule") if "outside" not in request else None
    options = [("once", "Allow once", "allow_once")]
    shown = _OF_DEFINITION.sub("", rule or "")
    if rule is not None:
        options += [
            ("session", f"Allow {shown} in this session", "allow_always"),
            ("always", f"Always allow {shown} in this workspace", "allow_always"),
        ]
    options.append(("deny", "Reject", "reject_once"))
    if rule is not None:
        options.append(("deny_session", f"Reject {shown} in this session", "reject_always"))
    return [{"optionId": id, "name": name, "kind": kind} for id, name, kind in options]


# --- forms -----------------------------------------------------------------------------------


def form_of(questions: list[Payload]) -> dict[str, Any]:
    """Return the schema of a form; a question with options also has a field for a free answer."""
    fields: dict[str, Any] = {}
    for n, question in enumerate(questions):
        options = [_option(option) for option in question.get("options", ())]
        title = question.get("header") or question["question"]
        labels = {"title": title, "description": question["question"]}
        if not options:
            fields[f"q{n}"] = {"type": "string", **labels}
            continue
        if question.get("multiple"):
            fields[f"q{n}"] = {"type": "array", "items": {"anyOf": options}, **labels}
        else:
            fields[f"q{n}"] = {"type": "string", "oneOf": options, **labels}
        fields[f"q{n}{_OWN_WORDS}"] = {"type": "string", "title": f"{title}: in other words"}
    return {"type": "object", "properties": fields}


def _option(option: Payload) -> dict[str, str]:
    described = {"description": option["description"]} if option.get("description") else {}
    return {"const": option["label"], "title": option["label"], **described}


def _answer(n: int, question: Payload, content: Mapping[str, Any]) -> dict[str, Any]:
    chosen = content.get(f"q{n}")
    words = content.get(f"q{n}{_OWN_WORDS}")
    answer: dict[str, Any] = {}
    if not question.get("options"):
        words = chosen
    elif chosen:
        answer["chosen"] = [chosen] if isinstance(chosen, str) else list(chosen)
    if words:
        answer["text"] = str(words)
    return answer
