"""``nousctl artifact`` and ``nousctl put``: any number of chunks, and the bytes of the id."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from nousd.client import artifacts, files
from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok, refused

PIECE = 1000
DATA = b"".join(b"%03d " % number for number in range(875))
"""Three pieces and a half."""


def id_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_PIECE_BYTES", PIECE)
    monkeypatch.setattr(files, "PIECE_BYTES", PIECE)


class ArtifactStub:
    """The artifacts of a daemon, read and uploaded in parts."""

    def __init__(self, daemon: FakeDaemon, data: bytes = DATA) -> None:
        self.data = data
        self.artifact_id = id_of(data)
        self.pieces: list[dict[str, Any]] = []
        daemon.on["get_artifact"] = self.give
        daemon.on["put_artifact"] = self.take

    def give(self, request: dict[str, Any]) -> bytes | None:
        offset, length = request["payload"]["offset"], request["payload"]["length"]
        part = self.data[offset : offset + length]
        payload = {
            "artifact_id": self.artifact_id,
            "media_type": "text/plain",
            "size_bytes": len(self.data),
            "offset": offset,
            "data": base64.b64encode(part).decode(),
            "eof": offset + length >= len(self.data),
        }
        return ok("artifact", payload)(request)

    def take(self, request: dict[str, Any]) -> bytes | None:
        self.pieces.append(request["payload"])
        if not request["payload"]["final"]:
            return ok("upload", {"upload_id": "upl-1", "received": len(self.sent)})(request)
        payload = {
            "artifact_id": id_of(self.sent),
            "media_type": request["payload"]["media_type"],
            "size_bytes": len(self.sent),
        }
        return ok("artifact", payload)(request)

    @property
    def sent(self) -> bytes:
        return b"".join(base64.b64decode(piece["data"]) for piece in self.pieces)


@pytest.fixture
def stub(daemon: FakeDaemon) -> ArtifactStub:
    return ArtifactStub(daemon)


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, len(DATA)])
def test_an_artifact_of_any_size_is_written_to_standard_output(
    daemon: FakeDaemon, nousctl: Nousctl, size: int
) -> None:
    stub = ArtifactStub(daemon, DATA[:size])
    assert nousctl("artifact", stub.artifact_id) == (0, stub.data.decode(), "")
    offsets = [request["payload"]["offset"] for request in daemon.heard]
    assert offsets == list(range(0, max(size, 1), PIECE))


def test_an_artifact_is_written_to_a_file(
    nousctl: Nousctl, stub: ArtifactStub, tmp_path: Path
) -> None:
    file = tmp_path / "out"
    file.write_text("what was there before")
    assert nousctl("artifact", stub.artifact_id, "--output", str(file)) == (0, "", "")
    assert file.read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out"]


def test_bytes_that_do_not_match_the_id_are_reported_and_leave_no_file(
    nousctl: Nousctl, stub: ArtifactStub, tmp_path: Path
) -> None:
    stub.data = DATA[:-1] + b"!"
    file = tmp_path / "out"
    outcome = nousctl("artifact", stub.artifact_id, "-o", str(file))
    message = f"{stub.artifact_id}: what came has other bytes than its id says\n"
    assert outcome == (1, "", message)
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []
    assert nousctl("artifact", stub.artifact_id).code == 1


def test_a_missing_artifact_is_reported_and_leaves_no_file(
    daemon: FakeDaemon, nousctl: Nousctl, tmp_path: Path
) -> None:
    daemon.on["get_artifact"] = refused("command_rejected", "artifact_not_found")
    outcome = nousctl("artifact", "sha256:0", "-o", str(tmp_path / "out"))
    assert outcome == (1, "", "there is no such artifact\n")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def test_an_unwritable_output_file_is_reported(
    nousctl: Nousctl, stub: ArtifactStub, tmp_path: Path
) -> None:
    outcome = nousctl("artifact", stub.artifact_id, "-o", str(tmp_path / "none" / "out"))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith("out cannot be written: No such file or directory\n")


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 2 * PIECE, len(DATA)])
def test_put_uploads_a_file_in_pieces_and_prints_its_id(
    nousctl: Nousctl, stub: ArtifactStub, tmp_path: Path, size: int
) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(DATA[:size])
    assert nousctl("put", str(file)) == (0, f"{id_of(DATA[:size])}\n", "")
    assert stub.sent == DATA[:size]
    assert [piece["final"] for piece in stub.pieces] == [False] * (max(size - 1, 0) // PIECE) + [
        True
    ]
    assert {piece["media_type"] for piece in stub.pieces} == {"image/png"}
    uploads = [piece.get("upload_id") for piece in stub.pieces]
    assert uploads == [None, *["upl-1"] * (len(uploads) - 1)]


@pytest.mark.parametrize(
    ("typed", "media_type"),
    [
        ("a.txt", "text/plain"),
        ("a.unheard-of", "application/octet-stream"),
        ("a.txt --media-type text/markdown", "text/markdown"),
    ],
)
def test_the_media_type_follows_the_file_name_unless_given(
    nousctl: Nousctl, stub: ArtifactStub, tmp_path: Path, typed: str, media_type: str
) -> None:
    name, *options = typed.split()
    (tmp_path / name).write_bytes(b"x")
    outcome = nousctl("put", str(tmp_path / name), *options, "--json")
    assert json.loads(outcome.out) == {
        "artifact_id": id_of(b"x"),
        "media_type": media_type,
        "size_bytes": 1,
    }


def test_an_unreadable_file_is_reported(
    nousctl: Nousctl, stub: ArtifactStub, tmp_path: Path
) -> None:
    outcome = nousctl("put", str(tmp_path / "none"))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith("none cannot be read: No such file or directory\n")


def test_an_uploaded_artifact_with_another_id_is_an_error(
    daemon: FakeDaemon, nousctl: Nousctl, tmp_path: Path
) -> None:
    other = {"artifact_id": "sha256:0", "media_type": "text/plain", "size_bytes": 1}
    daemon.on["put_artifact"] = ok("artifact", other)
    (tmp_path / "a").write_bytes(b"x")
    outcome = nousctl("put", str(tmp_path / "a"))
    assert outcome == (1, "", "sha256:0 was stored, which is not what was sent\n")
