"""Reading artifacts: their bytes, and the inputs of model calls."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from nousd.client.blocking import Connection

_PIECE_BYTES: Final = 1024 * 1024


def artifact_pieces(daemon: Connection, artifact_id: str) -> Iterator[bytes]:
    """Yield the bytes of an artifact in pieces. Their hash is not compared with the id.

    Raises:
        Refused: the artifact does not exist.
    """
    offset, is_at_end = 0, False
    while not is_at_end:
        payload = {"artifact_id": artifact_id, "offset": offset, "length": _PIECE_BYTES}
        part = daemon.request("get_artifact", payload).payload
        piece = b64decode(part["data"])
        yield piece
        offset += len(piece)
        is_at_end = part["eof"]


def model_input(daemon: Connection, input_ref: str) -> tuple[bytes, str]:
    """Reassemble the input of a model call; return its canonical JSON and the hash of that JSON.

    Args:
        input_ref: the ``input_ref`` of the event ``model_input``.

    Raises:
        InputNotWhole: a part does not match its hash, or is not a part of an input.
        Refused: a part is missing.
    """
    from nousd.wire.codec.canonical_json import digest
    from nousd.wire.codec.input_chunks import assemble_input

    data = assemble_input(input_ref, lambda part: b"".join(artifact_pieces(daemon, part)))
    return data, digest(data)
