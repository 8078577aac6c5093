"""The verbs of ``nousctl`` that move artifacts: piece by piece, so that the size does not matter."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from nousd.cli.watch import DONE, Options
from nousd.client.blocking import Connection
from nousd.errors import ClientError, ConfigError

_PIECE_BYTES: Final = 1024 * 1024
_PUT_SECONDS: Final = 300.0
"""How long the daemon may take to put what it was sent, which is up to 256 MiB."""

_UNKNOWN_TYPE: Final = "application/octet-stream"


def get(options: Options, artifact_id: str, output: Path | None) -> int:
    """Writes an artifact to a file, or to the output; and says so if its bytes are not the right ones.

    A file gets its name when all of it is there and right.
    """
    with (
        Connection(options.socket_path, timeout_seconds=options.answer_seconds) as daemon,
        _written(output) as target,
    ):
        digest = hashlib.sha256()
        for piece in _pieces(daemon, artifact_id):
            digest.update(piece)
            target.write(piece)
        target.flush()
        if artifact_id != f"sha256:{digest.hexdigest()}":
            raise ClientError(f"{artifact_id}: what came has other bytes than its id says")
    return DONE


def _pieces(daemon: Connection, artifact_id: str) -> Iterator[bytes]:
    offset, is_at_end = 0, False
    while not is_at_end:
        wanted = {"artifact_id": artifact_id, "offset": offset, "length": _PIECE_BYTES}
        part = daemon.request("get_artifact", wanted).payload
        piece = b64decode(part["data"])
        yield piece
        offset += len(piece)
        is_at_end = part["eof"]


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """Gives a file to write into, which has another name until the block is left in order."""
    if output is None:
        yield sys.stdout.buffer
        return
    half = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with half.open("xb") as file:
            yield file
        half.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    finally:
        half.unlink(missing_ok=True)


def put(options: Options, path: Path, media_type: str | None) -> int:
    """Stores a file as an artifact, and prints its id."""
    wanted = {"media_type": media_type or mimetypes.guess_type(path.name)[0] or _UNKNOWN_TYPE}
    seconds = options.timeout_seconds or _PUT_SECONDS
    answer: dict[str, Any] = {}
    digest = hashlib.sha256()
    try:
        with (
            path.open("rb") as file,
            Connection(options.socket_path, timeout_seconds=options.answer_seconds) as daemon,
        ):
            for piece, is_last in _pieces_of(file):
                digest.update(piece)
                sent = {**wanted, "data": b64encode(piece).decode(), "final": is_last}
                answer = daemon.request("put_artifact", sent, timeout_seconds=seconds).payload
                wanted["upload_id"] = answer.get("upload_id", "")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    artifact_id = answer["artifact_id"]
    if artifact_id != f"sha256:{digest.hexdigest()}":
        raise ClientError(f"{artifact_id} was stored, which is not what was sent")
    print(json.dumps(answer) if options.json else artifact_id)
    return DONE


def _pieces_of(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yields a file's pieces, at least one, each with whether it is the last."""
    piece = file.read(_PIECE_BYTES)
    while following := file.read(_PIECE_BYTES):
        yield piece, False
        piece = following
    yield piece, True
