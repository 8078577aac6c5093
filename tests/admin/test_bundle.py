"""``nousd bundle``: its contents, what it omits, and that no file contains a secret."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
import trio

from nousd.admin.bundle.bundle import BundleRequest, Limits, bundle, write_bundle
from nousd.admin.bundle.log import ToolCalls
from nousd.admin.doctor import paths as examine_places
from nousd.config.resolve import resolve
from nousd.errors import ConfigError, SessionNotFound, StoreError
from nousd.store.artifacts import Artifact
from nousd.store.sqlite import deleting
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.entries import MessageEntry
from tests.admin.conftest import check_unchanged
from tests.admin.logs import artifact, write_recorded_log
from tests.harness.planted import MARK, PLANTED
from tests.store.helpers import TS, append, created, deleted, queue_update, queued

Files = dict[str, bytes]
TURN: TurnKey = {"session_id": "s1", "run_id": "r1", "turn_id": "1"}

SPELLED = f"sk-ant-api03-{MARK}-spelled"
"""A secret that a model says letter by letter, or in any two pieces."""


@pytest.fixture(autouse=True)
def examine_state_folder_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restrict the doctor to the state folder; it would contact every server with a key."""
    monkeypatch.setattr(
        "nousd.admin.doctor.doctor.EXAMINATIONS", {"both": (examine_places.state_folder,)}
    )


@pytest.fixture
def make_bundle(folder: Path, tmp_path: Path) -> Callable[..., Files]:
    """Write a bundle of the log in ``folder`` and unpack it."""

    def make(
        session_id: str | None = None, *, environ: dict[str, str] | None = None, **wanted: Any
    ) -> Files:
        output = io.BytesIO()
        write_bundle(wanting(folder, session_id, environ=environ, **wanted), output, "out")
        return unpack(output.getvalue())

    def wanting(folder: Path, session_id: str | None, **more: Any) -> BundleRequest:
        return wanted_of(folder, tmp_path, session_id, **more)

    return make


def wanted_of(
    state: Path,
    tmp_path: Path,
    session_id: str | None = None,
    *,
    environ: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
    **more: Any,
) -> BundleRequest:
    given = {
        "state_dir": str(state),
        "socket": str(tmp_path / "no.sock"),
        "workdir": str(tmp_path),
        **(flags or {}),
    }
    environ = {"XDG_CONFIG_HOME": str(tmp_path), **(environ or {})}
    return BundleRequest(
        resolved=resolve(given, environ, None, asks_models=False),
        session_id=session_id,
        flags=given,
        environ=environ,
        **more,
    )


def unpack(data: bytes) -> Files:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        files: Files = {}
        for member in tar:
            assert member.isfile()
            assert member.mode == 0o600
            content = tar.extractfile(member)
            assert content is not None
            files[member.name.removeprefix("nousd-bundle/")] = content.read()
    return files


