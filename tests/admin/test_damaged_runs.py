"""A log that lost or changed a row gets sentences from every command, never a traceback."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import pytest
import trio
from trio.testing import MockClock

from nousd.admin.bundle.bundle import BundleRequest, Limits, write_bundle
from nousd.admin.check.check import check
from nousd.admin.doctor import paths as examine_places
from nousd.admin.reading.log_files import open_log
from nousd.admin.salvage.salvage import salvage
from nousd.config.resolve import resolve
from nousd.errors import NotReplayable, NousdError, StoreError
from nousd.providers.interface import ReasoningDelta, TextDelta, ToolCallPiece
from nousd.replay.fixture import record
from nousd.replay.play import Tuning
from nousd.replay.recorded import read_run
from nousd.replay.replay import replay_run
from nousd.replay.sqlite_log import open_run_log
from nousd.store.sqlite import store as sqlite
from nousd.wire.events import DELTA_EVENTS
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, gives, says, streams
from tests.harness.daemon import memory_daemon

LONG: Final = "long " * 3000


async def write_runs(path: Path, workdir: Path) -> None:
    """Write a run with everything in it, and one that goes on from it."""
    (workdir / "a.txt").write_text("alpha\n" * 4000)
    model, tool = ScriptedProvider(), ScriptedTool()
    write = f'{{"path":"b.txt","content":"{LONG}"}}'
    async with (
        sqlite.open_store(path) as store,
        memory_daemon(workdir=workdir, provider=model, store=store, tools=[tool.tool]) as daemon,
    ):
        client, events = await daemon.connect(), await daemon.watch(types="all")
        model.answer(
            streams(
                ReasoningDelta("hm"),
                TextDelta("Looking"),
                ToolCallPiece("o1", "read", '{"path":"a.txt"}'),
                ToolCallPiece("o2", "nosuch", "{}"),
                ToolCallPiece("o3", "read", '{"path":1}'),
                ToolCallPiece("o4", "work", "{}"),
                ToolCallPiece("o5", "write", write),
            )
        )
        await client.request("prompt", text=f"go {LONG}", wait=False)
        await tool.calls.wait_waiting()
        await client.request("steer", text="another way")
        await client.request("follow_up", text="later")
        tool.finish(gives("x" * 20_000))
        model.answer(says("done"), says("and that"))
        await events.run()
        model.answer(says("again"))
        await client.request("prompt", text="again", wait=False)
        await events.run()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "work").mkdir()
    trio.run(write_runs, folder / "nousd.db", folder / "work")
    with closing(apsw.Connection(str(folder / "nousd.db"))) as connection:
        connection.pragma("journal_mode", "DELETE")
    return folder / "nousd.db"


class Damage(NamedTuple):
    """One statement, and a name for it."""

    name: str
    statement: str
    key: tuple[Any, ...]


_CHANGES: Final = {
    "gone": "DELETE FROM events WHERE seq = ?",
    "cut": "UPDATE events SET line = substr(line, 1, length(line) / 2) WHERE seq = ?",
    "emptied": "json_set(line, '$.payload', json_object('session_id', session_id))",
    "another run": "json_set(line, '$.payload.run_id', 'run-x')",
    "other ids": "json_set(line, '$.payload.tool_call_id', 'x', '$.payload.message_id', 'y')",
    "without parts": "json_remove(line, '$.payload.args', '$.payload.entry.tool_calls', "
    "'$.payload.inputs[0]', '$.payload.entry.text')",
}
"""What happens to an event; a text without a verb is its new line."""


def damages_of_events(connection: apsw.Connection, name: str) -> Iterator[Damage]:
    """Yield the damage for the first and the last event of each type."""
    change = _CHANGES[name]
    if change.startswith("json"):
        change = f"UPDATE events SET line = CAST({change} || char(10) AS BLOB) WHERE seq = ?"
    by_type: dict[str, list[int]] = {}
    for seq, type_ in connection.execute("SELECT seq, type FROM events ORDER BY seq"):
        by_type.setdefault(type_, []).append(seq)
    for type_, found in by_type.items():
        for seq in sorted({found[0], found[-1]}):
            yield Damage(f"{type_} {seq} {name}", change, (seq,))


def damages_of_rows(connection: apsw.Connection) -> Iterator[Damage]:
    """Yield the loss of three rows of each other table."""
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'events'"
    for (table,) in connection.execute(tables).fetchall():
        keys = "SELECT name FROM pragma_table_info(?) WHERE pk"
        names = [name for (name,) in connection.execute(keys, (table,))]
        where = " AND ".join(f"{name} = ?" for name in names)
        rows = connection.execute(f"SELECT {', '.join(names)} FROM {table}").fetchall()
        for key in rows[:3]:
            yield Damage(f"{table} {key}", f"DELETE FROM {table} WHERE {where}", key)


def all_damages(whole: Path, name: str) -> list[Damage]:
    with closing(apsw.Connection(str(whole))) as connection:
        if name == "rows":
            return list(damages_of_rows(connection))
        return list(damages_of_events(connection, name))


def damaged_copy(whole: Path, damage: Damage, folder: Path) -> Path:
    """Write a state folder with the damaged log; return the log."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    path = folder / "nousd.db"
    shutil.copy(whole, path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(damage.statement, damage.key)
    return path


def runs_of(path: Path) -> list[str]:
    with closing(apsw.Connection(str(path))) as connection:
        return [run_id for (run_id,) in connection.execute("SELECT run_id FROM runs ORDER BY seq")]


KINDS: Final = [*_CHANGES, "rows"]

PARTS: Final = 8
"""Cases for the damages of one kind where each damage takes long."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_lost_or_changed_a_row_is_replayed_or_refused_with_a_sentence(
    kind: str, whole: Path, tmp_path: Path
) -> None:
    refused = [
        (damage, refusal)
        for damage in all_damages(whole, kind)
        for refusal in refusals(damaged_copy(whole, damage, tmp_path / "state"), whole)
    ]
    # Some can be replayed: another message id makes another run of it.
    assert refused
    for damage, refusal in refused:
        assert any(words in refusal for words in SENTENCES), (damage, refusal)


SENTENCES: Final = (
    "; nousd check looks through the log",
    "the log has no run ",
    " has no end: it is going on, or the next start of the daemon closes it",
    "the log cannot be read: ",
)


def refusals(path: Path, whole: Path) -> Iterator[str]:
    """Replay the runs of a damaged log; yield the sentences that refuse it."""
    for run_id in runs_of(whole):
        try:
            with open_log(path) as connection, open_run_log(connection) as log:
                run = read_run(log, run_id)
            # A replay that stands still is given up after a time; this clock has it at once.
            report = trio.run(replay_run, run, Tuning(), clock=MockClock(autojump_threshold=0))
        except (NotReplayable, StoreError) as refusal:
            yield str(refusal)
        else:
            assert report.lines


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_the_other_commands_take_a_damaged_run_without_a_traceback(
    kind: str, part: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nousd.admin.doctor.doctor.EXAMINATIONS", {"both": (examine_places.state_folder,)}
    )
    [run_id, *_] = runs_of(whole)
    for damage in all_damages(whole, kind)[part::PARTS]:
        path = damaged_copy(whole, damage, tmp_path / "state")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        check(path)
        with suppress(NousdError):
            salvage(path, tmp_path / "out")
        with suppress(NousdError):
            bundled(path)
        with suppress(NousdError):
            recorded(path, run_id, tmp_path)


def bundled(path: Path) -> None:
    flags = {"state_dir": str(path.parent), "workdir": str(path.parent.parent)}
    wanted = BundleRequest(
        resolved=resolve(flags, {}, None),
        session_id=None,
        flags=flags,
        environ={},
        config=None,
        limits=Limits(),
    )
    write_bundle(wanted, io.BytesIO(), "out")


def recorded(path: Path, run_id: str, folder: Path) -> None:
    with open_log(path) as connection:
        record(
            connection,
            run_id,
            folder,
            folder / "fixture",
            places={},
            dialects={},
            tuning=Tuning(),
        )


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["gone", *list(_CHANGES)[2:]])
def test_check_finds_any_change_or_loss_of_a_durable_event(
    kind: str, whole: Path, tmp_path: Path
) -> None:
    assert check(whole).errors == 0
    with closing(apsw.Connection(str(whole))) as connection:
        [(last,)] = connection.execute("SELECT max(seq) FROM events")
    for damage in all_damages(whole, kind):
        is_delta = damage.name.split()[0] in DELTA_EVENTS
        if is_delta or (kind == "gone" and damage.key == (last,)):
            continue  # deltas have no checksum, and nothing comes behind the last
        before = lines_of(whole, damage.key)
        path = damaged_copy(whole, damage, tmp_path / "state")
        if lines_of(path, damage.key) == before:
            continue  # it had none of these parts
        findings = [str(finding) for finding in check(path).findings]
        told = "comes behind an event" if kind == "gone" else "is not the line that was written"
        assert any(told in finding for finding in findings), (damage.name, findings)


def lines_of(path: Path, key: tuple[Any, ...]) -> list[Any]:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute("SELECT line FROM events WHERE seq = ?", key).fetchall()
