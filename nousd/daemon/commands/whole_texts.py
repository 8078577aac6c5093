"""Texts that are too long for a line: a client puts them as artifacts and hands in their beginnings.

From here on they are texts like any other. How an input is accepted is not known here.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
import trio

from nousd.daemon.services import Services
from nousd.errors import CommandRejected, InvalidPayload
from nousd.wire import commands
from nousd.wire.limits import LONG_TEXT_BYTES_MAX

_AT_ONCE: Final = trio.CapacityLimiter(2)
"""Texts that are being read; each may have ``LONG_TEXT_BYTES_MAX``."""

C = TypeVar("C", commands.Prompt, commands.AppendMessage, commands.Steer, commands.FollowUp)


async def with_whole_text(services: Services, command: C, text_ref: str) -> C:
    """Return a command with the text that it refers to as ``text_ref``, as if it stood there.

    Raises:
        InvalidPayload: the artifact is too large, no text, or begins with something else.
        CommandRejected: ``artifact_not_found``.
    """
    async with _AT_ONCE:
        text = _decoded(await _bytes_of(services, text_ref))
        await services.store.wait_room()
    # A beginning must not be blank, and a text may begin with any number of blanks.
    if not text.lstrip().startswith(command.text.lstrip()):
        raise InvalidPayload("text must be the beginning of what text_ref names")
    return msgspec.structs.replace(command, text=text, text_ref=None)


async def _bytes_of(services: Services, artifact_id: str) -> bytes:
    missing = CommandRejected(
        "artifact_not_found", details={"artifact_id": artifact_id, "field": "text_ref"}
    )
    info = await services.store.renew_artifact(artifact_id, now=services.clock.now())
    if info is None:
        raise missing
    if info.size_bytes > LONG_TEXT_BYTES_MAX:
        raise InvalidPayload(f"text_ref is too large: at most {LONG_TEXT_BYTES_MAX} bytes")
    artifact = await services.store.artifact(artifact_id)
    if artifact is None:  # it went with a session in this moment
        raise missing
    return artifact.data


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidPayload("text_ref names no text in UTF-8") from None
