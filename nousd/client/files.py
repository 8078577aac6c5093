"""Sending the client's files to the daemon, as artifacts or as attachments of a text.

The daemon may have no access to the client's files, and reads nothing outside its workspaces. So the
bytes of a file are sent, in pieces that each fit into a line.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from nousd.client.blocking import Connection
from nousd.errors import ClientError
from nousd.wire.limits import ATTACHMENT_BYTES_MAX
from nousd.wire.objects import media_types

PIECE_BYTES: Final = 1024 * 1024
"""Maximum bytes of a file in one line, before base64, which adds a third."""

IN_LINE_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of all attachments in the line of their text; other attachments are stored first."""

PUT_SECONDS: Final = 300.0
"""How long the daemon may take to store a file of up to 256 MiB."""


def put_file(
    daemon: Connection, file: BinaryIO, media_type: str, *, timeout_seconds: float = PUT_SECONDS
) -> dict[str, Any]:
    """Store a file as an artifact, and return the payload of the daemon's last answer.

    Raises:
        ClientError: the daemon refused the file, or stored other bytes.
        OSError: the file cannot be read.
    """
    upload: dict[str, Any] = {"media_type": media_type}
    answer: dict[str, Any] = {}
    digest = hashlib.sha256()
    for piece, is_last in _pieces_of(file):
        digest.update(piece)
        payload = {**upload, "data": b64encode(piece).decode(), "final": is_last}
        answer = daemon.request("put_artifact", payload, timeout_seconds=timeout_seconds).payload
        upload["upload_id"] = answer.get("upload_id", "")
    if answer["artifact_id"] != f"sha256:{digest.hexdigest()}":
        raise ClientError(f"{answer['artifact_id']} was stored, which is not what was sent")
    return answer


def _pieces_of(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield the pieces of a file, at least one; each with True if it is the last one."""
    piece = file.read(PIECE_BYTES)
    while following := file.read(PIECE_BYTES):
        yield piece, False
        piece = following
    yield piece, True


def attachments_of(daemon: Connection, paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return files as the ``attachments`` of a command; store those that are too large for its line.

    The media type is guessed from the file's suffix; it is plain text for an unknown suffix.

    Raises:
        ClientError: the daemon refused a file, or a file is too large for an attachment.
        OSError: a file cannot be read.
    """
    left = IN_LINE_BYTES_MAX
    attachments = []
    for path in paths:
        attachment = {"name": path.name, "media_type": media_types.guess_from_name(path.name)}
        with path.open("rb") as file:
            data = file.read(left + 1)
            if len(data) <= left:
                left -= len(data)
                attachment["data"] = b64encode(data).decode()
            elif file.seek(0, 2) > ATTACHMENT_BYTES_MAX:
                raise ClientError(f"{path} is too large: at most {ATTACHMENT_BYTES_MAX} bytes")
            else:
                file.seek(0)
                put = put_file(daemon, file, attachment["media_type"])
                attachment["artifact_id"] = put["artifact_id"]
        attachments.append(attachment)
    return attachments
