"""The projection fold: which events change rows, and how texts are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.projection.row_changes import (
    CopyEntries,
    MoveLeaf,
    PutSession,
    SetDefaults,
    TouchSession,
    UpdateSession,
)
from nousd.machine.projection.row_projection import row_changes, snippet
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events.base import TurnKey
from nousd.wire.limits import SNIPPET_BYTES_MAX

TURN: TurnKey = {"session_id": "s1", "run_id": "r1", "turn_id": "1"}

DELTAS: list[events.Event] = [
    events.MessageUpdate(**TURN, message_id="m1", delta="x"),
    events.ReasoningUpdate(**TURN, message_id="m1", delta="x"),
    events.ToolExecutionUpdate(**TURN, tool_call_id="t1", tool_name="bash", delta="x"),
    events.ToolCallOutput(
        session_id="s1", tool_call_id="t1", attempt=1, tool_name="bash", delta="x"
    ),
]


@pytest.mark.parametrize("event", DELTAS, ids=lambda event: type(event).__name__)
def test_a_delta_changes_no_row(event: events.Event) -> None:
    assert row_changes(event, 7, "now") == ()


def test_the_tests_cover_every_delta_event() -> None:
    assert {events.EVENT_TYPES[type(event)] for event in DELTAS} == events.DELTA_EVENTS


QUIET: list[events.Event] = [
    events.TurnEnd(**TURN),
    events.Status(session_id="s1", run_id="r1", message="working"),
    events.RunAborting(session_id="s1", run_id="r1"),
    events.ToolCallPolicyEvaluated(
        **TURN,
        tool_call_id="t1",
        attempt=1,
        tool_name="bash",
        source="rules",
        decision="abstain",
        reason="no rule applies",
    ),
]


@pytest.mark.parametrize("event", QUIET, ids=lambda event: type(event).__name__)
def test_a_durable_event_without_rows_of_its_own_touches_its_session(event: events.Event) -> None:
    assert row_changes(event, 7, "now") == (TouchSession("s1", 7, "now"),)


@pytest.mark.parametrize("leaf_id", ["e1", None])
def test_a_branch_is_stored_before_its_parents_entries_are_copied_if_it_has_a_leaf(
    leaf_id: str | None,
) -> None:
    event = events.SessionCreated(
        session_id="c",
        created_at="then",
        contract_version="1",
        parent_id="p",
        leaf_id=or_unset(leaf_id),
        model="m",
    )
    put = PutSession(
        session_id="c",
        created_at="then",
        parent_id="p",
        leaf_id=leaf_id,
        settings={"model": "m"},
        seq=7,
        ts="now",
    )
    copied = () if leaf_id is None else (CopyEntries("c", "p"),)
    assert row_changes(event, 7, "now") == (put, *copied)


UPDATES: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"name": "n"}, (UpdateSession("s1", {"name": "n"}),)),
    (
        {"leaf_id": "e1"},
        (UpdateSession("s1", {}), MoveLeaf("s1", "e1")),
    ),
    (
        {"model": "m", "name": "n"},
        (UpdateSession("s1", {"model": "m", "name": "n"}), SetDefaults({"model": "m"})),
    ),
]


@pytest.mark.parametrize(("fields", "changes"), UPDATES)
def test_updated_settings_except_name_and_leaf_become_defaults_of_new_sessions(
    fields: dict[str, Any], changes: tuple[Any, ...]
) -> None:
    event = events.SessionUpdated(session_id="s1", **fields)
    assert row_changes(event, 7, "now") == (*changes, TouchSession("s1", 7, "now"))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_a_snippet_is_the_text_or_a_bounded_prefix_of_it(text: str) -> None:
    shown = snippet(text)
    if len(text.encode()) <= SNIPPET_BYTES_MAX:
        assert shown == text
        return
    beginning = shown.removesuffix("...")
    assert text.startswith(beginning)
    assert SNIPPET_BYTES_MAX - 4 < len(beginning.encode()) <= SNIPPET_BYTES_MAX
