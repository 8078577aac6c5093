"""The verbs of ``nousctl`` that answer approvals and questions.

They first read the request from the daemon, so that the user need not type the attempt and the hash
that an answer must contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer

from nousd.cli.arguments import Argument, option, require_argument
from nousd.cli.client_options import Options, print_answer
from nousd.cli.nousctl.command_tree import nearest
from nousd.cli.nousctl.input_arguments import CLIENT, SESSION
from nousd.cli.nousctl.rows import Watch
from nousd.cli.output import DONE, FAILED, say
from nousd.cli.render.request_lines import NoAnswer, answers_to, question_lines, request_lines
from nousd.cli.short_ids import whole_id

Payload = Mapping[str, Any]


def _mode(options: Options, values: dict[str, Any]) -> int:
    with options.connect() as daemon:
        if "mode" in values:
            return print_answer(options, daemon.request("set_permission_mode", values))
        answer = daemon.request("get_state", values)
    if options.json:
        return print_answer(options, answer)
    print(answer.payload["permission_mode"])
    return DONE


def _approve(options: Options, values: dict[str, Any]) -> int:
    return _confirm(options, {"decision": "once", **values})


def _deny(options: Options, values: dict[str, Any]) -> int:
    words = values.pop("words", "")
    reason = {"reason": words} if words else {}
    return _confirm(options, {**values, **reason, "decision": "deny"})


def _confirm(options: Options, values: dict[str, Any]) -> int:
    with options.connect() as daemon:
        pending = daemon.request("list_permissions", {}).payload["pending"]
        request = _find_request(pending, "tool_call_id", values["tool_call_id"])
        if request is None:
            say(
                f"no call {values['tool_call_id']} waits; list those that do: nousctl permission list"
            )
            return FAILED
        for line in request_lines(request):
            say(line)
        ids = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        return print_answer(options, daemon.request("confirm_tool", {**values, **ids}))


def _answer(options: Options, values: dict[str, Any]) -> int:
    question_id = values["question_id"]
    with options.connect() as daemon:
        pending = daemon.request("list_questions", {}).payload["questions"]
        request = _find_request(pending, "question_id", question_id)
        if request is None:
            say(f"no question {question_id} waits; list those that do: nousctl question list")
            return FAILED
        try:
            answers = answers_to(request["questions"], values["answers"])
        except NoAnswer as error:
            say(str(error))
            return FAILED
        for question, answer in zip(request["questions"], answers, strict=True):
            say(question_lines(question)[0])
            say("  " + ", ".join([*answer.get("chosen", ()), answer.get("text", "")]).strip(", "))
        return print_answer(
            options,
            daemon.request(
                "answer_question",
                {**values, "question_id": request["question_id"], "answers": answers},
            ),
        )


def _find_request(pending: list[Payload], key: str, id: str) -> Payload | None:
    full_id = whole_id(id, [each[key] for each in pending])
    return next((each for each in pending if each[key] == full_id), None)


def nearest_rule(options: Options, values: Mapping[str, Any]) -> str:
    """Return a hint to the most similar granted rule, for the refusal ``rule_not_granted``."""
    session = {key: values[key] for key in ("session_id",) if key in values}
    with options.connect() as daemon:
        listed = daemon.request("list_permissions", session).payload
    near = nearest(values["rule"], {*listed["granted"], *listed["granted_everywhere"]})
    return f"; the nearest is {near[0]}" if near else ""


_CALL: Final = require_argument("tool_call_id", "CALL", "As listed by permission list.")
_REASON: Final = option("reason", "--reason", "Reason; the model receives it.")
_RULE: Final = option("rule", "--rule", "Rule to save instead of the offered one.")

ASKING: Final[dict[str, Watch]] = {
    "approve": Watch(
        "Approve a pending tool call.",
        (
            _CALL,
            Argument(
                "decision",
                Annotated[
                    Literal["once", "session", "always"] | None,
                    typer.Argument(
                        metavar="[once|session|always]",
                        help="This call, calls like it in the session, or always. [default: once]",
                    ),
                ],
            ),
            _RULE,
            CLIENT,
        ),
        _approve,
    ),
    "deny": Watch(
        "Deny a pending tool call.",
        (
            _CALL,
            Argument(
                "words",
                Annotated[
                    list[str] | None,
                    typer.Argument(metavar="[REASON]", help="Reason; the model receives it."),
                ],
                convert=" ".join,
            ),
            _REASON,
            CLIENT,
        ),
        _deny,
    ),
    "mode": Watch(
        "Show or set a session's permission mode.",
        (
            Argument(
                "mode",
                Annotated[
                    Literal["ask", "auto", "yolo"] | None,
                    typer.Argument(
                        metavar="[ask|auto|yolo]",
                        help="Ask about every call, about those that leave workspace or sandbox, "
                        "or about none.",
                    ),
                ],
            ),
            SESSION,
        ),
        _mode,
    ),
    "confirm": Watch(
        "Approve or deny a pending tool call.",
        (
            _CALL,
            Argument(
                "decision",
                Annotated[
                    Literal["once", "session", "always", "deny"],
                    typer.Argument(
                        metavar="once|session|always|deny",
                        help="Allow this call, calls like it in the session, or everywhere; or deny.",
                    ),
                ],
                ...,
            ),
            _REASON,
            _RULE,
            CLIENT,
        ),
        _confirm,
    ),
    "answer": Watch(
        "Answer a question of a tool.",
        (
            Argument(
                "question_id",
                Annotated[
                    str, typer.Argument(metavar="QUESTION", help="As listed by question list.")
                ],
                ...,
            ),
            Argument(
                "answers",
                Annotated[
                    list[str],
                    typer.Argument(
                        metavar="ANSWER...",
                        help="For each question: an option's number, several separated by commas, or "
                        "free text.",
                    ),
                ],
                ...,
            ),
            CLIENT,
        ),
        _answer,
    ),
}
"""Name on the command line -> verb."""
