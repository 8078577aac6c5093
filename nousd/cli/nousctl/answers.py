"""The verbs of ``nousctl`` by which a person answers what the daemon asks.

What is answered is read from the daemon first: so the attempt and the hash, by which an answer names the
very call that was shown, need not be typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import typer

from nousd.cli.arguments import Argument
from nousd.cli.client_options import Options, print_answer
from nousd.cli.nousctl.input_arguments import SESSION
from nousd.cli.nousctl.verbs import Watch
from nousd.cli.output import DONE, FAILED, say
from nousd.cli.render.request_lines import NoAnswer, answers_to, question_lines, request_lines

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


def _confirm(options: Options, values: dict[str, Any]) -> int:
    with options.connect() as daemon:
        pending = daemon.request("list_permissions", {}).payload["pending"]
        request = _found(pending, "tool_call_id", values["tool_call_id"])
        if request is None:
            say(f"no call {values['tool_call_id']} waits; nousctl permissions lists those that do")
            return FAILED
        for line in request_lines(request):
            say(line)
        named = {key: request[key] for key in ("tool_call_id", "attempt", "input_hash")}
        return print_answer(options, daemon.request("confirm_tool", {**values, **named}))


def _answer(options: Options, values: dict[str, Any]) -> int:
    question_id = values["question_id"]
    with options.connect() as daemon:
        waiting = daemon.request("list_questions", {}).payload["questions"]
        asked = _found(waiting, "question_id", question_id)
        if asked is None:
            say(f"no question {question_id} waits; nousctl questions lists those that do")
            return FAILED
        try:
            answers = answers_to(asked["questions"], values["answers"])
        except NoAnswer as error:
            say(str(error))
            return FAILED
        for question, answer in zip(asked["questions"], answers, strict=True):
            say(question_lines(question)[0])
            say("  " + ", ".join([*answer.get("chosen", ()), answer.get("text", "")]).strip(", "))
        payload = {"question_id": question_id, "answers": answers}
        return print_answer(options, daemon.request("answer_question", payload))


def _found(waiting: list[Payload], key: str, id: str) -> Payload | None:
    return next((each for each in waiting if each[key] == id), None)


ASKING: Final[dict[str, Watch]] = {
    "mode": Watch(
        "Show which calls of a session need a word of yours, or choose it.",
        (
            Argument(
                "mode",
                Annotated[
                    Literal["ask", "auto", "yolo"] | None,
                    typer.Argument(
                        metavar="[ask|auto|yolo]",
                        help="Ask for all, for those that leave workdir or sandbox, or for none.",
                    ),
                ],
            ),
            SESSION,
        ),
        _mode,
    ),
    "confirm": Watch(
        "Allow or deny a call that waits, and show which one.",
        (
            Argument(
                "tool_call_id",
                Annotated[str, typer.Argument(metavar="CALL", help="As permissions shows it.")],
                ...,
            ),
            Argument(
                "decision",
                Annotated[
                    Literal["once", "session", "always", "deny"],
                    typer.Argument(
                        metavar="once|session|always|deny",
                        help="This call; calls like it in its session, or everywhere; not at all.",
                    ),
                ],
                ...,
            ),
            Argument(
                "reason", Annotated[str | None, typer.Option("--reason", help="A model is told.")]
            ),
            Argument(
                "rule",
                Annotated[
                    str | None,
                    typer.Option("--rule", help="Allow this from then on, not what is offered."),
                ],
            ),
        ),
        _confirm,
    ),
    "answer": Watch(
        "Answer a question of a tool.",
        (
            Argument(
                "question_id",
                Annotated[str, typer.Argument(metavar="QUESTION", help="As questions shows it.")],
                ...,
            ),
            Argument(
                "answers",
                Annotated[
                    list[str],
                    typer.Argument(
                        metavar="ANSWER...",
                        help="For each question the number of an option, several with commas, or "
                        "own words.",
                    ),
                ],
                ...,
            ),
        ),
        _answer,
    ),
}
"""name on the command line -> what it does."""
