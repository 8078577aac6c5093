"""Converting the parts of a message to a text and attachments.

Files are accepted only as data, in a ``data:`` URL. A file or text that is too long for a line of the
protocol is stored as an artifact first.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from nousd.bridge.replies import UNPROCESSABLE, HttpError
from nousd.bridge.routes.bodies import PartBody
from nousd.client.client import Client
from nousd.client.files import IN_LINE_BYTES_MAX, PIECE_BYTES
from nousd.wire.commands import PutArtifact
from nousd.wire.commands.inputs import AttachmentGiven
from nousd.wire.limits import NAME_CHARS_MAX
from nousd.wire.responses import Artifact, Upload

_BEGINNING_CHARS: Final = 1024
"""Length of the beginning that stays in the line if the whole text is stored as an artifact."""


class MessageContent(NamedTuple):
    """The content of a message.

    Args:
        text: the text, or its beginning if ``text_ref`` is set.
        text_ref: the id of the artifact with the whole text, if it was too long.
    """

    text: str
    text_ref: str | None
    attachments: tuple[AttachmentGiven, ...]


class _File(NamedTuple):
    media_type: str
    name: str | None
    data: bytes


async def read_parts(daemon: Client, parts: Iterable[PartBody]) -> MessageContent:
    """Return the texts of a message, joined with LF, and its files. If it has only files, the text is
    their names.

    Raises:
        HttpError: a part lacks the field of its type, or its data is invalid.
        Refused: a file is too large.
    """
    texts: list[str] = []
    files: list[_File] = []
    for index, part in enumerate(parts):
        if part.type == "file":
            files.append(_parse_file(part, f"body: parts[{index}]"))
        elif part.text is None:
            raise HttpError(UNPROCESSABLE, f"body: parts[{index}].text is required")
        else:
            texts.append(part.text)
    text = "\n".join(texts)
    if files and not text.strip():
        # The daemon refuses a blank text.
        text = "\n".join(file.name or file.media_type for file in files)
    data = text.encode()
    left = IN_LINE_BYTES_MAX - len(data)
    text_and_ref = (text, None) if left >= 0 else await _put_text(daemon, text, data)
    attachments = []
    for file in files:
        in_line = len(file.data) <= max(left, 0)
        left -= len(file.data) if in_line else 0
        attachments.append(await _attach_file(daemon, file, in_line=in_line))
    return MessageContent(*text_and_ref, tuple(attachments))


async def _put_text(daemon: Client, text: str, data: bytes) -> tuple[str, str | None]:
    """Store a text that is too long for a line; return its beginning and the artifact's id.

    A blank text is not stored, because the daemon will refuse it.
    """
    beginning = text.lstrip()[:_BEGINNING_CHARS]
    if not beginning:
        return "", None
    return beginning, await _put(daemon, _File("text/plain", None, data))


async def _attach_file(daemon: Client, file: _File, *, in_line: bool) -> AttachmentGiven:
    if in_line:
        return AttachmentGiven(media_type=file.media_type, name=file.name, data=file.data)
    return AttachmentGiven(name=file.name, artifact_id=await _put(daemon, file))


async def _put(daemon: Client, file: _File) -> str:
    upload_id: str | None = None
    for start in range(0, len(file.data), PIECE_BYTES):
        piece = file.data[start : start + PIECE_BYTES]
        is_last = start + PIECE_BYTES >= len(file.data)
        command = PutArtifact(
            data=piece, media_type=file.media_type, upload_id=upload_id, final=is_last
        )
        if is_last:
            return (await daemon.ask(command, Artifact)).artifact_id
        upload_id = (await daemon.ask(command, Upload)).upload_id
    raise AssertionError("an empty file stands in its line")


def _parse_file(part: PartBody, field: str) -> _File:
    head, comma, body = (part.url or "").partition(",")
    if not (comma and head.lower().startswith("data:")):
        raise HttpError(UNPROCESSABLE, f"{field}.url is to be a data: URL: files come as data only")
    essence = head[len("data:") :]
    media_type, semicolon, encoding = essence.rpartition(";")
    is_base64 = bool(semicolon) and encoding.lower() == "base64"
    data = unquote_to_bytes(body)
    if is_base64:
        try:
            data = b64decode(data, validate=True)
        except binascii.Error:
            raise HttpError(UNPROCESSABLE, f"{field}.url is not base64") from None
    if len(part.filename or "") > NAME_CHARS_MAX:
        raise HttpError(
            UNPROCESSABLE, f"{field}.filename is too long: at most {NAME_CHARS_MAX} characters"
        )
    file_type = part.mime or (media_type if is_base64 else essence) or "text/plain"
    return _File(file_type, part.filename or None, data)
