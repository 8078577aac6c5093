"""Renders tool calls, approvals and questions for people, and parses typed answers.

Requests for permission and questions are payloads of their events, or rows of a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nousd.cli.output import harmless
from nousd.cli.render.people import local_time
from nousd.errors import NousdError

Payload = Mapping[str, Any]


class NoAnswer(NousdError):
    """The typed line is not an answer; the text says how to answer."""


def waiting_lines(status: str) -> list[str]:
    """Return the lines that show the request in a status; none if the status is not about a request."""
    kind, _, text = status.partition(": ")
    if kind == "permission_requested":
        request = json.loads(text)
        decisions = "once|deny" if "outside" in request else "once|session|always|deny"
        command = f"nousctl permission confirm {request['tool_call_id']} {decisions}"
        call, *args = call_lines(request)
        return [f"waits for you: {call}", *args, f"  {command}"]
    if kind == "question_asked":
        request = json.loads(text)
        lines = [line for question in request["questions"] for line in question_lines(question)]
        return [
            "asks you:",
            *lines,
            f"  nousctl question answer {request['question_id']} ANSWER...",
        ]
    return []


# --- requests for permission -----------------------------------------------------------------


def render_permissions(payload: Payload) -> Iterator[str]:
    """Yield the lines that show ``list_permissions``."""
    yield f"mode      {payload['mode']}"
    if not (payload["can_answer"] or payload["pending"]):
        yield "asking    no connected client answers requests: calls that need approval are denied"
    for rule in payload["rules"]:
        yield f"rule      {rule['decision']} {rule_line(rule['rule'])}  ({rule['origin']})"
    for scope, key in (("session", "granted"), ("always", "granted_everywhere")):
        for rule in payload[key]:
            yield f"granted   {rule_line(rule)}  ({scope})"
    for request in payload["pending"]:
        yield f"waiting   {request['tool_call_id']}"
        yield from (f"          {line}" for line in request_lines(request))
        yield f"          until {local_time(request['expires_at'])}, in {request['session_id']}"
    for expired in payload["expired"]:
        request = expired["request"]
        yield f"expired   {request['tool_call_id']} {request_line(request)} ({expired['by']})"
    if payload.get("truncated"):
        yield "(there is more: name a session)"


def request_lines(request: Payload) -> list[str]:
    """Return the lines that show one request with its exact arguments."""
    return [*call_lines(request), *why_lines(request)]


def why_lines(request: Payload) -> list[str]:
    """Return the lines with the reason for an approval, the paths that it opens, and its rule."""
    rule = request.get("rule")
    offered = [] if rule is None else [f"session and always allow: {rule_line(rule)}"]
    opened = [f"opens {path}" for path in request.get("outside", ())]
    lines = (f"because {request['reason']}", *opened, *offered)
    return [harmless(line, one_line=True) for line in lines]


def request_line(request: Payload) -> str:
    """Return a call as one line. Text that looks like an argument cannot be distinguished there."""
    return " ".join(line.strip() for line in call_lines(request))


def rule_line(rule: str) -> str:
    """Return a rule for people; explain it if it is about an MCP server's tool and has a hash."""
    found = _OF_DEFINITION.fullmatch(rule)
    if found is None:
        return rule
    return (
        f"{rule}: {found['tool']} of the MCP server {found['server']} while it is described as now"
    )


_OF_DEFINITION: Final = re.compile(r"mcp__(?P<server>.+?)__(?P<tool>.+)\(#[0-9a-f]+\)")


def call_lines(request: Payload) -> list[str]:
    """Return the lines that show a call. Text of several lines is prefixed, so that no part of it looks
    like another argument.
    """
    return [harmless(line, one_line=True) for line in _call_lines(request)]


def _call_lines(request: Payload) -> Iterator[str]:
    arguments = [(key, _value(value)) for key, value in request["args"].items()]
    if len(arguments) == 1 and "\n" not in arguments[0][1]:
        yield f"{request['tool_name']} {arguments[0][0]}: {arguments[0][1]}"
    else:
        yield request["tool_name"]
        for key, text in arguments:
            first, *more = text.split("\n")
            yield f"  {key}:" if more else f"  {key}: {first}"
            yield from (f"  | {line}" for line in (first, *more) if more)
    if "args_ref" in request:
        yield f"  (the beginning of {request['args_bytes']} bytes)"


