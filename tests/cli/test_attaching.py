"""``nousctl ... --attach FILE`` sends the file's bytes in the line or before it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from nousd.client import files
from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok, refused

ACCEPTED = ok("accepted", {"command": "prompt", "run_id": "run-1"})


class Puts:
    """Takes uploads and answers them as the daemon does."""

    def __init__(self) -> None:
        self.data = bytearray()

    def __call__(self, request: dict[str, Any]) -> bytes | None:
        payload = request["payload"]
        self.data += base64.b64decode(payload["data"])
        if not payload["final"]:
            return ok("upload", {"upload_id": "up-1"})(request)
        digest = hashlib.sha256(self.data).hexdigest()
        return ok("artifact", {"artifact_id": f"sha256:{digest}"})(request)


@pytest.fixture
def accepting(daemon: FakeDaemon) -> FakeDaemon:
    daemon.on |= {"prompt": ACCEPTED, "steer": ACCEPTED, "follow_up": ACCEPTED}
    return daemon


@pytest.mark.parametrize("verb", ["prompt_async", "steer", "follow_up"])
def test_small_files_are_sent_inline_in_order(
    accepting: FakeDaemon, nousctl: Nousctl, tmp_path: Path, verb: str
) -> None:
    shot, notes = tmp_path / "shot.png", tmp_path / "notes.rs"
    shot.write_bytes(b"image")
    notes.write_bytes(b"")
    outcome = nousctl(verb, "look", "--attach", str(shot), "--attach", str(notes))
    assert outcome.code == 0, outcome.err
    (heard,) = accepting.heard
    assert heard["payload"]["attachments"] == [
        {"name": "shot.png", "media_type": "image/png", "data": "aW1hZ2U="},
        {"name": "notes.rs", "media_type": "text/plain", "data": ""},
    ]


def test_files_too_large_for_the_line_are_uploaded_first(
    accepting: FakeDaemon, nousctl: Nousctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IN_LINE_BYTES_MAX", 10)
    monkeypatch.setattr(files, "PIECE_BYTES", 4)
    accepting.on["put_artifact"] = puts = Puts()
    for name, size in (("a.txt", 6), ("b.pdf", 9), ("c.txt", 4)):
        (tmp_path / name).write_bytes(name[0].encode() * size)
    options = [part for name in "abc" for part in ("--attach", str(*tmp_path.glob(f"{name}.*")))]
    assert nousctl("prompt_async", "look", *options).code == 0
    *put, prompt = accepting.heard
    assert [request["payload"]["media_type"] for request in put] == ["application/pdf"] * 3
    assert bytes(puts.data) == b"b" * 9
    first, second, third = prompt["payload"]["attachments"]
    assert (base64.b64decode(first["data"]), base64.b64decode(third["data"])) == (
        b"a" * 6,
        b"c" * 4,
    )
    assert second == {
        "name": "b.pdf",
        "media_type": "application/pdf",
        "artifact_id": f"sha256:{hashlib.sha256(b'b' * 9).hexdigest()}",
    }


def test_a_file_over_the_attachment_limit_is_not_uploaded(
    accepting: FakeDaemon, nousctl: Nousctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IN_LINE_BYTES_MAX", 10)
    monkeypatch.setattr(files, "ATTACHMENT_BYTES_MAX", 20)
    (tmp_path / "a.txt").write_bytes(b"a" * 21)
    outcome = nousctl("prompt_async", "look", "--attach", str(tmp_path / "a.txt"))
    assert (outcome.code, accepting.heard) == (1, [])
    assert outcome.err.endswith("a.txt is too large: at most 20 bytes\n")


def test_an_unreadable_file_is_reported(
    accepting: FakeDaemon, nousctl: Nousctl, tmp_path: Path
) -> None:
    outcome = nousctl("prompt_async", "look", "--attach", str(tmp_path / "gone.png"))
    assert (outcome.code, accepting.heard) == (2, [])
    assert outcome.err.endswith("gone.png cannot be read: No such file or directory\n")


def test_a_refusal_by_the_daemon_is_shown(
    accepting: FakeDaemon, nousctl: Nousctl, tmp_path: Path
) -> None:
    accepting.on["prompt"] = refused("command_rejected", "attachment_not_supported")
    (tmp_path / "a.txt").write_bytes(b"a")
    outcome = nousctl("prompt", "look", "--attach", str(tmp_path / "a.txt"))
    assert outcome.code == 1
    assert "the model takes no such file" in outcome.err
