"""Reads and checks the files that a client attaches to an input, and prepares them for the store.

A client sends the bytes, the path of a file in the session's workspace, or the id of an artifact. Every
error is reported before anything is accepted, with the attachment's index in the list. Accepting the
input is left to ``commands.accepting``.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final, Protocol

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.clock import Clock
from nousd.daemon.workspace.folder_threads import in_folder_thread
from nousd.errors import CommandRejected, ConfigError, InvalidPayload, ToolError
from nousd.machine.context.model_input import ModelChoice
from nousd.machine.context.text_offload import artifact_id_of
from nousd.providers.models.catalog import Models
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.tools.fs.path_errors import explain_os_errors
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.inputs import AttachmentGiven
from nousd.wire.limits import ATTACHMENT_BYTES_MAX, ATTACHMENTS_BYTES_MAX, NAME_CHARS_MAX
from nousd.wire.objects import media_types
from nousd.wire.objects.entries import Attachment

_AT_ONCE: Final = trio.CapacityLimiter(2)
"""Maximum inputs whose attachments are read at a time; each may hold ``ATTACHMENTS_BYTES_MAX``."""

_SMALL_BYTES: Final = 64 * 1024
"""Attachments up to this size are examined without a thread."""

_SOURCES: Final = ("data", "path", "artifact_id")


class AttachmentServices(Protocol):
    """The services that reading attachments needs."""

    store: Store
    clock: Clock
    models: Models


class AttachedFiles(msgspec.Struct, frozen=True):
    """The attachments of one input, and the artifacts to store with it."""

    attachments: tuple[Attachment, ...] = ()
    artifacts: tuple[Artifact, ...] = ()


async def read_attachments(
    services: AttachmentServices,
    requested: tuple[AttachmentGiven, ...],
    choice: ModelChoice,
    path_sandbox: PathSandbox,
) -> AttachedFiles:
    """Read a client's attachments and prepare them for the store.

    Args:
        choice: the model that the input will go to.
        path_sandbox: decides which paths may be read.

    Raises:
        InvalidPayload: an attachment is invalid; names the field and, where there is one, the limit.
        CommandRejected: ``artifact_not_found``, ``attachment_not_supported`` by that model, or
            ``provider_not_usable``.
    """
    async with _AT_ONCE:
        read = _Reading(services, choice, path_sandbox)
        for index, attachment in enumerate(requested):
            await read.add(attachment, f"attachments[{index}]")
        await services.store.wait_room()
        return AttachedFiles(tuple(read.attachments), tuple(read.artifacts))


class _Reading:
    """Collects the attachments of one input."""

    def __init__(
        self, services: AttachmentServices, choice: ModelChoice, path_sandbox: PathSandbox
    ) -> None:
        self._services = services
        self._choice = choice
        self._confinement = path_sandbox
        self._bytes = 0
        self.attachments: list[Attachment] = []
        self.artifacts: list[Artifact] = []

    async def add(self, attachment: AttachmentGiven, field: str) -> None:
        """Read one attachment; ``field`` names it in errors."""
        sources = [source for source in _SOURCES if getattr(attachment, source) is not None]
        if len(sources) != 1:
            raise InvalidPayload(f"{field} must have exactly one of {', '.join(_SOURCES)}")
        if attachment.path is not None:
            await self._add_file(attachment, attachment.path, field)
        elif attachment.artifact_id is not None:
            await self._add_artifact(attachment, attachment.artifact_id, field)
        else:
            assert attachment.data is not None
            if attachment.media_type is None:
                raise InvalidPayload(f"{field}.media_type is required")
            media_type = self._check_media_type(attachment.media_type, field)
            await self._keep(attachment.data, media_type, attachment.name, field)

    async def _add_file(self, attachment: AttachmentGiven, path: str, field: str) -> None:
        media_type = self._check_media_type(
            attachment.media_type or media_types.guess_from_name(path), field
        )
        try:
            data = await in_folder_thread(_file_bytes, self._confinement, path)
        except ToolError as error:
            raise InvalidPayload(f"{field}.path: {error}") from None
        name = attachment.name or PurePosixPath(path).name[:NAME_CHARS_MAX]
        await self._keep(data, media_type, name, field)

    async def _add_artifact(
        self, attachment: AttachmentGiven, artifact_id: str, field: str
    ) -> None:
        store, now = self._services.store, self._services.clock.now()
        info = await store.renew_artifact(artifact_id, now=now)
        if info is None:
            raise _not_found(artifact_id, field)
        media_type = self._check_media_type(attachment.media_type or info.media_type, field)
        self._count(info.size_bytes, field)
        artifact = await store.artifact(artifact_id)
        if artifact is None:  # deleted with its session just now
            raise _not_found(artifact_id, field)
        await _check(artifact.data, media_type, field)
        self._attach(artifact, media_type, attachment.name)

    async def _keep(self, data: bytes, media_type: str, name: str | None, field: str) -> None:
        self._count(len(data), field)
        artifact_id = await _check(data, media_type, field)
        self._attach(Artifact(artifact_id, media_type, data), media_type, name)

    def _check_media_type(self, declared: str, field: str) -> str:
        """Return the media type without its parameters; raise if the model does not accept it."""
        media_type = media_types.bare(declared)
        if not media_types.is_attachable(media_type):
            raise InvalidPayload(f"{field}.media_type must be {media_types.ATTACHABLE}")
        try:
            is_accepted = self._services.models.accepts(self._choice, media_type)
        except ConfigError as error:
            raise CommandRejected("provider_not_usable", cause=str(error)) from None
        if not is_accepted:
            details = {"media_type": media_type, "model": self._choice.model, "field": field}
            raise CommandRejected("attachment_not_supported", details=details)
        return media_type

    def _count(self, size: int, field: str) -> None:
        if size > ATTACHMENT_BYTES_MAX:
            raise InvalidPayload(f"{field} is too large: at most {ATTACHMENT_BYTES_MAX} bytes")
        self._bytes += size
        if self._bytes > ATTACHMENTS_BYTES_MAX:
            raise InvalidPayload(f"attachments is too large: at most {ATTACHMENTS_BYTES_MAX} bytes")

    def _attach(self, artifact: Artifact, media_type: str, name: str | None) -> None:
        # Storing an existing artifact changes nothing; one that was just deleted is stored again.
        self.artifacts.append(artifact)
        self.attachments.append(
            Attachment(
                artifact_id=artifact.id,
                media_type=media_type,
                size_bytes=len(artifact.data),
                name=or_unset(name) or UNSET,
            )
        )


def _not_found(artifact_id: str, field: str) -> CommandRejected:
    return CommandRejected(
        "artifact_not_found", details={"artifact_id": artifact_id, "field": field}
    )


async def _check(data: bytes, media_type: str, field: str) -> str:
    """Return the artifact id of bytes whose content matches their media type."""
    if len(data) <= _SMALL_BYTES:
        artifact_id = _hash_if_matching(data, media_type)
    else:
        artifact_id = await trio.to_thread.run_sync(_hash_if_matching, data, media_type)
    if artifact_id is None:
        raise InvalidPayload(f"{field}.media_type is {media_type}, but the bytes are not")
    return artifact_id


def _hash_if_matching(data: bytes, media_type: str) -> str | None:
    return artifact_id_of(data) if media_types.matches_content(media_type, data) else None


def _file_bytes(path_sandbox: PathSandbox, path: str) -> bytes:
    """Read a regular file; one byte more than the limit if it is too large."""
    with (
        explain_os_errors("read", path),
        path_sandbox.locate(path) as resolved,
        resolved.open_file() as file,
    ):
        return file.read(ATTACHMENT_BYTES_MAX + 1)
