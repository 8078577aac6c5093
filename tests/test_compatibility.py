"""The list of differences from older daemons of v1 is complete and true.

Conversations with an older daemon (``fixtures/v1-recordings``) are played again; what differs must be in
the list of ``protocol/semantics/compatibility.md``. What no recording shows is proved by a test that
``PROVED_ELSEWHERE`` names.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from nousd.config.settings import DEFAULTS
from nousd.providers.setup.registry import make_provider
from nousd.tools.builtin.catalog import builtin_tools
from tests.harness.daemon import memory_daemon
from tests.harness.v1_differences import ABSENT, Difference, differences
from tests.harness.v1_recordings import Played, load, play

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = {
    path.stem: load(path) for path in sorted((ROOT / "fixtures" / "v1-recordings").glob("*.ndjson"))
}
DOCUMENT: Final = ROOT / "protocol" / "semantics" / "compatibility.md"
FROZEN: Final = json.loads((ROOT / "protocol" / "frozen-v1.json").read_text())


def _frozen_keys() -> dict[str, set[str]]:
    """Return what is compared (as in ``Difference.where``) -> its frozen keys."""
    shapes = [*FROZEN["events"].items()]
    shapes += [(name.removesuffix("[]"), shape) for name, shape in FROZEN["shapes"].items()]
    shapes += [
        (f"result.events.{name}", FROZEN["shapes"]["result.events[]"]) for name in FROZEN["events"]
    ]
    shapes += [("error.error", FROZEN["envelope"]["error_body"])]
    for command in FROZEN["commands"].values():
        shapes += command["responses"].items()
    keys: dict[str, set[str]] = {}
    for name, shape in shapes:
        keys.setdefault(name, set()).update(shape["required"], shape["optional"])
    return keys


KEYS: Final = _frozen_keys()


# --- what the recordings show ------------------------------------------------------------------


def is_new(found: Difference) -> bool:
    return bool(found.recorded == ABSENT)


def is_gone(found: Difference) -> bool:
    return bool(found.ours == ABSENT)


def is_additional_key(found: Difference) -> bool:
    of, _, key = found.where.rpartition(".")
    return is_new(found) and key.isidentifier() and of in KEYS and key not in KEYS[of]


def is_other_id(found: Difference) -> bool:
    return found.where.endswith(" (form)")


def is_id_of_error(found: Difference) -> bool:
    return found.where == "error.id" and found.recorded == ""


def is_wording(found: Difference) -> bool:
    older = ("invalid_json: ", "stat ", "open ")
    return found.where == "error.error.message" and str(found.recorded).startswith(older)


def is_message_of_its_own(found: Difference) -> bool:
    """Tool results were a part of the one message of a turn, and of its entry."""
    if found.recording not in {"tools-ok", "steer-mid-tool"}:
        return False
    if found.where == "message_end" and is_new(found):
        return bool(found.ours["stop_reason"] == "tool_use")
    if found.where.startswith("message_update ") and is_gone(found):
        return not str(found.recorded["delta"]).startswith("after-tools")
    if found.where == "messages.messages.text":
        return str(found.recorded).startswith(str(found.ours)) and found.ours == "calling tools "
    return (
        found.where in {"message_end.message_id", "message_update.message_id"}
        or found.where == "messages.messages.id"
        or (found.where == "message_end" and is_gone(found))
        or (
            found.where in {"message_start assistant", "messages.messages[assistant]"}
            and is_new(found)
        )
    )


def is_entry_of_a_result(found: Difference) -> bool:
    return (found.where == "messages.messages[tool]" and is_new(found)) or (
        found.where == "messages.messages.parent_id" and found.ours.endswith(".result")
    )


def is_end_of_message(found: Difference) -> bool:
    return found.where == "message_end" and is_new(found) and found.ours["stop_reason"] == "aborted"


def is_stored_at_once(found: Difference) -> bool:
    return (
        found.recording in {"abort-mid-stream", "plain-and-state-running"}
        and is_new(found)
        and found.where
        in {
            "messages.messages[user]",
            "messages.messages[assistant]",
            "messages.leaf_id",
            "accepted.leaf_id",
        }
    )


def is_steer_before_the_model(found: Difference) -> bool:
    return (
        found.recording == "steer-mid-tool"
        and is_gone(found)
        and found.where
        in {
            "message_update after-tools(3)",
            "status await_next: continue_with_tool_results",
        }
    )


def is_moment_of_status(found: Difference) -> bool:
    return (
        found.recording in {"tools-ok", "steer-mid-tool"}
        and found.where.startswith(("status provider_usage: ", "status provider_stop_reason: "))
        and ABSENT in found
    )


def is_streamed_output(found: Difference) -> bool:
    return found.where == "tool_execution_update.delta" and found.ours == f"{found.recorded}\n"


def is_history(found: Difference) -> bool:
    """Prompts after the first, which the mock model repeats."""
    if found.recording not in {"leaf-tree", "sessions"}:
        return False
    told = found.recorded["delta"] if isinstance(found.recorded, dict) else found.recorded
    if is_new(found):
        return found.where.startswith("result.events.message_update mock response: user: ")
    return isinstance(told, str) and told.startswith("mock response: user: Conversation so far:\n")


def is_leaf_of_a_branch(found: Difference) -> bool:
    return (
        found.recording == "sessions"
        and found.where in {"messages.leaf_id", "result.leaf_id"}
        and is_new(found)
    )


def is_boundary(found: Difference) -> bool:
    return found.where == "warning.message" and found.ours == "path_outside_workdir: /nonexistent"


def is_usage_of_mock(found: Difference) -> bool:
    return (
        found.recording in {"prompt-wait-true", "prompt-wait-false", "leaf-tree", "sessions"}
        and "status provider_usage: " in found.where
        and is_new(found)
    )


SHOWN: Final[dict[str, Callable[[Difference], bool]]] = {
    "additional-keys": is_additional_key,
    "ids": is_other_id,
    "error-ids": is_id_of_error,
    "error-messages": is_wording,
    "messages": is_message_of_its_own,
    "tool-results": is_entry_of_a_result,
    "ended-messages": is_end_of_message,
    "stored-at-once": is_stored_at_once,
    "steers": is_steer_before_the_model,
    "statuses": is_moment_of_status,
    "tool-output": is_streamed_output,
    "history": is_history,
    "branches": is_leaf_of_a_branch,
    "workspace": is_boundary,
    "mock": is_usage_of_mock,
}
"""Entry of the list -> whether a difference is one that it tells of."""


# --- what they do not show ---------------------------------------------------------------------

PROVED_ELSEWHERE: Final = {
    "v1-scope": "v1_scope: a_bare_subscriber_does_not_see_the_runs_of_other_sessions",
    "parallel-runs": "parallel_sessions: two_sessions_run_at_once",
    "targets": (
        "parallel_sessions: with_two_runs_and_none_in_the_active_session_a_target_must_be_named"
    ),
    "abort-without-run": (
        "v1_scope: an_abort_without_a_run_gives_back_what_waits_in_the_active_session"
    ),
    "additional-commands": (
        "parallel_sessions: a_command_for_an_idle_session_never_reaches_another_sessions_run"
    ),
    "limits": "limits: a_limit_applies_exactly_at_its_bound_and_the_daemon_keeps_working",
    "pages": "history: a_long_history_is_read_in_pages",
    "result-events": "results: a_result_beyond_the_event_limit_is_truncated_and_marked",
    "busy-sessions": (
        "parallel_sessions: commands_that_conflict_with_a_run_are_refused_until_it_ends"
    ),
    "tools-and-modes": "parallel_sessions: values_for_all_survive_a_restart",
    "output": "results: the_output_is_the_answer_to_the_last_steer_of_the_run",
    "message-start": "aborting: an_abort_before_the_first_token_stores_no_answer",
    "waited-runs": "aborting: another_connection_can_steer_and_abort_a_run_that_a_client_waits_for",
    "unknown-leaf": "weaknesses: an_unknown_leaf_is_refused_and_changes_nothing",
    "snapshots": (
        "parallel_sessions: a_branch_during_a_run_has_the_committed_entries_and_nothing_later"
    ),
    "restarts": "weaknesses: the_active_session_and_its_leaf_survive_a_restart",
    "event-ids": "crashes: event_ids_keep_growing_after_a_kill",
    "kept-inputs": "crashes: an_accepted_prompt_survives_a_kill_right_after_its_acknowledgement",
    "queues": "provider_faults: a_failed_run_leaves_its_queue_pending",
    "unknown-tools": "tool_faults: a_call_of_an_unknown_tool_is_an_error_result",
    "model-calls": "tool_faults: a_run_fails_at_the_limit_of_its_model_calls",
    "approvals": "passed_over: a_steer_during_an_approval_skips_the_call_and_moves_the_run",
    "aborted-tools": "aborting: an_abort_during_a_tool_call_kills_all_its_processes",
    "causes": "provider_faults: an_error_in_mid_stream_reports_the_servers_message",
    "long-streams": "weaknesses: a_stream_may_last_for_hours_while_it_sends_text",
    "stale-runs": "stale_runs: a_run_without_activity_ends_as_timeout",
    "overflow": "provider_faults: a_context_overflow_is_compacted_and_the_call_retried",
    "summaries": "weaknesses: summaries_stay_bounded_over_hundreds_of_turns",
    "white-space": "runs: white_space_in_a_stream_is_preserved",
    "empty-answers": "runs: an_empty_model_response_leaves_an_empty_answer",
    "last-line": "connection: a_last_line_without_a_line_feed_is_answered",
    "long-lines": "connection: a_line_too_long_gets_one_error_and_the_connection_stays_usable",
    "slow-readers": "weaknesses: subscribers_that_do_not_read_are_never_dropped_and_lose_nothing",
    "session-ids": "weaknesses: a_session_id_is_never_used_as_a_path",
    "private-sockets": "sockets: both_sockets_are_private_under_any_umask",
    "stops": "stopping: a_stop_does_not_wait_for_idle_clients",
}
"""Entry that is not in the recordings -> file in ``tests/daemon``, and the test that proves it."""

PROVED_HERE: Final = {"command-timeout", "blank-texts", "bash"}
"""Entries that are not in the recordings and that tests below prove."""


def test_a_prompt_that_waits_waits_for_ten_minutes_by_default() -> None:
    assert DEFAULTS["command_timeout_seconds"] == 600


def test_the_tool_bash_is_there_only_if_the_daemon_was_told_to_allow_it() -> None:
    assert DEFAULTS["allow_exec"] is False
    assert "bash" not in {tool.name for tool in builtin_tools(allow_exec=False)}
    assert "bash" in {tool.name for tool in builtin_tools(allow_exec=True)}


async def test_a_blank_text_is_refused_like_a_missing_one(tmp_path: Path) -> None:
    async with memory_daemon(workdir=tmp_path, provider=make_provider("mock")) as daemon:
        client = await daemon.connect()
        for given in ({}, {"text": " \n"}):
            refused = await client.refusal("prompt", **given)
            assert refused == {"code": "invalid_payload", "message": "text is required"}


# --- the list ----------------------------------------------------------------------------------


@functools.cache
def _played(name: str) -> Played:
    with tempfile.TemporaryDirectory() as folder:
        return trio.run(play, RECORDINGS[name], Path(folder))


def _entries_of(found: Difference) -> list[str]:
    return [entry for entry, tells_of in SHOWN.items() if tells_of(found)]


def _listed() -> list[str]:
    """Return the ids of the document's list, in its order."""
    section = DOCUMENT.read_text().partition("## Differences from older daemons of v1\n")[2]
    return re.findall(r"^- \*\*([a-z0-9-]+)\*\*: ", section, re.MULTILINE)


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_difference_from_a_recording_is_told_by_one_entry_of_the_list(name: str) -> None:
    told = [(found, _entries_of(found)) for found in differences(RECORDINGS[name], _played(name))]
    assert [(found, entries) for found, entries in told if len(entries) != 1] == []


