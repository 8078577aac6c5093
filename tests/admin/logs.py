"""Real logs for tests, with everything a log can contain, in a few pages."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import apsw

from nousd.store.artifacts import Artifact
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.entries import MessageEntry
from tests.store.helpers import TS, append, created, deleted, queue_update, queued, updated

STORES = Path(__file__).parents[2] / "fixtures" / "stores"
LONG = "a long answer " * 1000


def artifact(data: bytes) -> Artifact:
    return Artifact(f"sha256:{hashlib.sha256(data).hexdigest()}", "text/plain", data)


def a_run(
    run_id: str, session_id: str = "s1", *, text: str = "hello", ends: bool = True
) -> list[events.Event]:
    """Return the events of a run with one answer; without its end unless ``ends``."""
    where: TurnKey = {"session_id": session_id, "run_id": run_id, "turn_id": "1"}
    begun: list[events.Event] = [
        events.AgentStart(session_id=session_id, run_id=run_id, runtime="native", model="mock-1"),
        events.TurnStart(**where),
        events.MessageStart(**where, message_id=f"{run_id}.a", role="assistant"),
        *(
            events.MessageUpdate(**where, message_id=f"{run_id}.a", delta=f"piece {n} of it ")
            for n in range(20)
        ),
    ]
    if not ends:
        return begun
    entry = MessageEntry(
        id=f"{run_id}.a",
        role="assistant",
        text=text,
        run_id=run_id,
        turn_kind="prompt",
        created_at=TS,
    )
    return [
        *begun,
        events.MessageEnd(**where, message_id=f"{run_id}.a", text=text),
        events.EntryAppended(session_id=session_id, run_id=run_id, entry=entry),
        events.TurnEnd(**where),
        events.AgentEnd(session_id=session_id, run_id=run_id, status="completed"),
    ]


async def write_log(path: Path, *, runs: int = 12) -> None:
    """Write sessions, a branch of a deleted one, an artifact, inputs, long lines and an open run."""
    kept = artifact(b"the whole of a long result " * 300)
    async with sqlite.open_store(path) as store:
        await append(store, created("s1", name="first", model="m"), created("gone"))
        await append(store, *a_run("g1", "gone", text="shared"))
        await append(store, created("branch", parent_id="gone", leaf_id="g1.a"))
        for number in range(runs):
            text = LONG if number % 4 == 1 else "hello"
            await append(store, *a_run(f"r{number}", text=text))
        result = MessageEntry(
            id="result",
            parent_id="g1.a",
            role="tool",
            text="cut",
            run_id="b1",
            turn_kind="prompt",
            created_at=TS,
            artifact_id=kept.id,
        )
        await append(
            store,
            events.EntryAppended(session_id="branch", entry=result),
            artifacts=[kept],
        )
        await append(store, deleted("gone"))
        await append(store, queue_update("accepted", queued("i1", accepted_at=TS)))
        await append(store, queue_update("accepted", queued("i2", accepted_at=TS)))
        await append(store, queue_update("consumed", queued("i1", accepted_at=TS)))
        await append(store, updated("s1", model="other"))
        await append(store, *a_run("open", ends=False))


def write_recorded_log(path: Path) -> None:
    """Write a log of schema version 1."""
    path.write_bytes(gzip.decompress((STORES / "schema-1.db.gz").read_bytes()))


def lines_in(path: Path) -> dict[int, bytes]:
    """Return every event line by its number, as SQLite reads it."""
    connection = apsw.Connection(str(path))
    try:
        return dict(connection.execute("SELECT seq, line FROM events"))
    finally:
        connection.close()


def state_of(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return hash, time and mode of every file of a folder."""
    return {
        file.name: (
            hashlib.sha256(file.read_bytes()).digest(),
            file.stat().st_mtime_ns,
            file.stat().st_mode,
        )
        for file in sorted(folder.iterdir())
        if file.is_file()
    }
