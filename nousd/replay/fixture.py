"""Stores a recorded run as a folder of files: its state, its events and the raw streams.

::

    run.json             the session before the run, prompt, model and tools
    events.ndjson        the run's events, one line each
    artifacts/<hash>     the artifacts that they refer to
    <n>-<provider>.*     each exchange with a model server: request, response, and metadata

Ids are numbered, all times are equal, and paths are placeholders. That changes the models' inputs and
their hashes. So the events are those of a replay of the run with placeholders, which must equal the run
in everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import trio

from nousd.daemon.runs.recordings import Exchange
from nousd.errors import NotReplayable
from nousd.machine.context import text_offload
from nousd.machine.session.settings import SharedSettings
from nousd.machine.session.state import SessionState
from nousd.replay.compare import compare_run, join_deltas
from nousd.replay.play import Tuning, play
from nousd.replay.recorded import RecordedRun, read_run
from nousd.replay.replay import replay_run
from nousd.replay.sqlite_log import open_run_log
from nousd.store.artifacts import Artifact
from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import decode_event, encode_event_tail, event_in, number_event
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION, lift
from nousd.wire.events import Event
from nousd.wire.objects.entries import Entry

TIME: Final = "2026-01-01T00:00:00.000000Z"

_EXCHANGE: Final = re.compile(r"(\d+)-(.+)\.response\.json")
_TIMES: Final = re.compile(r'"(accepted_at|created_at|expires_at|requested_at)":"[^"]*"')
_IDS: Final = re.compile(r"\b(cmp|in|msg|run|sess)-[0-9a-f]{16,}\b")
"""Ids in the format of ``daemon.clock``."""


class RecordedExchange(msgspec.Struct, frozen=True):
    """One exchange with a model server; ``request`` and ``response`` are the exact bodies."""

    number: int
    provider: str
    known: Exchange
    request: bytes
    response: bytes

    @property
    def stem(self) -> str:
        return f"{self.number}-{self.provider}"


class Fixture(msgspec.Struct, frozen=True):
    """The content of the folder; ``dialects`` are by the provider's name."""

    run: RecordedRun
    dialects: dict[str, str]
    exchanges: tuple[RecordedExchange, ...]


class _RunFile(msgspec.Struct, kw_only=True):
    run_id: str
    schema_version: int
    prompt: str
    model: str
    tools: tuple[str, ...]
    dialects: dict[str, str]
    session: SessionState
    path: tuple[Entry, ...]
    artifacts: dict[str, str]
    shared: SharedSettings = SharedSettings()


class RecordReport(msgspec.Struct, frozen=True):
    """The result of recording a run."""

    run_id: str
    folder: str
    events: int
    exchanges: int

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.folder}: {self.events} events, {self.exchanges} exchanges"


def record(
    connection: apsw.Connection,
    run_id: str,
    recordings: Path,
    folder: Path,
    *,
    places: Mapping[str, str],
    dialects: Mapping[str, str],
    tuning: Tuning,
) -> RecordReport:
    """Make a fixture of a run in an open log, and write it to ``folder``; see ``make_fixture``.

    Raises:
        NotReplayable: see ``make_fixture``; or the directory exists or cannot be written.
        StoreError: the log cannot be read.
    """
    if folder.exists():
        raise NotReplayable(f"{folder} exists; a fixture overwrites nothing")
    with open_run_log(connection) as log:
        run = read_run(log, run_id)
    fixture = make_fixture(run, recordings, places=places, dialects=dialects, tuning=tuning)
    try:
        write_fixture(fixture, folder)
    except OSError as error:
        raise NotReplayable(f"{folder} cannot be written: {error.strerror}") from error
    return RecordReport(run_id, str(folder), len(fixture.run.events), len(fixture.exchanges))


# --- making a fixture ------------------------------------------------------------------------