def lines(files: Files, name: str = "events.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in files[name].splitlines()]


def manifest(files: Files) -> dict[str, Any]:
    logged: dict[str, Any] = json.loads(files["manifest.json"])
    return logged


def left_out(files: Files) -> dict[str, str]:
    return {item["what"]: item["reason"] for item in manifest(files)["left_out"]}


def write(folder: Path, *logged: events.Event, artifacts: Sequence[Artifact] = ()) -> None:
    async def append_all() -> None:
        async with sqlite.open_store(folder / "nousd.db") as store:
            await append(store, *logged, artifacts=artifacts)

    trio.run(append_all)


def appended(entry_id: str, **fields: Any) -> events.EntryAppended:
    entry = MessageEntry(id=entry_id, run_id="r1", turn_kind="prompt", created_at=TS, **fields)
    return events.EntryAppended(session_id="s1", run_id="r1", entry=entry)


def a_message(message_id: str, *deltas: str, ends: bool = True) -> list[events.Event]:
    logged: list[events.Event] = [
        events.MessageStart(**TURN, message_id=message_id, role="assistant"),
        *(events.MessageUpdate(**TURN, message_id=message_id, delta=delta) for delta in deltas),
        *(events.ReasoningUpdate(**TURN, message_id=message_id, delta=delta) for delta in deltas),
    ]
    if ends:
        logged.append(events.MessageEnd(**TURN, message_id=message_id, text="".join(deltas)))
    return logged


def a_tool_call(text: str, *, artifact_id: str) -> list[events.Event]:
    call: Any = TURN | {"tool_call_id": "m1.0", "tool_name": "bash"}
    args = {"command": text, "env": {"A_TOKEN": f"{MARK}in-args"}}
    return [
        events.ToolExecutionStart(**call, args=args, runtime_tool_call_id="own-1"),
        events.ToolCallRequested(**call, attempt=1, args=args),
        events.ToolCallPolicyEvaluated(
            **call, attempt=1, source="user", decision="allow", reason=text
        ),
        events.ToolCallApproved(**call, attempt=1, by="policy", reason="every source allows it"),
        events.ToolCallStarted(**call, attempt=1),
        *(events.ToolExecutionUpdate(**call, delta=letter) for letter in text),
        events.ToolCallCompleted(
            **call, attempt=1, is_error=False, duration_ms=12, artifact_id=artifact_id
        ),
        events.ToolExecutionEnd(
            **call, result=text, is_error=False, executed=True, artifact_id=artifact_id
        ),
        appended("m1.0.result", role="tool", text=text, artifact_id=artifact_id),
    ]


STARTS: list[events.Event] = [
    events.AgentStart(session_id="s1", run_id="r1", runtime="native", model="m"),
    events.TurnStart(**TURN),
]

EVERYTHING = "\n".join(planted.text for planted in PLANTED)


def write_planted(folder: Path) -> None:
    """Write a log with secrets in every field that can hold text."""
    output = artifact(f"{EVERYTHING}\n{'filler ' * 1000}{EVERYTHING}".encode())
    instructions = Artifact(
        artifact(b"i").id,
        "application/json",
        json.dumps({"system": EVERYTHING, "tools": [{"api_key": f"{MARK}x"}]}).encode(),
    )
    split = [
        event
        for at in range(1, len(SPELLED))
        for event in a_message(f"split-{at}", SPELLED[:at], SPELLED[at:])
    ]
    write(
        folder,
        created("s1", name=f"a session about {SPELLED}"),
        queue_update("accepted", queued("i1", text=EVERYTHING, accepted_at=TS)),
        *STARTS,
        *a_message("m1", *EVERYTHING),
        *a_tool_call(EVERYTHING, artifact_id=output.id),
        appended("user", role="user", text=EVERYTHING, artifact_id=instructions.id),
        *split,
        events.Error(**TURN, code="c", message=EVERYTHING, cause=EVERYTHING, hint=EVERYTHING),
        *a_message("open", *SPELLED, ends=False),
        artifacts=[output, instructions],
    )


# --- no secret is left -----------------------------------------------------------------------


def test_no_file_contains_a_secret(
    folder: Path, tmp_path: Path, make_bundle: Callable[..., Files]
) -> None:
    write_planted(folder)
    log = tmp_path / "nousd.log"
    log_line = json.dumps({"message": EVERYTHING, "exception": {"auth_token": f"{MARK}y"}})
    log.write_text(f"{log_line}\nnot JSON: {EVERYTHING}\n{log_line}\n")
    files = make_bundle(
        environ={"OPENAI_API_KEY": f"held-{MARK}-by-value", "MY_SECRET": f"{MARK} of mine"},
        flags={
            "log_file": str(log),
            "provider": "mock",
            "model": SPELLED,
            "redact": [r"the (?P<secret>number \d+)"],
        },
    )
    for name, content in files.items():
        assert MARK.encode() not in content, name
    assert len([name for name in files if name.startswith("artifacts/")]) == 2
    for name in ("settings.txt", "events.jsonl", "tool-transcripts.json", "nousd.log"):
        assert b"[redacted:anthropic_key]" in files[name], name
    kinds = {item["kind"]: item["count"] for item in manifest(files)["redacted"]}
    assert {planted.kind for planted in PLANTED} <= kinds.keys()
    for line in lines(files):
        assert line["payload"]["session_id"] == "s1"


def test_secrets_in_variables_are_redacted_by_their_value(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    held, other = "a phrase without any looks", "another one of those"
    write(folder, created("s1", name=f"{held}, {other}"))
    files = make_bundle(environ={"OPENAI_API_KEY": held, "WEATHER_TOKEN": other})
    [event] = lines(files)
    assert event["payload"]["name"] == "[redacted:known], [redacted:known]"


def test_the_http_token_is_redacted_by_its_value(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    token = "some words-of-the-users own"
    write(folder, created("s1", name=f"it is {token.replace(' ', '-')}"))
    file = folder / "http-token"
    file.write_text(token.replace(" ", "-"))
    file.chmod(0o600)
    [event] = lines(make_bundle())
    assert event["payload"]["name"] == "it is [redacted:known]"
    file.chmod(0o644)
    assert len(lines(make_bundle())) == 1, (
        "one that cannot be used is no reason not to make a bundle"
    )


def test_the_working_directory_variables_are_not_secrets(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, created("s1", name="see /home/me/project/a.txt"))
    files = make_bundle(
        environ={"PWD": "/home/me/project", "OLDPWD": "/home/me", "DB_PWD": "see /home"}
    )
    [event] = lines(files)
    assert event["payload"]["name"] == "[redacted:known]/me/project/a.txt"


def test_user_patterns_are_redacted(folder: Path, make_bundle: Callable[..., Files]) -> None:
    write(folder, created("s1", name="case ACME-1234"))
    [event] = lines(make_bundle(environ={"NOUSD_REDACT": r"ACME-\d+"}))
    assert event["payload"]["name"] == "case [redacted:user]"
    with pytest.raises(ConfigError, match=r"redact must be a list of regular expressions"):
        make_bundle(flags={"redact": ["("]})


# --- contents --------------------------------------------------------------------------------


def test_deltas_are_joined_and_other_events_are_kept(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, created("s1"), *STARTS, *a_message("m1", "a", "b", "c"))
    logged = lines(make_bundle())
    assert [event["type"] for event in logged] == [
        "session_created",
        "agent_start",
        "turn_start",
        "message_start",
        "message_update",
        "reasoning_update",
        "message_end",
    ]
    update = logged[4]
    assert (update["id"], update["payload"]["delta"]) == ("evt-7", "abc")
    assert update["payload"]["joined_from"] == "evt-5"


def test_a_tool_call_has_a_transcript(folder: Path, make_bundle: Callable[..., Files]) -> None:
    whole = artifact(b"the whole output")
    write(
        folder, created("s1"), *STARTS, *a_tool_call("ls", artifact_id=whole.id), artifacts=[whole]
    )
    files = make_bundle()
    [call] = json.loads(files["tool-transcripts.json"])
    assert call.pop("begun_at") <= call.pop("ended_at")
    assert call == {
        **TURN,
        "tool_call_id": "m1.0",
        "tool_name": "bash",
        "args": {"command": "ls", "env": {"A_TOKEN": "[redacted:variable]"}},
        "runtime_tool_call_id": "own-1",
        "attempt": 1,
        "policy": [{"source": "user", "decision": "allow", "reason": "ls"}],
        "decision": "approved",
        "by": "policy",
        "reason": "every source allows it",
        "started": True,
        "is_error": False,
        "duration_ms": 12,
        "artifact_id": whole.id,
        "result": "ls",
        "executed": True,
    }
    assert files[f"artifacts/{whole.id.replace(':', '-')}.txt"] == b"the whole output"


def test_a_bundle_can_be_limited_to_one_session(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, created("s1"), created("s2", name="other"))
    files = make_bundle("s2")
    assert [event["payload"]["session_id"] for event in lines(files)] == ["s2"]
    assert manifest(files)["session"] == "s2"
    assert manifest(make_bundle())["session"] == "all"
    with pytest.raises(SessionNotFound, match="there is no session s3"):
        make_bundle("s3")


def test_the_manifest_lists_every_other_file_with_its_size(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, created("s1"))
    files = make_bundle()
    listed = {item["name"]: item["bytes"] for item in manifest(files)["files"]}
    sizes = {name: len(content) for name, content in files.items()}
    assert sizes.pop("manifest.json") > 0
    assert listed == sizes
    assert set(listed) == {
        "versions.json",
        "doctor.txt",
        "capabilities.json",
        "settings.txt",
        "events.jsonl",
        "tool-transcripts.json",
    }
    assert json.loads(files["versions.json"]) == manifest(files)["versions"]
    assert b"state folder" in files["doctor.txt"]
    assert json.loads(files["capabilities.json"])["from"].startswith("the code, as no daemon")


# --- omissions -------------------------------------------------------------------------------


def test_artifacts_that_are_binary_or_too_long_are_omitted_and_listed(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    image = Artifact(artifact(b"\x89PNG").id, "image/png", b"\x89PNG")
    disguised = artifact(b"\xff\xfe no text \0")
    long, newer = artifact(b"x" * 2000), artifact(b"y" * 900)
    kept = [image, disguised, long, newer]
    uses = [appended(f"m{n}", role="user", text="t", artifact_id=a.id) for n, a in enumerate(kept)]
    write(folder, created("s1"), *uses, artifacts=kept)
    files = make_bundle(limits=Limits(artifact=1000, artifacts=1500))
    assert [name for name in files if name.startswith("artifacts/")] == [
        f"artifacts/{newer.id.replace(':', '-')}.txt"
    ]
    reasons = {what.split()[1]: reason for what, reason in left_out(files).items()}
    assert reasons[image.id] == reasons[disguised.id] == "is not text"
    assert reasons[long.id] == "is longer than 1000 bytes"
    files = make_bundle(limits=Limits(artifacts=100))
    reasons = {what.split()[1]: reason for what, reason in left_out(files).items()}
    assert reasons[newer.id] == reasons[long.id] == "together they are longer than 100 bytes"


def test_the_oldest_events_past_the_limit_are_omitted(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, *(created(f"s{number}") for number in range(9)))
    size = len(make_bundle()["events.jsonl"].splitlines(keepends=True)[0])
    files = make_bundle(limits=Limits(events=3 * size + size // 2))
    assert [event["payload"]["session_id"] for event in lines(files)] == ["s6", "s7", "s8"]
    assert left_out(files)["the 6 oldest events"] == "they are past the limit of events"


def test_the_last_complete_lines_of_a_long_daemon_log_are_included(
    folder: Path, tmp_path: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, created("s1"))
    log = tmp_path / "own.log"
    log.write_text(f"API_KEY={MARK}\nsecond\nthird\n")
    log.with_name("own.log.1").write_text("older")
    files = make_bundle(flags={"log_file": str(log)}, limits=Limits(log=16))
    assert files["nousd.log"] == b"second\nthird\n"
    assert left_out(files) == {
        "the beginning of own.log": "is longer than 16 bytes",
        "own.log.1 and older": "only the newest log file is taken",
    }


def test_a_session_that_is_being_deleted_is_left_out(
    folder: Path, make_bundle: Callable[..., Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 2)
    kept = artifact(b"a text")
    told = [
        appended(f"e{number}", role="user", text="t", text_ref=kept.id, text_bytes=6)
        for number in range(9)
    ]
    write(folder, created("s1"), created("s2"), *told, deleted("s1"), artifacts=[kept])
    files = make_bundle()
    assert [event["type"] for event in lines(files)] == ["session_created", "session_deleted"]
    assert not [name for name in files if name.startswith("artifacts/")]


def test_an_unreadable_part_does_not_prevent_the_others(
    folder: Path, tmp_path: Path, make_bundle: Callable[..., Files]
) -> None:
    (folder / "nousd.db").write_bytes(b"no database" * 1000)
    files = make_bundle(flags={"log_file": str(tmp_path / "nowhere.log")})
    assert {"doctor.txt", "settings.txt", "versions.json"} <= files.keys()
    assert "events.jsonl" not in files
    reasons = left_out(files)
    for part in ("the events", "the artifacts", "the daemon's own log"):
        assert reasons[part].startswith("could not be had: ")
    (folder / "nousd.db").unlink()
    assert left_out(make_bundle())["the log"].startswith("could not be had: there is no log at ")


def test_damaged_events_are_listed_and_the_others_included(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    kept = artifact(b"a text")
    logged = appended("user", role="user", text="t", text_ref=kept.id, text_bytes=6)
    write(folder, created("s1"), *STARTS, logged, *a_message("m1", "a", "b"), artifacts=[kept])
    connection = apsw.Connection(str(folder / "nousd.db"))
    connection.execute(
        "UPDATE events SET line = CAST('garbage' AS BLOB) WHERE type = 'agent_start'"
    )
    connection.execute("UPDATE events SET schema_version = 99 WHERE type = 'turn_start'")
    connection.execute("UPDATE events SET type = 'other' WHERE type = 'message_start'")
    connection.execute("UPDATE events SET schema_version = 0 WHERE type = 'message_end'")
    connection.close()
    files = make_bundle()
    assert [event["type"] for event in lines(files)] == [
        "session_created",
        "entry_appended",
        "message_update",
        "reasoning_update",
    ]
    assert f"artifacts/{kept.id.replace(':', '-')}.txt" in files
    assert "4 damaged events: evt-2, evt-3, evt-5, evt-10" in left_out(files)


def test_a_log_of_an_earlier_version_is_bundled_without_artifacts(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write_recorded_log(folder / "nousd.db")
    with check_unchanged(folder):
        files = make_bundle()
    assert len([e for e in lines(files) if e["type"] == "agent_end"]) == 5
    assert "attempt" in next(e["payload"] for e in lines(files) if e["type"] == "tool_call_started")
    assert "all artifacts" in left_out(files)


# --- the file --------------------------------------------------------------------------------


def test_the_file_is_private_and_overwrites_only_on_request(folder: Path, tmp_path: Path) -> None:
    write(folder, created("s1"))
    target = tmp_path / "x.tar.gz"
    wanted = wanted_of(folder, tmp_path)
    with check_unchanged(folder):
        report = bundle(wanted, target)
    assert target.stat().st_mode & 0o777 == 0o600
    assert report.files == len(unpack(target.read_bytes()))
    assert str(target) in report.summary
    with pytest.raises(StoreError, match="exists; --force overwrites it"):
        bundle(wanted, target)
    assert bundle(wanted, target, overwrite=True).files == report.files
    with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
        bundle(wanted, tmp_path / "nowhere" / "x.tar.gz")
    with pytest.raises(SessionNotFound):
        bundle(wanted_of(folder, tmp_path, "unknown"), tmp_path / "y.tar.gz")
    assert sorted(path.name for path in tmp_path.glob("*.gz*")) == ["x.tar.gz"]


async def test_a_log_that_is_in_use_is_bundled(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    async with sqlite.open_store(folder / "nousd.db") as store:
        await append(store, created("s1"))
        assert [event["type"] for event in lines(await trio.to_thread.run_sync(make_bundle))] == [
            "session_created"
        ]
        await append(store, created("s2"))
        assert len(lines(await trio.to_thread.run_sync(make_bundle))) == 2


# --- truncated secrets -----------------------------------------------------------------------


HALF_OF_A_SECRET: Final = f" postgres://bob:{MARK}-and-{MARK}"
"""Without the rest of the URL, no pattern matches this."""


def cut_in_a_secret(size: int) -> str:
    """Return a text of ``size`` characters that ends within a secret."""
    return ("word " * size)[: size - len(HALF_OF_A_SECRET)] + HALF_OF_A_SECRET


def test_the_last_word_of_a_truncated_text_is_removed(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    ref = artifact(b"whole").id
    call: Any = TURN | {"tool_call_id": "m1.0", "tool_name": "bash"}
    short = cut_in_a_secret(99)
    write(
        folder,
        created("s1"),
        *STARTS,
        appended("user", role="user", text=short, text_ref=ref, text_bytes=9000),
        appended("shown", role="tool", text=f"{short}\n[... the whole output: artifact {ref}]"),
        events.ToolExecutionStart(
            **call, args={"command": short, "n": 1}, args_ref=ref, args_bytes=9000
        ),
        events.ToolExecutionEnd(
            **call, result=cut_in_a_secret(8192), is_error=False, executed=False
        ),
        events.Error(**TURN, code="c", message="m", cause=short, raw_ref=ref),
        events.AgentEnd(session_id="s1", run_id="r1", status="error", error=f"{short}..."),
    )
    files = make_bundle()
    for name, content in files.items():
        assert MARK.encode() not in content, name
    logged = [event["payload"] for event in lines(files)]
    for text in (logged[3]["entry"]["text"], logged[5]["args"]["command"], logged[7]["cause"]):
        assert text.startswith("word word ")
        assert text.endswith(" [cut]")


@pytest.mark.slow
def test_deltas_whose_beginning_is_past_the_limit_are_omitted(
    folder: Path, make_bundle: Callable[..., Files]
) -> None:
    write(folder, created("s1"), *STARTS, *a_message("open", *SPELLED, ends=False))
    for limit in range(0, 16_000, 400):
        files = make_bundle(limits=Limits(events=limit))
        if any(item["what"].endswith("oldest events") for item in manifest(files)["left_out"]):
            assert MARK[-3:].encode() not in files["events.jsonl"], limit
    assert [event for event in lines(make_bundle()) if "delta" in event["payload"]]


# --- output ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_transient_write_error_fails_the_bundle(folder: Path, tmp_path: Path) -> None:
    class FullForAMoment(io.BytesIO):
        was_full = False

        def write(self, data: Any) -> int:
            if not self.was_full and self.tell() > 1000:
                self.was_full = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    noise = random.Random(1).randbytes(90_000).hex()
    write(folder, created("s1"), *STARTS, *a_message("m1", noise))
    with pytest.raises(OSError, match="No space left on device"):
        write_bundle(wanted_of(folder, tmp_path), FullForAMoment(), "out")


def test_a_failed_bundle_writes_nothing_more_when_collected(folder: Path, tmp_path: Path) -> None:
    write(folder, created("s1"))
    output = io.BytesIO()
    with pytest.raises(SessionNotFound):
        write_bundle(wanted_of(folder, tmp_path, "s9"), output, "out")
    half = output.getvalue()
    gc.collect()
    assert output.getvalue() == half


def test_only_a_regular_file_is_overwritten(folder: Path, tmp_path: Path) -> None:
    write(folder, created("s1"))
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("mine")
    link.symlink_to(file)
    for target in (pipe, link, tmp_path):
        with pytest.raises(StoreError, match="exists and is not a regular file"):
            bundle(wanted_of(folder, tmp_path), target, overwrite=True)
    assert pipe.is_fifo()
    assert file.read_text() == "mine"


def test_a_parent_runs_copy_of_a_task_decision_makes_no_call_record() -> None:
    calls = ToolCalls()
    call = {"session_id": "s", "tool_call_id": "m.0", "by": "user", "reason": "yes"}
    logged = {**call, "origin": {"session_id": "below", "run_id": "r"}}
    calls.note({"type": "tool_call_approved", "payload": logged, "ts": "now"})
    assert calls.records == {}
    calls.note({"type": "tool_call_approved", "payload": call, "ts": "now"})
    assert calls.records["m.0"]["decision"] == "approved"
