"""``--record``: the raw streams of model servers, in files of their run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from nousd.daemon.runs import recordings
from nousd.daemon.runs.recordings import Recordings, current_run, open_recordings
from nousd.errors import ConfigError
from tests.daemon.process_harness import Place, running
from tests.harness.stub_model import error_reply, stub_model, text_reply


@pytest.fixture(autouse=True)
def run_context() -> Iterator[None]:
    token = current_run.set("run-1")
    yield
    current_run.reset(token)


def redact(text: str) -> str:
    return text.replace("sk-secret", "[redacted]")


def record_exchange(
    recordings: Recordings, *chunks: bytes, status: int = 200, body: bytes = b"{}"
) -> None:
    recorder = recordings.of("openai")()
    recorder.request("/chat/completions", body)
    recorder.response(status, "text/event-stream")
    for chunk in chunks:
        recorder.chunk(chunk)
    recorder.end()


def response_metadata(folder: Path, stem: str = "1-openai") -> dict[str, object]:
    metadata: dict[str, object] = json.loads(
        (folder / "run-1" / f"{stem}.response.json").read_bytes()
    )
    return metadata


def test_an_exchange_is_recorded_byte_for_byte_in_private_files(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    with open_recordings(folder, redact) as kept:
        record_exchange(kept, b"data: \xff", b"\n\n", body=b'{"a":1}')
        record_exchange(kept, b"second")
    run = folder / "run-1"
    assert (run / "1-openai.request.json").read_bytes() == b'{"a":1}'
    assert (run / "1-openai.sse").read_bytes() == b"data: \xff\n\n"
    assert (run / "2-openai.sse").read_bytes() == b"second"
    assert response_metadata(folder) == {
        "path": "/chat/completions",
        "status": 200,
        "content_type": "text/event-stream",
        "cut": False,
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in run.iterdir()} == {0o600}


@pytest.mark.parametrize("status", [200, 401])
def test_a_key_repeated_by_the_server_is_redacted_in_the_recording(
    tmp_path: Path, status: int
) -> None:
    with open_recordings(tmp_path / "raw", redact) as kept:
        record_exchange(kept, b"a\nbad key sk-", b"secret!\n", b"sk-sec", b"ret", status=status)
    recorded = (tmp_path / "raw/run-1/1-openai.sse").read_bytes()
    assert recorded == b"a\nbad key [redacted]!\n[redacted]"


def test_a_key_in_a_long_line_is_redacted_at_any_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LINE_BYTES_MAX", 20)
    monkeypatch.setattr(recordings, "_KEY_BYTES_MAX", 9)
    for before in range(30):
        line = b"x" * before + b"sk-secret" + b"y" * 30
        with open_recordings(tmp_path / f"{before}", redact) as kept:
            record_exchange(kept, *(bytes([byte]) for byte in line))
        recorded = (tmp_path / f"{before}/run-1/1-openai.sse").read_bytes()
        assert recorded == line.replace(b"sk-secret", b"[redacted]")


@pytest.mark.parametrize(("size", "cut"), [(9, False), (10, False), (11, True)])
def test_a_long_stream_is_truncated_and_marked_as_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, cut: bool
) -> None:
    monkeypatch.setattr(recordings, "EXCHANGE_BYTES_MAX", 10)
    with open_recordings(tmp_path / "raw", redact) as kept:
        record_exchange(kept, b"x" * 5, b"y" * (size - 5), b"")
    assert response_metadata(tmp_path / "raw")["cut"] is cut
    assert len((tmp_path / "raw/run-1/1-openai.sse").read_bytes()) <= 10


def test_chunks_beyond_the_write_buffer_are_dropped_and_marked_as_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "WAITING_BYTES_MAX", 3 * recordings.WRITE_BYTES + 200)
    kept = Recordings(tmp_path, redact)  # the writer does not run yet
    record_exchange(kept, b"x" * 149 + b"\n", b"y" * 149 + b"\n", b"z")
    kept.stop()
    kept.run()
    assert response_metadata(tmp_path)["cut"] is True
    assert (tmp_path / "run-1/1-openai.sse").read_bytes() == b"x" * 149 + b"\n"


def test_small_writes_count_toward_the_buffer_limit_with_their_overhead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "WAITING_BYTES_MAX", 10 * (recordings.WRITE_BYTES + 1))
    kept = Recordings(tmp_path, redact)  # the writer does not run yet
    written = [kept.write(tmp_path / "run-1" / "file", b"x") for _ in range(12)]
    assert written == [True] * 10 + [False] * 2
    kept.stop()
    kept.run()
    assert kept.write(tmp_path / "run-1" / "file", b"x"), (
        "written bytes still count toward the limit"
    )


def test_the_ends_of_exchanges_have_their_own_bounded_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recordings, "WAITING_BYTES_MAX", 0)
    monkeypatch.setattr(recordings, "ENDS_BYTES_MAX", 2 * (recordings.WRITE_BYTES + 200))
    kept = Recordings(tmp_path, redact)  # the writer does not run yet
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            record_exchange(kept, b"x")
    assert ["3-openai has no end" in record.getMessage() for record in caplog.records] == [True]
    kept.stop()
    kept.run()
    assert [response_metadata(tmp_path, f"{number}-openai")["cut"] for number in (1, 2)] == [
        True,
        True,
    ]


def test_an_exchange_outside_a_run_is_not_recorded(tmp_path: Path) -> None:
    current_run.set(None)
    with open_recordings(tmp_path / "raw", redact) as kept:
        record_exchange(kept, b"x")
    assert list((tmp_path / "raw").iterdir()) == []


def test_a_failing_disk_is_logged_once_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_recordings(tmp_path / "raw", redact) as kept:
        (tmp_path / "raw" / "run-1").write_text("in the way")
        with caplog.at_level(logging.ERROR):
            record_exchange(kept, b"x", b"y")
            record_exchange(kept, b"x")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "a recording cannot be written"
    ]


def test_a_folder_that_cannot_be_created_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("")
    with (
        pytest.raises(ConfigError, match=r"record: .* cannot be made"),
        open_recordings(tmp_path / "raw" / "deeper", redact),
    ):
        pass


@pytest.mark.slow
async def test_a_daemon_records_every_attempt_of_a_model_call(short_folder: Path) -> None:
    async with stub_model() as stub:
        stub.script(error_reply(503, "busy", retry_after="0"), text_reply("Hel", "lo"))
        raw = short_folder / "raw"
        place = Place(short_folder, stub=stub, options=("--record", str(raw)))
        async with running(place) as process:
            client = await place.connect()
            result = await client.request("prompt", text="hi")
            await process.stop()
        sent = [request.json for request in stub.requests]
    run = raw / result["run_id"]
    assert sorted(path.name for path in run.iterdir()) == [
        f"{number}-openai.{kind}"
        for number in (1, 2)
        for kind in ("request.json", "response.json", "sse")
    ]
    assert [json.loads((run / f"{n}-openai.request.json").read_bytes()) for n in (1, 2)] == sent
    assert b'"Hel"' in (run / "2-openai.sse").read_bytes()