def make_fixture(
    run: RecordedRun,
    recordings: Path,
    *,
    places: Mapping[str, str],
    dialects: Mapping[str, str],
    tuning: Tuning,
) -> Fixture:
    """Return a run with its raw streams as a fixture.

    Args:
        recordings: the directory of ``--record``.
        places: path -> placeholder.
        dialects: the dialects of the configured providers; any other name counts as a dialect.

    Raises:
        NotReplayable: the recording of the run is missing or incomplete, or the replay differs.
    """
    exchanges = _whole_exchanges(run.run_id, recordings)
    report = trio.run(replay_run, run, tuning)
    if not report.is_same:
        raise NotReplayable(f"the run does not come out the same: {report.lines[0]}")
    names = _Names(places)
    placed = _replace_identifiers(run, names)
    played = trio.run(play, placed, tuning)
    difference = compare_run(placed, played, inputs_known=False).difference
    if difference:
        raise NotReplayable(f"the run is another one without its paths: {difference[0]}")
    providers = {exchange.provider for exchange in exchanges}
    return Fixture(
        msgspec.structs.replace(placed, events=_set_one_time(played)),
        {name: dialects.get(name, name) for name in sorted(providers)},
        tuple(
            msgspec.structs.replace(
                exchange,
                request=names.in_bytes(exchange.request),
                response=names.in_bytes(exchange.response),
            )
            for exchange in exchanges
        ),
    )


def _whole_exchanges(run_id: str, recordings: Path) -> tuple[RecordedExchange, ...]:
    exchanges = tuple(read_exchanges(recordings / run_id))
    if not exchanges:
        raise NotReplayable(f"{recordings} holds no recording of run {run_id}")
    if any(exchange.known.cut for exchange in exchanges):
        raise NotReplayable("a stream of the run was too long to be kept whole")
    return exchanges


def _replace_identifiers(run: RecordedRun, names: _Names) -> RecordedRun:
    """Return a run with placeholders for its ids and paths, and with equal times.

    A path may span several deltas, so adjacent ones are joined first.
    """
    lines = _encode_events(list(join_deltas(run.events)))
    names.learn(lines)
    artifacts = {}
    for artifact in run.artifacts.values():
        data = names.in_bytes(artifact.data)
        placed = Artifact(text_offload.artifact_id_of(data), artifact.media_type, data)
        names.add(artifact.id, placed.id)
        artifacts[placed.id] = placed
    before = names.in_text(msgspec.json.encode(run.before).decode())
    path = names.in_text(msgspec.json.encode(run.path).decode())
    return RecordedRun(
        run_id=names.in_text(run.run_id),
        version=run.version,
        before=decode_json(before, type=SessionState),
        shared=run.shared,
        path=decode_json(path, type=tuple[Entry, ...]),
        events=tuple(_decode_events(names.in_text(lines.decode()).encode(), EVENT_SCHEMA_VERSION)),
        artifacts=artifacts,
    )


def _set_one_time(played: Iterable[Event]) -> tuple[Event, ...]:
    lines = _TIMES.sub(rf'"\1":"{TIME}"', _encode_events(played).decode())
    return tuple(_decode_events(lines.encode(), EVENT_SCHEMA_VERSION))


