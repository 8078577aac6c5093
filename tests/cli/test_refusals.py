"""What the daemon refuses, as sentences that name the next step."""

from __future__ import annotations

import pytest

from nousd.cli.render.refusals import refusal_text
from nousd.errors import Refused

OTHER = "use another folder: nousctl session new --workspace FOLDER"
ELSEWHERE = "name one that the daemon can use, on the machine where it runs"
ALL_THE_SAME = "set it all the same with: nousctl model set MODEL --unlisted"
WIDE = "it contains what belongs to the daemon; name a folder further down"


def refused(message: str, cause: str = "", **details: object) -> Refused:
    return Refused("command_rejected", message, cause, details)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            refused("workspace_not_allowed", "it lies in /proc", workspace="/proc/1"),
            f"/proc/1 may not be a workspace: it lies in /proc; {OTHER}",
        ),
        (
            refused("workspace_not_allowed", WIDE, workspace="/srv"),
            f"/srv may not be a workspace: {WIDE}",
        ),
        (
            refused("workspace_not_found", "there is no such folder", workspace="/srv"),
            f"the folder /srv cannot be a workspace: there is no such folder; {ELSEWHERE}",
        ),
        (
            refused("extension_command_not_found: helo"),
            "no extension has that command; list them with: nousctl daemon capabilities",
        ),
        (
            refused("runtime_unknown", "nope; nearest: codex"),
            "there is no such runtime; list them with: nousctl runtime list (nope; nearest: codex)",
        ),
        (refused("too_many_rules", "256"), "too many rules (256)"),
        (
            refused("model_unknown", "p lists no model x; the nearest is p/y", must_be_listed=True),
            f"p lists no model x; the nearest is p/y; {ALL_THE_SAME}",
        ),
        (
            refused("queue_changed", "read get_queue"),
            "the queue has changed; look at it again with: nousctl queue list",
        ),
    ],
)
def test_a_refusal_is_a_sentence_with_the_next_step(refusal: Refused, said: str) -> None:
    assert refusal_text(refusal) == said


def test_in_a_chat_the_next_step_of_the_shell_is_left_out() -> None:
    assert refusal_text(refused("input_not_found"), in_chat=True) == "there is no such input"