def test_every_entry_of_the_list_is_shown_by_a_recording_or_proved_by_a_test() -> None:
    shown = {
        entry
        for name, recording in RECORDINGS.items()
        for found in differences(recording, _played(name))
        for entry in _entries_of(found)
    }
    assert shown == SHOWN.keys()
    for entry, where in PROVED_ELSEWHERE.items():
        file, _, test = where.partition(": ")
        assert f"def test_{test}(" in (ROOT / f"tests/daemon/test_{file}.py").read_text(), entry
    assert sorted(_listed()) == sorted([*SHOWN, *PROVED_ELSEWHERE, *PROVED_HERE])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ping", lambda line: {**line, "payload": {"message": "PONG"}}),
        ("ping", lambda line: {**line, "payload": {}}),
        ("set-active-tools", lambda line: {**line, "type": "error"}),
        ("idle-controls", lambda line: {**line, "ok": True}),
    ],
)
def test_an_answer_that_differs_otherwise_is_told_by_no_entry(
    name: str, change: Callable[[Any], Any]
) -> None:
    played = _played(name)
    changed = replace(played, answers=[*played.answers[:-1], change(played.answers[-1])])
    told = [_entries_of(found) for found in differences(RECORDINGS[name], changed)]
    assert [] in told


def test_an_event_that_is_missing_is_told_by_no_entry() -> None:
    played = _played("prompt-wait-true")
    for number in range(len(played.events)):
        if played.events[number]["type"] in {"message_update", "status"}:
            continue  # One word of several; or one that older daemons did not send.
        without = played.events[:number] + played.events[number + 1 :]
        told = [
            _entries_of(found)
            for found in differences(
                RECORDINGS["prompt-wait-true"], replace(played, events=without)
            )
        ]
        assert [] in told, played.events[number]
