"""Commands that store and read artifacts."""

from __future__ import annotations

from nousd.daemon.replies import Reply
from nousd.daemon.services import Services
from nousd.errors import CommandRejected, InvalidPayload, NousdError
from nousd.wire import commands
from nousd.wire.responses import Artifact, Upload


async def put_artifact(services: Services, command: commands.PutArtifact) -> Reply:
    """Accept a piece of an upload; the last piece completes the artifact."""
    uploads = services.uploads
    upload_id = command.upload_id or uploads.begin(command.media_type)
    try:
        received = await uploads.append(
            upload_id, command.media_type, command.data, offset=command.offset
        )
    except NousdError:
        if command.upload_id is None:
            uploads.forget(upload_id)
        raise
    if not command.final:
        return Upload(upload_id=upload_id, received=received)
    put = await uploads.finish(upload_id)
    return Artifact(artifact_id=put.id, media_type=put.media_type, size_bytes=put.size_bytes)


async def get_artifact(services: Services, command: commands.GetArtifact) -> Reply:
    """Read a part of an artifact."""
    found = await services.store.artifact_info(command.artifact_id)
    if found is None:
        raise _not_found(command.artifact_id)
    if command.offset > found.size_bytes:
        raise InvalidPayload(f"offset must be at most {found.size_bytes}")
    length = min(command.length, found.size_bytes - command.offset)
    data = await services.store.artifact_range(found.id, command.offset, length)
    if len(data) < length:  # deleted just now
        raise _not_found(found.id)
    return Artifact(
        artifact_id=found.id,
        media_type=found.media_type,
        size_bytes=found.size_bytes,
        offset=command.offset,
        data=data,
        eof=command.offset + length == found.size_bytes,
    )


def _not_found(artifact_id: str) -> CommandRejected:
    return CommandRejected("artifact_not_found", details={"artifact_id": artifact_id})
