"""Commands in each state of a session: the events, or the refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from nousd.errors import CommandRejected
from nousd.machine.session import decisions, queue
from nousd.machine.session.state import SessionState
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.limits import QUEUED_CHARS_MAX, QUEUED_INPUTS_MAX
from nousd.wire.objects.entries import Attachment, Entry, MessageEntry
from nousd.wire.objects.inputs import PendingCounts
from tests.machine.builders import (
    TS,
    aborting,
    after,
    answer,
    compacted,
    kinds,
    message,
    names,
    prompt_input,
    queued,
    result,
    running,
    session,
    user,
)

Decide = Callable[[SessionState], Any]


def start(state: SessionState, leaf_id: str | None = None) -> decisions.Events:
    return decisions.start_run(state, prompt_input(), runtime="native", model="m", leaf_id=leaf_id)


def resume(state: SessionState, leaf: Entry | None = None) -> decisions.Events:
    return decisions.resume_run(state, "run-2", leaf, runtime="native", model="m")


def accept(state: SessionState, expected: str | None = None) -> events.QueueUpdate:
    return decisions.accept_input(state, queued("new", run_id=None), expected_run_id=expected)


def abort(state: SessionState, expected: str | None = None) -> Any:
    return decisions.abort_run(state, expected_run_id=expected)


def refusal_of(decide: Decide, state: SessionState) -> CommandRejected:
    with pytest.raises(CommandRejected) as refused:
        decide(state)
    return refused.value


# --- every decision in every state -----------------------------------------------------------

IN_PROGRESS = ("run_in_progress", {"run_id": "run-1"})
NO_RUN = ("no_active_run", None)

REFUSED: list[tuple[str, Decide, SessionState, tuple[str, dict[str, Any] | None]]] = [
    ("prompt running", start, running(), IN_PROGRESS),
    ("prompt aborting", start, aborting(), IN_PROGRESS),
    ("prompt on another leaf, running", lambda s: start(s, "x"), running(), IN_PROGRESS),
    ("resume running", resume, running(queue=(queued("a"),)), IN_PROGRESS),
    ("resume aborting", resume, aborting(), IN_PROGRESS),
    ("resume with nothing", resume, session(), ("nothing_to_resume", None)),
    ("input idle", accept, session(), NO_RUN),
    ("input aborting", accept, aborting(), NO_RUN),
    ("input idle, run expected", lambda s: accept(s, "run-1"), session(), NO_RUN),
    (
        "input for another run",
        lambda s: accept(s, "run-0"),
        running(),
        ("run_mismatch", {"run_id": "run-1"}),
    ),
    ("abort idle", abort, session(), NO_RUN),
    ("abort aborting", abort, aborting(), NO_RUN),
    ("abort aborting, run expected", lambda s: abort(s, "run-1"), aborting(), NO_RUN),
    (
        "abort of another run",
        lambda s: abort(s, "run-0"),
        running(),
        ("run_mismatch", {"run_id": "run-1"}),
    ),
    ("require idle running", decisions.require_idle, running(), IN_PROGRESS),
    ("require idle aborting", decisions.require_idle, aborting(), IN_PROGRESS),
    ("promote nothing", lambda s: decisions.promote(s, "x"), running(), ("input_not_found", None)),
    (
        "promote a steer",
        lambda s: decisions.promote(s, "a"),
        running(queue=(queued("a"),)),
        ("input_not_promotable", None),
    ),
    (
        "promote a prompt",
        lambda s: decisions.promote(s, "p1"),
        session(queue=(prompt_input(),)),
        ("input_not_promotable", None),
    ),
]


@pytest.mark.parametrize(
    ("decide", "state", "refused"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_refused_command_has_a_code_and_details(
    decide: Decide, state: SessionState, refused: tuple[str, dict[str, Any] | None]
) -> None:
    error = refusal_of(decide, state)
    assert (error.message, error.details) == refused


def test_a_session_without_a_run_is_idle() -> None:
    decisions.require_idle(session(queue=(queued("a"),)))


def test_a_full_queue_refuses_prompts_and_inputs() -> None:
    full = tuple(queued(f"i{n}", "follow_up") for n in range(QUEUED_INPUTS_MAX))
    for decide, state in ((start, session(queue=full)), (accept, running(queue=full))):
        error = refusal_of(decide, state)
        assert (error.message, error.details) == ("queue_full", {"limit": QUEUED_INPUTS_MAX})
    accept(running(queue=full[1:]))


# --- prompt ----------------------------------------------------------------------------------


def test_a_prompt_is_accepted_and_starts_its_run_in_one_step() -> None:
    decided = start(session())
    assert decided == (
        events.QueueUpdate(
            session_id="s",
            run_id="run-1",
            change="accepted",
            inputs=(prompt_input(),),
            pending_counts=PendingCounts(steer=0, follow_up=0),
            queue_revision=1,
        ),
        events.AgentStart(session_id="s", run_id="run-1", runtime="native", model="m"),
    )


def test_a_prompt_on_another_leaf_moves_the_leaf_first() -> None:
    decided = start(session(leaf_id="here"), "there")
    assert decided[0] == events.SessionUpdated(session_id="s", leaf_id="there")
    assert after(session(leaf_id="here"), decided).leaf_id == "there"


def test_a_prompt_on_the_current_leaf_does_not_move_it() -> None:
    assert kinds(start(session(leaf_id="here"), "here")) == [events.QueueUpdate, events.AgentStart]


def test_a_prompt_joins_the_end_of_the_queue_but_does_not_count_as_pending() -> None:
    left = session(queue=(queued("old", "follow_up"),))
    update = start(left)[0]
    assert isinstance(update, events.QueueUpdate)
    assert update.pending_counts == PendingCounts(steer=0, follow_up=1)
    assert names(after(left, start(left)).queue) == ["old", "p1"]


# --- resume ----------------------------------------------------------------------------------

UNANSWERED: list[tuple[Entry, bool]] = [
    (user("m"), True),
    (result("m.0"), True),
    (answer("m"), False),
    (answer("m", calls=1), True),
    (compacted("c", "m"), False),
    (message("m", "assistant"), True),
    *[
        (message("m", "assistant", stop_reason=reason), reason not in ("stop", "length"))
        for reason in ("stop", "length", "tool_use", "aborted", "error", "interrupted", "timeout")
    ],
]


@pytest.mark.parametrize(
    ("leaf", "unanswered"),
    UNANSWERED,
    ids=[
        f"{leaf.role}-{leaf.stop_reason}" if isinstance(leaf, MessageEntry) else "compaction"
        for leaf, _ in UNANSWERED
    ],
)
def test_a_leaf_is_resumable_unless_it_is_a_finished_answer_or_a_compaction(
    leaf: Entry, unanswered: bool
) -> None:
    assert decisions.is_unanswered(leaf) is unanswered
    if unanswered:
        assert kinds(resume(session(), leaf)) == [events.AgentStart]
    else:
        assert refusal_of(lambda s: resume(s, leaf), session()).message == "nothing_to_resume"


@pytest.mark.parametrize("kind", ["steer", "prompt", "follow_up"])
def test_a_session_with_a_pending_input_resumes_on_an_answered_leaf(kind: str) -> None:
    decided = resume(session(queue=(queued("a", kind),)), answer("m"))
    assert decided == (
        events.AgentStart(session_id="s", run_id="run-2", runtime="native", model="m"),
    )


# --- steer and follow-up ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["steer", "follow_up"])
@pytest.mark.parametrize("expected", [None, "run-1"])
def test_an_input_belongs_to_the_run_that_accepts_it(kind: str, expected: str | None) -> None:
    state = running(queue=(queued("old", "steer", "run-0"),))
    update = decisions.accept_input(state, queued("new", kind, None), expected_run_id=expected)
    assert update.change == "accepted"
    assert update.run_id == "run-1"
    assert update.inputs == (queued("new", kind, "run-1"),)
    counts = {"steer": 1, "follow_up": 0}
    counts[kind] += 1
    assert update.pending_counts == PendingCounts(**counts)
    assert names(after(state, (update,)).queue) == ["old", "new"]


# --- abort -----------------------------------------------------------------------------------


def test_an_abort_with_an_empty_queue_only_aborts() -> None:
    decided, cleared = abort(running(), "run-1")
    assert decided == (events.RunAborting(session_id="s", run_id="run-1"),)
    assert cleared == ()


def test_an_abort_clears_the_queue_in_the_order_of_consumption() -> None:
    state = running(queue=(queued("f", "follow_up"), prompt_input(), queued("s")))
    decided, cleared = abort(state)
    assert names(cleared) == ["s", "p1", "f"]
    assert kinds(decided) == [events.RunAborting, events.QueueUpdate]
    assert decided[1].inputs == cleared
    assert decided[1].pending_counts == PendingCounts(steer=0, follow_up=0)
    assert after(state, decided) == aborting(queue_revision=1)


# --- clear_queue -----------------------------------------------------------------------------

WAITING = (
    queued("f", "follow_up"),
    queued("s"),
    prompt_input("own", "run-1"),
    prompt_input("old", "run-0"),
)


@pytest.mark.parametrize(
    ("state", "kind", "cleared", "kept"),
    [
        (running(queue=WAITING), None, ["s", "old", "f"], ["own"]),
        (session(queue=WAITING), None, ["s", "own", "old", "f"], []),
        (running(queue=WAITING), "steer", ["s"], ["f", "own", "old"]),
        (session(queue=WAITING), "follow_up", ["f"], ["s", "own", "old"]),
        (session(queue=WAITING), "prompt", ["own", "old"], ["f", "s"]),
    ],
)
def test_clear_queue_removes_the_given_kind_but_not_the_prompt_of_the_active_run(
    state: SessionState, kind: str | None, cleared: list[str], kept: list[str]
) -> None:
    decided, taken = decisions.clear_queue(state, kind)
    assert names(taken) == cleared
    (update,) = decided
    assert isinstance(update, events.QueueUpdate)
    assert update.change == "cleared"
    assert update.inputs == taken
    assert update.pending_counts == queue.pending_counts(after(state, decided).queue)
    assert names(after(state, decided).queue) == kept
    assert update.run_id == ("run-1" if state.run else UNSET)


@pytest.mark.parametrize("state", [session(), running(), aborting()])
def test_clearing_an_empty_queue_has_no_events(state: SessionState) -> None:
    assert decisions.clear_queue(state, None) == ((), ())


# --- promote ---------------------------------------------------------------------------------


def test_a_promoted_follow_up_becomes_the_newest_steer_of_the_run() -> None:
    state = running(
        queue=(queued("f1", "follow_up", "run-0"), queued("f2", "follow_up"), queued("s"))
    )
    (update,) = decisions.promote(state, "f1")
    assert update == events.QueueUpdate(
        session_id="s",
        run_id="run-1",
        change="promoted",
        inputs=(queued("f1", "steer", "run-0", promoted_run_id="run-1"),),
        pending_counts=PendingCounts(steer=2, follow_up=1),
        queue_revision=1,
    )
    promoted = after(state, (update,)).queue
    assert names(queue.in_order(promoted)) == ["s", "f1", "f2"]
    assert queue.has_pending_steer(promoted, "run-1")


def test_a_follow_up_promoted_without_a_run_does_not_steer_a_later_run() -> None:
    state = session(queue=(queued("f", "follow_up", "run-0"),))
    (update,) = decisions.promote(state, "f")
    assert isinstance(update, events.QueueUpdate)
    assert update.inputs == (queued("f", "steer", "run-0"),)
    assert update.run_id is UNSET, "nothing of a run follows its end"
    assert not queue.has_pending_steer(after(state, (update,)).queue, "run-1")


# --- beginning a turn ------------------------------------------------------------------------


def begin(state: SessionState, turn: queue.Turn) -> decisions.Events:
    return decisions.begin_turn(
        state, turn, run_id="run-1", turn_id="3", message_id="msg-1", created_at=TS
    )


def test_a_turn_consumes_its_inputs_as_one_message_in_one_step() -> None:
    first, second = queued("a", client_message_id="x"), queued("b")
    state = running(leaf_id="leaf", queue=(first, second, queued("c")))
    decided = begin(state, queue.Turn("steer", (first, second)))
    where: TurnKey = {"session_id": "s", "run_id": "run-1", "turn_id": "3"}
    assert decided == (
        events.TurnStart(**where),
        events.MessageStart(
            **where,
            message_id="msg-1",
            role="user",
            text="text of a\ntext of b",
            turn_kind="steer",
            input_ids=("a", "b"),
        ),
        events.QueueUpdate(
            session_id="s",
            run_id="run-1",
            change="consumed",
            inputs=(first, second),
            pending_counts=PendingCounts(steer=1, follow_up=0),
            queue_revision=1,
        ),
        events.EntryAppended(
            session_id="s",
            run_id="run-1",
            entry=MessageEntry(
                id="msg-1",
                parent_id="leaf",
                role="user",
                text="text of a\ntext of b",
                run_id="run-1",
                turn_kind="steer",
                created_at=TS,
                input_ids=("a", "b"),
            ),
        ),
        events.MessageEnd(
            **where,
            message_id="msg-1",
            text="text of a\ntext of b",
        ),
    )
    assert names(after(state, decided).queue) == ["c"]
    assert after(state, decided).leaf_id == "msg-1"


def test_a_single_input_keeps_its_client_message_id_and_a_root_has_no_parent() -> None:
    item = queued("a", client_message_id="x")
    decided = begin(running(queue=(item,)), queue.Turn("steer", (item,)))
    starts = [event for event in decided if isinstance(event, events.MessageStart)]
    entries = [event.entry for event in decided if isinstance(event, events.EntryAppended)]
    assert starts[0].client_message_id == "x"
    assert isinstance(entries[0], MessageEntry)
    assert entries[0].client_message_id == "x"
    assert entries[0].parent_id is UNSET


def test_a_turn_has_the_files_of_its_inputs_in_order() -> None:
    one, two, three = (
        Attachment(artifact_id=f"sha256:{name}", media_type="text/plain", size_bytes=1)
        for name in "123"
    )
    items = (
        queued("a", attachments=(one, two)),
        queued("b"),
        queued("c", attachments=(three,)),
    )
    decided = begin(running(queue=items), queue.Turn("steer", items))
    starts = [event for event in decided if isinstance(event, events.MessageStart)]
    entries = [event.entry for event in decided if isinstance(event, events.EntryAppended)]
    assert starts[0].attachments == (one, two, three)
    assert isinstance(entries[0], MessageEntry)
    assert entries[0].attachments == (one, two, three)


def test_only_a_long_text_that_is_a_turn_of_its_own_keeps_its_artifact() -> None:
    long = queued("a", text_ref="sha256:1", text_bytes=9000)
    for items, ref in (((long,), "sha256:1"), ((long, queued("b")), UNSET)):
        decided = begin(running(queue=items), queue.Turn("steer", items))
        for event in decided:
            if isinstance(event, events.MessageStart | events.MessageEnd):
                assert event.text_ref == ref
            elif isinstance(event, events.EntryAppended):
                assert isinstance(event.entry, MessageEntry)
                assert event.entry.text_ref == ref


def test_a_text_stored_as_an_artifact_counts_with_its_full_size() -> None:
    left = QUEUED_CHARS_MAX - len("text of new")
    waiting = queued("a", text_ref="sha256:1", text_bytes=left)
    accept(running(queue=(waiting,)))
    larger = msgspec.structs.replace(waiting, text_bytes=left + 1)
    refused = refusal_of(accept, running(queue=(larger,)))
    assert refused.message == "queue_full"


def test_an_abort_reports_many_long_cleared_texts_in_several_events() -> None:
    waiting = tuple(queued(f"f{n}", "follow_up", text_bytes=10**6) for n in range(10))
    waiting += tuple(queued(f"g{n}", "follow_up") for n in range(10))
    decided, cleared = abort(running(queue=waiting))
    updates = [event for event in decided if isinstance(event, events.QueueUpdate)]
    assert [len(update.inputs) for update in updates] == [4, 4, 12]
    assert sum((update.inputs for update in updates), ()) == cleared == waiting
    assert [update.pending_counts.follow_up for update in updates] == [16, 12, 0]


def test_a_resume_turn_has_no_message_of_its_own() -> None:
    assert begin(running(), queue.Turn("resume", ())) == (
        events.TurnStart(session_id="s", run_id="run-1", turn_id="3"),
    )


def test_decisions_do_not_change_the_given_state() -> None:
    state = running(queue=(queued("f", "follow_up"),), leaf_id="leaf")
    before = msgspec.json.encode(state)
    decisions.promote(state, "f")
    abort(state)
    decisions.clear_queue(state, None)
    begin(state, queue.Turn("follow_up", state.queue))
    assert msgspec.json.encode(state) == before


# --- a deletion that stops a run first ---------------------------------------------------------


def test_a_deferred_deletion_aborts_the_run_and_keeps_the_queued_inputs() -> None:
    kept = (queued("s1"), queued("f1", "follow_up"))
    state = running(queue=(*kept, prompt_input("p1")))
    decided = decisions.defer_deletion(state)
    assert decided[0] == events.SessionDeleteDeferred(session_id="s", run_id="run-1")
    assert kinds(decided) == [
        events.SessionDeleteDeferred,
        events.RunAborting,
        events.QueueUpdate,
    ]
    assert after(state, decided).queue == kept


def test_a_deferred_deletion_does_not_abort_an_aborting_run_again() -> None:
    assert kinds(decisions.defer_deletion(aborting())) == [events.SessionDeleteDeferred]
