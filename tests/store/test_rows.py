"""Rows of sessions, entries, inputs, runs and artifacts, on every store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.store.rows import Defaults, InputRow, SessionRow
from nousd.store.session_list import SessionFilter
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.limits import SNIPPET_BYTES_MAX
from nousd.wire.objects.entries import CompactionEntry, Usage, UsageTotals
from nousd.wire.objects.workers import TaskOrigin, WorkerPermissions, WorkerSpec
from nousd.wire.responses.transcripts import TreeNode
from tests.store.helpers import (
    NO_BOUND,
    TS,
    append,
    appended,
    created,
    deleted,
    delta,
    message,
    queue_update,
    queued,
    run_ended,
    run_started,
    updated,
    whole_log,
)

OWN = SessionFilter(children=False)
LATER = "2026-01-02T03:04:06.000Z"


# --- sessions ----------------------------------------------------------------------------------


async def test_an_unknown_session_is_none(store: Store) -> None:
    assert await store.session("s1") is None


async def test_a_created_session_has_the_settings_of_its_creation(store: Store) -> None:
    await append(
        store,
        created(
            "s1",
            name="first",
            leaf_id="e0",
            provider="mock",
            model="mock-1",
        ),
    )
    assert await store.session("s1") == SessionRow(
        session_id="s1",
        created_at=TS,
        updated_at=TS,
        name="first",
        leaf_id="e0",
        provider="mock",
        model="mock-1",
    )


async def test_an_update_changes_only_what_it_names(store: Store) -> None:
    # Earlier versions copied tools into a new session; they do not count.
    await append(store, created(name="old", model="m1", active_tools=("read",)))
    await append(store, updated(active_tools=("ls",)))
    await append(store, updated(name="new", active_tools=()), updated(leaf_id="e7"), ts=LATER)
    row = await store.session("s1")
    assert row is not None
    assert (row.name, row.model, row.active_tools, row.leaf_id) == ("new", "m1", (), "e7")
    assert (row.created_at, row.updated_at) == (TS, LATER)


async def test_a_durable_event_touches_its_session_and_a_delta_does_not(store: Store) -> None:
    status = events.Status(session_id="s1", run_id="r1", message="working")
    await append(store, created())
    await append(store, status, ts=LATER)
    await append(store, delta(), ts="2026-01-02T03:04:07.000Z")
    row = await store.session("s1")
    assert row is not None
    assert row.updated_at == LATER


async def test_sessions_are_paged_most_recently_updated_first(store: Store) -> None:
    await append(store, *(created(f"s{number}") for number in range(5)))
    await append(store, updated("s1", name="x"))
    first = (await store.sessions(limit=3, before=None)).rows
    second = (await store.sessions(limit=3, before="s3")).rows
    assert [row.session_id for row in first] == ["s1", "s4", "s3"]
    assert [row.session_id for row in second] == ["s2", "s0"]
    assert (await store.sessions(limit=3, before="s0")).rows == ()
    assert (await store.sessions(limit=3, before="nobody")).rows == ()


async def test_sessions_are_ordered_by_the_log_and_not_by_the_clock(
    store: Store,
) -> None:
    await append(store, created("s1"), ts=LATER)
    await append(store, created("s2"), ts=TS)
    assert [row.session_id for row in (await store.sessions(limit=9, before=None)).rows] == [
        "s2",
        "s1",
    ]


async def test_updated_settings_become_the_defaults_but_names_and_leaves_do_not(
    store: Store,
) -> None:
    assert await store.defaults() == Defaults()
    await append(store, created("s1", model="m0", steering_mode="all"), created("s2"))
    assert await store.defaults() == Defaults()
    await append(store, updated("s1", name="n", leaf_id="e1"))
    assert await store.defaults() == Defaults()
    await append(store, updated("s1", provider="p", model="m1", active_tools=("read",)))
    await append(store, updated("s2", model="m2", steering_mode="all", follow_up_mode="all"))
    assert await store.defaults() == Defaults(provider="p", model="m2")
    await append(store, updated("", steering_mode="all", active_tools=("ls",)))
    assert await store.defaults() == Defaults(
        provider="p", model="m2", active_tools=("ls",), steering_mode="all"
    )


async def test_a_default_that_is_an_object_is_replaced_and_not_merged(store: Store) -> None:
    await append(store, updated("", granted_in={"/a": ("r1", "r2"), "/b": ("r3",)}))
    await append(store, updated("", granted_in={"/b": ("r4",)}))
    assert (await store.defaults()).granted_in == {"/b": ("r4",)}
    await append(store, updated("", granted_in={}))
    assert await store.defaults() == Defaults()


async def test_a_file_is_trusted_with_its_last_hash_until_trust_is_revoked(store: Store) -> None:
    def trust(path: str, file_hash: str | None) -> events.TrustUpdated:
        return events.TrustUpdated(session_id="", path=path, hash=file_hash)

    await append(store, trust('/a "b".c', "sha256:1"), trust("/$.x", "sha256:2"))
    await append(store, updated("", model="m"))
    assert await store.defaults() == Defaults(
        model="m", trusted={'/a "b".c': "sha256:1", "/$.x": "sha256:2"}
    )
    await append(store, trust("/$.x", "sha256:3"), trust('/a "b".c', None), trust("/none", None))
    assert (await store.defaults()).trusted == {"/$.x": "sha256:3"}
    await append(store, trust("/$.x", None))
    assert await store.defaults() == Defaults(model="m")


async def test_a_session_row_has_the_workspace_attached_last(store: Store) -> None:
    def attached(folder: str, before: str, **more: Any) -> events.SessionAttached:
        return events.SessionAttached(
            session_id="s1", workspace=folder, attached_from=before, origin_workspace="/a", **more
        )

    await append(store, created("s1", workspace="/a"), attached("/b", "/a", reason="why"))
    row = await store.session("s1")
    assert row is not None
    assert (row.workspace, row.attached_from, row.origin_workspace) == ("/b", "/a", "/a")
    assert (row.attach_reason, row.attached_at) == ("why", TS)
    await append(store, attached("/c", "/b"), ts=LATER)
    row = await store.session("s1")
    assert row is not None
    assert (row.workspace, row.attached_from, row.origin_workspace) == ("/c", "/b", "/a")
    assert (row.attach_reason, row.attached_at) == (None, LATER)
    assert await store.defaults() == Defaults()


async def test_sessions_with_a_workspace_override_are_found(store: Store) -> None:
    def granted(session_id: str, expires_at: str) -> events.WorkspaceOverrideGranted:
        return events.WorkspaceOverrideGranted(
            session_id=session_id, ttl_seconds=60, expires_at=expires_at
        )

    def over(session_id: str) -> events.WorkspaceOverrideExpired:
        return events.WorkspaceOverrideExpired(session_id=session_id, reason="expired")

    assert await store.list_overridden_sessions() == ()
    await append(store, *(created(session_id) for session_id in ("s1", "s2", "s3", "s4")))
    await append(store, *(granted(session_id, TS) for session_id in ("s1", "s2", "s3")))
    await append(store, granted("s1", LATER), over("s2"), deleted("s3"), over("s4"))
    assert await store.list_overridden_sessions() == ("s1",)
    for session_id, expected in (("s1", (LATER, 60)), ("s2", (None, None))):
        row = await store.session(session_id)
        assert row is not None
        assert (row.override_expires_at, row.override_seconds) == expected


async def test_the_active_session_is_the_one_activated_last(store: Store) -> None:
    await append(store, created("s1"), created("s2"))
    for session_id in ("s2", "s1"):
        await append(store, events.SessionActivated(session_id=session_id))
        assert (await store.defaults()).active_session_id == session_id


# --- entries -----------------------------------------------------------------------------------


async def test_an_appended_entry_can_be_read_back_and_is_the_leaf(store: Store) -> None:
    entry = message("e1", text="héllo \u2028 \U0001f600", client_message_id="c1")
    await append(store, created(), events.EntryAppended(session_id="s1", entry=entry))
    assert await store.entry("s1", "e1") == entry
    row = await store.session("s1")
    assert row is not None
    assert row.leaf_id == "e1"
    assert await store.entry("s1", "e2") is None
    assert await store.entry("s2", "e1") is None


async def test_a_path_goes_from_the_root_to_the_leaf_without_other_branches(store: Store) -> None:
    await append(store, created(), appended("a"), appended("b", "a"), appended("c", "b"))
    await append(store, appended("x", "a"), appended("y", "x"))
    path = await store.path("s1", "y", limit=10, bytes_max=NO_BOUND)
    assert ([entry.id for entry in path.entries], path.has_more) == (["a", "x", "y"], False)
    path = await store.path("s1", "b", limit=10, bytes_max=NO_BOUND)
    assert ([entry.id for entry in path.entries], path.has_more) == (["a", "b"], False)


async def test_a_path_keeps_the_newest_entries_within_its_limit(store: Store) -> None:
    await append(store, created(), appended("a"), appended("b", "a"), appended("c", "b"))
    path = await store.path("s1", "c", limit=2, bytes_max=NO_BOUND)
    assert ([entry.id for entry in path.entries], path.has_more) == (["b", "c"], True)
    path = await store.path("s1", "c", limit=3, bytes_max=NO_BOUND)
    assert ([entry.id for entry in path.entries], path.has_more) == (["a", "b", "c"], False)


async def test_a_path_keeps_the_newest_entries_within_its_byte_limit_and_always_the_leaf(
    store: Store,
) -> None:
    big = "x" * 500
    await append(
        store, created(), appended("a", text=big), appended("b", "a", text=big), appended("c", "b")
    )
    path = await store.path("s1", "c", limit=9, bytes_max=1000)
    assert ([entry.id for entry in path.entries], path.has_more) == (["b", "c"], True)
    path = await store.path("s1", "c", limit=9, bytes_max=1)
    assert ([entry.id for entry in path.entries], path.has_more) == (["c"], True)


async def test_a_path_is_found_between_much_larger_branches(store: Store) -> None:
    big = "x" * 100_000
    await append(store, created(), appended("a"), appended("b", "a"))
    for number in range(3):
        await append(store, appended(f"big-{number}", "b", text=big))
    await append(store, appended("c", "b"), appended("big-3", "a", text=big), appended("d", "c"))
    path = await store.path("s1", "d", limit=9, bytes_max=NO_BOUND)
    assert ([entry.id for entry in path.entries], path.has_more) == (["a", "b", "c", "d"], False)
    path = await store.path("s1", "d", limit=3, bytes_max=NO_BOUND)
    assert ([entry.id for entry in path.entries], path.has_more) == (["b", "c", "d"], True)
    path = await store.path("s1", "big-0", limit=9, bytes_max=NO_BOUND)
    assert [entry.id for entry in path.entries] == ["a", "b", "big-0"]


async def test_the_path_of_an_unknown_leaf_is_empty(store: Store) -> None:
    path = await store.path("s1", "nothing", limit=9, bytes_max=NO_BOUND)
    assert (path.entries, path.has_more) == ((), False)


async def test_a_tree_is_paged_in_append_order(store: Store) -> None:
    await append(store, created(), appended("z"), appended("b", "z", text="two"))
    await append(store, appended("a", "z", text="three"))
    nodes = await store.tree("s1", after=None, limit=2)
    assert nodes == (
        TreeNode(id="z", parent_id="", role="user", snippet="hello"),
        TreeNode(id="b", parent_id="z", role="user", snippet="two"),
    )
    rest = await store.tree("s1", after="b", limit=2)
    assert [node.id for node in rest] == ["a"]
    assert await store.tree("s1", after="a", limit=2) == ()
    assert await store.tree("s1", after="nothing", limit=2) == ()


async def test_a_snippet_is_cut_to_eighty_bytes_of_whole_characters(store: Store) -> None:
    fits = "é" * (SNIPPET_BYTES_MAX // 2)
    await append(store, created(), appended("a", text=fits), appended("b", text="x" + fits))
    fit, cut = await store.tree("s1", after=None, limit=9)
    assert fit.snippet == fits
    assert cut.snippet == "x" + "é" * 39 + "..."


async def test_a_compaction_is_a_node_that_shows_its_summary(store: Store) -> None:
    entry = CompactionEntry(
        id="k",
        parent_id="a",
        summary="they said hello",
        first_kept_entry_id="a",
        tokens_before=5,
        trigger="manual",
        created_at=TS,
    )
    await append(store, created(), appended("a"))
    await append(store, events.EntryAppended(session_id="s1", entry=entry))
    (_, node) = await store.tree("s1", after=None, limit=9)
    assert (node.role, node.snippet, node.parent_id) == ("compaction", "they said hello", "a")
    assert await store.entry("s1", "k") == entry


# --- branches ----------------------------------------------------------------------------------


async def test_a_branch_has_its_parents_entries_and_later_ones_are_separate(
    store: Store,
) -> None:
    await append(store, created("p"), appended("a", session_id="p"))
    await append(store, appended("b", "a", session_id="p"))
    await append(store, created("c", parent_id="p", leaf_id="b", name="copy"))
    await append(store, appended("p2", "b", session_id="p"), appended("c2", "b", session_id="c"))
    assert [node.id for node in await store.tree("p", after=None, limit=9)] == ["a", "b", "p2"]
    assert [node.id for node in await store.tree("c", after=None, limit=9)] == ["a", "b", "c2"]
    path = await store.path("c", "c2", limit=9, bytes_max=NO_BOUND)
    assert [entry.id for entry in path.entries] == ["a", "b", "c2"]
    row = await store.session("c")
    assert row is not None
    assert (row.parent_id, row.leaf_id, row.name) == ("p", "c2", "copy")


async def test_a_branch_keeps_its_entries_when_its_parent_is_deleted(store: Store) -> None:
    await append(store, created("p"), appended("a", session_id="p", text="shared"))
    await append(store, created("c", parent_id="p", leaf_id="a"))
    await append(store, created("d", parent_id="c", leaf_id="a"))
    await append(store, appended("own", "a", session_id="p"), deleted("p"), deleted("c"))
    assert await store.entry("p", "a") is None
    assert await store.entry("c", "a") is None
    assert await store.entry("d", "a") == message("a", text="shared")
    path = await store.path("d", "a", limit=9, bytes_max=NO_BOUND)
    assert [entry.id for entry in path.entries] == ["a"]


async def test_a_branch_of_an_unknown_session_is_empty(store: Store) -> None:
    await append(store, created("c", parent_id="nobody"))
    assert await store.tree("c", after=None, limit=9) == ()


# --- deletion ----------------------------------------------------------------------------------


async def test_a_deleted_session_leaves_only_its_tombstone(store: Store) -> None:
    await append(store, created("s1", name="secret"), created("s2"))
    await append(store, events.SessionActivated(session_id="s1"))
    await append(store, appended("e1"), run_started(), delta(), run_ended())
    await append(store, queue_update("accepted", queued("i1", client_message_id="c1")))
    (tombstone,) = await append(store, deleted("s1"))
    assert await store.session("s1") is None
    assert [row.session_id for row in (await store.sessions(limit=9, before=None)).rows] == ["s2"]
    assert await store.entry("s1", "e1") is None
    assert await store.tree("s1", after=None, limit=9) == ()
    assert await store.pending_inputs("s1") == ()
    assert await store.input_by_client_id("s1", "c1") is None
    assert await store.run("r1") is None
    assert await store.runs(None, limit=9, before=None) == ()
    assert (await store.defaults()).active_session_id is None
    assert [event.session_id for event in await whole_log(store)] == ["s2", "s1"]
    assert (await whole_log(store))[-1] == tombstone
    assert store.head == tombstone.seq


async def test_a_session_can_be_created_and_deleted_in_one_batch(store: Store) -> None:
    await append(store, created("s1"), appended("e1"), deleted("s1"))
    assert [event.type for event in await whole_log(store)] == ["session_deleted"]
    assert await store.session("s1") is None


async def test_a_deleted_session_cannot_be_created_again(store: Store) -> None:
    await append(store, created("s1"), deleted("s1"))
    await append(store, created("s1", name="again"), updated("s1", name="again"))
    assert await store.session("s1") is None


async def test_a_page_of_sessions_begins_after_a_session_deleted_meanwhile(store: Store) -> None:
    await append(store, created("s1"), created("s2"), created("s3"))
    await append(store, deleted("s2"))
    assert [row.session_id for row in (await store.sessions(limit=9, before="s2")).rows] == ["s1"]


# --- inputs ------------------------------------------------------------------------------------


async def test_pending_inputs_come_in_the_order_of_acceptance(store: Store) -> None:
    first, second, third = queued("z"), queued("a", "steer"), queued("m", "prompt")
    await append(store, created(), queue_update("accepted", first, second))
    await append(store, queue_update("accepted", third))
    assert await store.pending_inputs("s1") == (first, second, third)
    assert await store.pending_inputs("s2") == ()


async def test_consumed_and_cleared_inputs_are_not_pending(store: Store) -> None:
    inputs = [queued(name, client_message_id=name) for name in ("a", "b", "c")]
    await append(store, created(), queue_update("accepted", *inputs))
    await append(store, queue_update("consumed", inputs[0]), queue_update("cleared", inputs[2]))
    assert await store.pending_inputs("s1") == (inputs[1],)
    states = {}
    for name in ("a", "b", "c"):
        row = await store.input_by_client_id("s1", name)
        assert row is not None
        states[row.input.input_id] = row.state
    assert states == {"a": "consumed", "b": "pending", "c": "cleared"}


async def test_a_promoted_input_is_pending_after_the_others(store: Store) -> None:
    await append(store, created(), queue_update("accepted", queued("a"), queued("b")))
    promoted = queued("a", "steer", run_id="r1")
    await append(store, queue_update("promoted", promoted))
    assert await store.pending_inputs("s1") == (queued("b"), promoted)


async def test_an_edited_input_keeps_its_place(store: Store) -> None:
    inputs = [queued(name) for name in ("a", "b", "c")]
    await append(store, created(), queue_update("accepted", *inputs))
    edited = queued("b", text="new")
    await append(store, queue_update("edited", edited), queue_update("consumed", inputs[2]))
    await append(store, queue_update("edited", queued("c", text="too late")))
    assert await store.pending_inputs("s1") == (inputs[0], edited)
    assert await store.input("s1", "c") == InputRow(
        input=inputs[2], session_id="s1", state="consumed"
    )
    assert await store.input("s1", "x") is None
    assert await store.input("s2", "b") is None


async def test_a_moved_input_keeps_its_new_place(store: Store) -> None:
    inputs = {name: queued(name) for name in "abcde"}

    async def order() -> str:
        return "".join(waiting.input_id for waiting in await store.pending_inputs("s1"))

    async def move(name: str, **where: str) -> None:
        await append(store, queue_update("moved", inputs[name], **where))

    await append(store, created(), *[queue_update("accepted", each) for each in inputs.values()])
    await append(store, queue_update("consumed", inputs["c"]))
    await move("e", before_input_id="b")
    assert await order() == "aebd"
    await move("a", before_input_id="d")
    assert await order() == "ebad"
    await move("b")
    assert await order() == "eadb"
    await append(store, queue_update("accepted", queued("f")))
    assert await order() == "eadbf"
    for name, before in (("a", "a"), ("a", "c"), ("c", "a"), ("a", "x"), ("x", "a")):
        await append(store, queue_update("moved", queued(name), before_input_id=before))
    assert await order() == "eadbf"


async def test_a_session_has_the_last_revision_of_its_queue(store: Store) -> None:
    accepted = queue_update("accepted", queued("a"), queue_revision=3)
    await append(store, created(), accepted, updated(name="n"))
    row = await store.session("s1")
    assert row is not None
    assert row.queue_revision == 3
    await append(store, queue_update("consumed", queued("a")))
    assert await store.session("s1") is not None
    assert (await store.sessions(limit=1, before=None)).rows[0].queue_revision == 3


async def test_a_client_message_id_finds_its_input_only_in_its_session(store: Store) -> None:
    mine = queued("i1", text="mine", client_message_id="c1", accepted_at=TS)
    await append(store, created("s1"), created("s2"), queue_update("accepted", mine))
    row = await store.input_by_client_id("s1", "c1")
    assert row is not None
    assert (row.input, row.session_id, row.state) == (mine, "s1", "pending")
    assert await store.input_by_client_id("s2", "c1") is None
    assert await store.input_by_client_id("s1", "c2") is None


# --- runs --------------------------------------------------------------------------------------


async def test_a_run_is_open_until_its_end(store: Store) -> None:
    await append(store, run_started())
    run = await store.run("r1")
    assert run is not None
    assert (run.status, run.started_at, run.ended_at) == ("running", TS, UNSET)
    assert (run.runtime, run.model, run.turns) == ("native", "mock-1", 0)
    assert await store.open_runs() == (run,)
    await append(store, run_ended(status="error", error="no answer"), ts=LATER)
    run = await store.run("r1")
    assert run is not None
    assert (run.status, run.ended_at, run.error) == ("error", LATER, "no answer")
    assert await store.open_runs() == ()


async def test_open_runs_come_oldest_first(store: Store) -> None:
    await append(store, *(run_started(run_id, run_id) for run_id in ("z", "a", "m")))
    await append(store, run_ended("a", "a"))
    assert [run.run_id for run in await store.open_runs()] == ["z", "m"]


async def test_turns_are_counted_and_usage_is_summed(store: Store) -> None:
    turn: TurnKey = {"session_id": "s1", "run_id": "r1", "turn_id": "1"}
    usage = Usage(input=10, output=2, total=12, cache_read=3)
    report = events.UsageReported(**turn, usage=usage, model="mock-1")
    await append(store, run_started())
    run = await store.run("r1")
    assert run is not None
    assert run.usage is UNSET
    await append(store, events.TurnStart(**turn), report, report, events.TurnStart(**turn))
    run = await store.run("r1")
    assert run is not None
    assert run.turns == 2
    assert run.usage == UsageTotals(
        calls=2, input=20, output=4, total=24, duration_ms=0, cache_read=6, unpriced_calls=2
    )


async def test_the_usage_of_a_session_includes_calls_outside_of_runs(
    store: Store,
) -> None:
    call = events.UsageReported(
        session_id="s1",
        model="mock-1",
        usage=Usage(input=10, output=2, total=12),
        duration_ms=30,
        cost_usd=0.1,
    )
    await append(store, created("s1"), run_started())
    session = await store.session("s1")
    assert session is not None
    assert session.usage is None
    of_run = msgspec.structs.replace(call, run_id="r1", turn_id="1")
    unknown = events.UsageReported(
        session_id="s1", model="mock-1", purpose="summary", duration_ms=5
    )
    await append(store, of_run, call, unknown)
    session, run = await store.session("s1"), await store.run("r1")
    assert session is not None
    assert run is not None
    assert run.usage == UsageTotals(
        calls=1, input=10, output=2, total=12, duration_ms=30, cost_usd=0.1
    )
    assert session.usage == UsageTotals(
        calls=3,
        input=20,
        output=4,
        total=24,
        duration_ms=65,
        cost_usd=0.2,
        uncounted_calls=1,
        unpriced_calls=1,
    )
    assert (await store.sessions(limit=1, before=None)).rows[0] == session


async def test_the_usage_of_a_branch_does_not_include_its_parent(store: Store) -> None:
    call = events.UsageReported(session_id="s1", model="m", usage=Usage(input=1, output=1, total=2))
    await append(store, created("s1"), call, created("b1", parent_id="s1"))
    await append(store, msgspec.structs.replace(call, session_id="b1"))
    branch = await store.session("b1")
    assert branch is not None
    assert branch.usage == UsageTotals(
        calls=1, input=1, output=1, total=2, duration_ms=0, unpriced_calls=1
    )


async def test_runs_are_paged_newest_first_for_all_or_one_session(store: Store) -> None:
    for number in range(6):
        await append(store, run_started(f"r{number}", f"s{number % 2}"))

    async def page(session_id: str | None, before: str | None) -> list[str]:
        runs = await store.runs(session_id, limit=2, before=before)
        return [run.run_id for run in runs]

    assert await page(None, None) == ["r5", "r4"]
    assert await page(None, "r4") == ["r3", "r2"]
    assert await page("s1", None) == ["r5", "r3"]
    assert await page("s1", "r3") == ["r1"]
    assert await page("s1", "r1") == []
    assert await page(None, "nothing") == []


# --- artifacts ---------------------------------------------------------------------------------

ARTIFACT = Artifact("sha256:00", "text/plain", b"\0\xff output")


def tool_ended(session_id: str, artifact_id: str) -> events.ToolExecutionEnd:
    return events.ToolExecutionEnd(
        session_id=session_id,
        run_id="r1",
        turn_id="1",
        tool_call_id="t1",
        tool_name="bash",
        result="out",
        is_error=False,
        executed=True,
        artifact_id=artifact_id,
    )


async def test_an_artifact_is_committed_with_its_batch_and_may_be_repeated(store: Store) -> None:
    assert await store.artifact(ARTIFACT.id) is None
    await append(store, created(), artifacts=[ARTIFACT])
    await append(store, artifacts=[ARTIFACT])
    assert await store.artifact(ARTIFACT.id) == ARTIFACT


@pytest.mark.parametrize("by", ["event", "entry"])
async def test_an_artifact_is_deleted_with_the_last_session_that_references_it(
    store: Store, by: str
) -> None:
    def refer(session_id: str) -> events.Event:
        if by == "event":
            return tool_ended(session_id, ARTIFACT.id)
        return appended("e1", session_id=session_id, artifact_id=ARTIFACT.id)

    await append(store, created("s1"), refer("s1"), artifacts=[ARTIFACT])
    await append(store, created("branch", parent_id="s1", leaf_id="e1"))
    await append(store, created("s2"), refer("s2"))
    for session_id in ("s1", "s2"):
        await append(store, deleted(session_id))
        assert await store.artifact(ARTIFACT.id) == ARTIFACT
    await append(store, deleted("branch"))
    assert await store.artifact(ARTIFACT.id) is None


# --- tasks -------------------------------------------------------------------------------------


def _of_task(session_id: str, parent: str) -> events.SessionCreated:
    origin = TaskOrigin(
        session_id=parent,
        run_id="r1",
        tool_call_id="m.0",
        root_session_id="s1",
        root_run_id="r1",
        depth=1,
    )
    worker = WorkerSpec(name="w", tools=("read",), permissions=WorkerPermissions(deny=("bash",)))
    return created(session_id, origin=origin, worker=worker)


async def test_task_sessions_keep_their_origin_and_can_be_excluded_from_lists(store: Store) -> None:
    await append(store, created("s1"), _of_task("t1", "s1"), created("s2"), _of_task("t2", "s1"))
    await append(store, _of_task("t3", "t1"), updated("t1", name="x"))
    row = await store.session("t1")
    assert row is not None
    assert (row.name, row.origin, row.worker) == (
        "x",
        _of_task("t1", "s1").origin,
        _of_task("t1", "s1").worker,
    )
    own = (await store.sessions(OWN, limit=9, before=None)).rows
    assert [each.session_id for each in own] == ["s2", "s1"]
    assert [each.session_id for each in (await store.sessions(OWN, limit=1, before="s2")).rows] == [
        "s1"
    ]
    assert len((await store.sessions(limit=9, before=None)).rows) == 5
    of_s1 = await store.sessions(SessionFilter(parent_id="s1"), limit=9, before=None)
    assert ([each.session_id for each in of_s1.rows], of_s1.count) == (["t1", "t2"], 2)
    own_of_s1 = SessionFilter(parent_id="s1", children=False)
    assert (await store.sessions(own_of_s1, limit=9, before=None)).count == 0
    assert await store.children("s1") == ("t1", "t2")
    assert await store.children("t1") == ("t3",)
    assert await store.children("nobody") == ()
    await append(store, deleted("t1"))
    assert await store.children("s1") == ("t2",)
