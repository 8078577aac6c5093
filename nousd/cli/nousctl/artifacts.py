"""The verbs of ``nousctl`` that transfer artifacts, piece by piece, so that any size fits in memory."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from nousd.cli.client_options import Options
from nousd.cli.output import DONE
from nousd.client.artifacts import artifact_pieces
from nousd.client.blocking import Connection
from nousd.client.files import PUT_SECONDS, attachments_of, put_file
from nousd.errors import ClientError, ConfigError

_UNKNOWN_TYPE: Final = "application/octet-stream"


def get(options: Options, artifact_id: str, output: Path | None) -> int:
    """Write an artifact to a file or to standard output, and verify its bytes against its id.

    A file gets its name when it is complete and verified.
    """
    with (
        options.connect() as daemon,
        open_output(output) as target,
    ):
        digest = hashlib.sha256()
        for piece in artifact_pieces(daemon, artifact_id):
            digest.update(piece)
            target.write(piece)
        target.flush()
        if artifact_id != f"sha256:{digest.hexdigest()}":
            raise ClientError(f"{artifact_id}: what came has other bytes than its id says")
    return DONE


@contextmanager
def open_output(output: Path | None) -> Iterator[BinaryIO]:
    """Provide a file to write, which gets its name when the block ends without an error."""
    if output is None:
        yield sys.stdout.buffer
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def put(options: Options, path: Path, media_type: str | None) -> int:
    """Store a file as an artifact, and print its id."""
    media_type = media_type or mimetypes.guess_type(path.name)[0] or _UNKNOWN_TYPE
    seconds = options.timeout_seconds or PUT_SECONDS
    with (
        _readable(path) as file,
        options.connect() as daemon,
    ):
        answer = put_file(daemon, file, media_type, timeout_seconds=seconds)
    print(json.dumps(answer) if options.json else answer["artifact_id"])
    return DONE


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def with_attachments(daemon: Connection, values: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of a command whose ``attachments`` are paths."""
    try:
        attachments = attachments_of(daemon, values["attachments"])
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
    return {**values, "attachments": attachments}
