"""Converts the blocks of a prompt to a text with attachments."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from nousd.acp_server.requests import Block, Contents, Image, Resource, ResourceLink, Text
from nousd.client.client import Client
from nousd.client.files import IN_LINE_BYTES_MAX, PIECE_BYTES, PUT_SECONDS
from nousd.net.jsonrpc import INVALID_PARAMS, RpcError

_FILES_ONLY: Final = "(see the attached files)"
"""The text of a prompt that has only files: the daemon refuses a blank text."""

_TEXT: Final = "text/plain"


class File(NamedTuple):
    """A file attached to a text."""

    name: str
    media_type: str
    data: bytes


class PromptContent(NamedTuple):
    """The text of a prompt and its attachments."""

    text: str
    files: tuple[File, ...]


def content_of(blocks: Iterable[Block], folder: str) -> PromptContent:
    """Return the text and files of the blocks. The text contains the name of each resource in its place.

    Args:
        folder: the session's workspace.

    Raises:
        RpcError: the blocks are empty, or a resource has no content that can be attached.
    """
    words: list[str] = []
    files: list[File] = []
    for block in blocks:
        match block:
            case Text(text=text):
                words.append(text)
            case ResourceLink(uri=uri, name=name):
                words.append(_mention(uri, name, folder))
            case Image():
                name = format_uri(block.uri or "", folder) or f"image {len(files) + 1}"
                files.append(File(name, block.mime_type, block.data))
            case Resource(resource=contents):
                files.append(_file(contents, folder))
                words.append(format_uri(contents.uri, folder))
    text = "".join(words)
    if not text.strip() and not files:
        raise RpcError(INVALID_PARAMS, "the prompt is empty")
    return PromptContent(text if text.strip() else _FILES_ONLY, tuple(files))


def _mention(uri: str, name: str, folder: str) -> str:
    shown = format_uri(uri, folder)
    return shown if uri.startswith("file:") else f"[{name}]({shown})"


def format_uri(uri: str, folder: str) -> str:
    """Return a URI as tools write it: the path of a file, relative if it is in the folder."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # such as for an incomplete IPv6 address
        return uri
    if parts.scheme != "file":
        return uri
    path = Path(unquote(parts.path))
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _file(contents: Contents, folder: str) -> File:
    name = format_uri(contents.uri, folder)
    if contents.text is not None:
        mime_type = contents.mime_type or _TEXT
        # Most media types of source code, such as application/json, do not begin with ``text/``.
        media_type = mime_type if mime_type.startswith("text/") else _TEXT
        return File(name, media_type, contents.text.encode("utf-8", "replace"))
    if contents.blob is not None and contents.mime_type is not None:
        return File(name, contents.mime_type, contents.blob)
    raise RpcError(INVALID_PARAMS, f"{contents.uri} has neither a text nor bytes with a mimeType")


async def attachments_of(daemon: Client, files: Iterable[File]) -> list[dict[str, Any]]:
    """Return the files as the ``attachments`` of a command; upload files too large for its line.

    Raises:
        ClientError: the daemon refused a file.
    """
    bytes_left = IN_LINE_BYTES_MAX
    attachments = []
    for file in files:
        attachment = {"name": file.name[-256:], "media_type": file.media_type}
        if len(file.data) <= bytes_left:
            bytes_left -= len(file.data)
            attachment["data"] = b64encode(file.data).decode()
        else:
            attachment["artifact_id"] = await _put(daemon, file)
        attachments.append(attachment)
    return attachments


async def _put(daemon: Client, file: File) -> str:
    common: dict[str, Any] = {"media_type": file.media_type}
    answer: dict[str, Any] = {}
    for start in range(0, len(file.data), PIECE_BYTES):
        piece = file.data[start : start + PIECE_BYTES]
        is_last = start + len(piece) == len(file.data)
        sent = {**common, "data": b64encode(piece).decode(), "final": is_last}
        answer = (await daemon.request("put_artifact", sent, timeout_seconds=PUT_SECONDS)).payload
        common["upload_id"] = answer.get("upload_id", "")
    return str(answer["artifact_id"])