class _Names:
    """Replaces texts by placeholders."""

    def __init__(self, places: Mapping[str, str]) -> None:
        # The longest first: one path may contain another.
        self._names = {path: places[path] for path in sorted(places, key=len, reverse=True)}
        self._counts: dict[str, int] = {}

    def add(self, text: str, name: str) -> None:
        self._names[text] = name

    def learn(self, lines: bytes) -> None:
        """Add a numbered placeholder for every id in the lines."""
        for found in _IDS.finditer(lines.decode()):
            if found[0] not in self._names:
                self._counts[found[1]] = self._counts.get(found[1], 0) + 1
                self.add(found[0], f"{found[1]}-{self._counts[found[1]]}")

    def in_text(self, text: str) -> str:
        for old, new in self._names.items():
            text = text.replace(old, new)
        return _TIMES.sub(rf'"\1":"{TIME}"', text)

    def in_bytes(self, data: bytes) -> bytes:
        """Return bytes with placeholders replaced; binary data is left unchanged."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        for old, new in self._names.items():
            text = text.replace(old, new)
        return text.encode()


# --- files -----------------------------------------------------------------------------------


def write_fixture(fixture: Fixture, folder: Path) -> None:
    """Write a fixture into a new folder.

    Raises:
        OSError: the directory exists, or cannot be written.
    """
    run = fixture.run
    folder.mkdir(parents=True)
    (folder / "events.ndjson").write_bytes(_encode_events(run.events))
    (folder / "run.json").write_bytes(_pretty(_build_run_file(fixture)))
    for artifact in run.artifacts.values():
        place = _artifact_file(folder, artifact.id)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(artifact.data)
    for exchange in fixture.exchanges:
        (folder / f"{exchange.stem}.request.json").write_bytes(exchange.request)
        (folder / f"{exchange.stem}.sse").write_bytes(exchange.response)
        known = msgspec.json.encode(exchange.known) + b"\n"
        (folder / f"{exchange.stem}.response.json").write_bytes(known)


def read_fixture(folder: Path) -> Fixture:
    """Read a fixture, even one that an earlier version wrote."""
    file = decode_json((folder / "run.json").read_bytes(), type=_RunFile)
    lines = (folder / "events.ndjson").read_bytes()
    run = RecordedRun(
        run_id=file.run_id,
        version=file.schema_version,
        before=file.session,
        shared=file.shared,
        path=file.path,
        events=tuple(_decode_events(lines, file.schema_version)),
        artifacts={
            id: Artifact(id, media_type, _artifact_file(folder, id).read_bytes())
            for id, media_type in file.artifacts.items()
        },
    )
    return Fixture(run, file.dialects, tuple(read_exchanges(folder)))


def read_exchanges(folder: Path) -> Iterator[RecordedExchange]:
    """Yield the exchanges in a directory, in order."""
    found = [match for path in folder.glob("*") if (match := _EXCHANGE.fullmatch(path.name))]
    for match in sorted(found, key=lambda match: int(match[1])):
        stem = folder / f"{match[1]}-{match[2]}"
        known = decode_json((folder / match[0]).read_bytes(), type=Exchange)
        bodies = [_bytes_of(stem.with_name(stem.name + end)) for end in (".request.json", ".sse")]
        yield RecordedExchange(int(match[1]), match[2], known, *bodies)


def _bytes_of(path: Path) -> bytes:
    """Return the content of a file; empty if it does not exist."""
    return path.read_bytes() if path.exists() else b""


def _artifact_file(folder: Path, artifact_id: str) -> Path:
    return folder / "artifacts" / artifact_id.removeprefix("sha256:")


def _build_run_file(fixture: Fixture) -> _RunFile:
    run = fixture.run
    start = next(event for event in run.events if isinstance(event, events.AgentStart))
    inputs = [event for event in run.events if isinstance(event, events.ModelInput)]
    accepted = run.events[0]
    return _RunFile(
        run_id=run.run_id,
        schema_version=run.version,
        prompt=accepted.inputs[0].text if isinstance(accepted, events.QueueUpdate) else "",
        model=start.model,
        tools=inputs[0].tools if inputs else (),
        dialects=fixture.dialects,
        session=run.before,
        shared=run.shared,
        path=run.path,
        artifacts={artifact.id: artifact.media_type for artifact in run.artifacts.values()},
    )


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2) + b"\n"


def _encode_events(all_events: Iterable[Event]) -> bytes:
    return b"".join(
        number_event(number, encode_event_tail(event, TIME))
        for number, event in enumerate(all_events, 1)
    )


def _decode_events(lines: bytes, version: int) -> Iterator[Event]:
    for line in lines.splitlines(keepends=True):
        yield event_in(decode_event(lift(line, version)))