def _value(value: Any) -> str:
    is_plain = isinstance(value, str) and value.strip() == value != ""
    return value if is_plain else json.dumps(value, ensure_ascii=False)


# --- questions -------------------------------------------------------------------------------


def render_questions(payload: Payload) -> Iterator[str]:
    """Yield the lines that show ``list_questions``."""
    for request in payload["questions"]:
        until = local_time(request["expires_at"])
        yield f"{request['question_id']}  until {until}, in {request['session_id']}"
        for question in request["questions"]:
            yield from (f"  {line}" for line in question_lines(question))
    if not payload["questions"]:
        yield "no question waits"
    if payload.get("truncated"):
        yield "(there is more: name a session)"


def question_lines(question: Payload) -> list[str]:
    """Return the lines that show one question and the numbers of its options."""
    header = f"[{question['header']}] " if question.get("header") else ""
    multiple = " (several, with commas)" if question.get("multiple") else ""
    return [
        f"{header}{question['question']}{multiple}",
        *(
            f"  {number} {option['label']}" + _format_description(option)
            for number, option in enumerate(question.get("options", ()), 1)
        ),
    ]


def _format_description(option: Payload) -> str:
    return f": {option['description']}" if option.get("description") else ""


def answers_to(questions: Sequence[Payload], typed: Sequence[str]) -> list[dict[str, Any]]:
    """Parse typed texts as answers, one for each question.

    Raises:
        NoAnswer: the number of texts differs, or one is empty.
    """
    if len(typed) != len(questions):
        raise NoAnswer(f"there are {len(questions)} questions and {len(typed)} answers")
    return [answer_to(*pair) for pair in zip(questions, typed, strict=True)]


def answer_to(question: Payload, typed: str) -> dict[str, Any]:
    """Parse a typed text as an answer: numbers or labels of options, otherwise free text.

    Raises:
        NoAnswer: the text is empty.
    """
    words = typed.strip()
    if not words:
        raise NoAnswer("an answer is a number, or own words")
    labels = [option["label"] for option in question.get("options", ())]
    named = {**{str(number): label for number, label in enumerate(labels, 1)}}
    named |= {label: label for label in labels}
    parts = [words] if words in named else [part.strip() for part in words.split(",")]
    is_choice = all(part in named for part in parts)
    if not is_choice or (len(parts) > 1 and not question.get("multiple")):
        return {"text": words}
    return {"chosen": list(dict.fromkeys(named[part] for part in parts))}


def render_tool_call(payload: Payload) -> Iterator[str]:
    """Yield the lines that show one attempt of a tool call."""
    call = payload["call"]
    yield from _facts(call)
    for opinion in call.get("sources", ()):
        rule = f" [{opinion['rule']}]" if "rule" in opinion else ""
        yield f"  {opinion['source']:<10} {opinion['decision']:<8} {opinion['reason']}{rule}"
    if "decision" in call:
        decision = call["decision"]
        word = "approved" if decision["approved"] else "denied"
        yield f"{word} by {decision['by']} at {local_time(decision['decided_at'])}: {decision['reason']}"
    if "result" in call:
        yield call["result"]
    if "text_ref" in call:
        yield f"(the beginning of {call['text_bytes']} bytes: nousctl artifact get {call['text_ref']})"


def _facts(call: Payload) -> Iterator[str]:
    args = json.dumps(call["args"], ensure_ascii=False)
    yield f"{call['tool_call_id']}  attempt {call['attempt']}  {_state(call)}"
    yield f"{call['tool_name']} {args}"
    ids = [call["session_id"], *([call["run_id"]] if "run_id" in call else ["no run"])]
    yield f"in {', '.join(ids)}, requested at {local_time(call['requested_at'])}"
    if "duration_ms" in call:
        yield f"ran {call['duration_ms']} ms in the {call.get('execution_env', 'host')}"


def render_tool_calls(payload: Payload) -> Iterator[str]:
    """Yield the lines that show a page of ``list_tool_calls``."""
    for call in payload["calls"]:
        of = call.get("run_id", "client")
        yield (
            f"{call['tool_call_id']}  {call['attempt']}  {_state(call)}  {call['tool_name']}  {of}"
        )
    if payload["has_more"]:
        yield f"(more: --before {payload['calls'][-1]['event']})"


def _state(call: Payload) -> str:
    return f"{call['state']} (failed)" if call.get("is_error") else str(call["state"])
