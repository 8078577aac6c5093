"""``nousd bundle``: a single file with everything that a bug report needs.

The bundle is meant to be shared, so everything in it is redacted (``archive``), and only text is
included. Nothing is changed, and a daemon may be running: the log is read in one transaction. A part
that cannot be read, such as the log on a failing disk, is listed in the manifest with the reason; the
other parts are still included.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import apsw
import msgspec
import trio

from nousd import __version__
from nousd.admin.bundle import log as bundle_log
from nousd.admin.bundle.archive import Archive
from nousd.admin.doctor.doctor import doctor
from nousd.admin.reading.deletions import find_doomed
from nousd.admin.reading.log_files import open_log
from nousd.client.blocking import Connection
from nousd.config.report import report
from nousd.config.resolve import ResolvedSettings
from nousd.errors import ClientError, ConfigError, NousdError, SessionNotFound, StoreError
from nousd.redaction.redactor import Redactor
from nousd.redaction.rules import RULES, names_secret
from nousd.redaction.rules import user_rules as rules_of
from nousd.runtime_paths import locations
from nousd.runtime_paths.tokens import existing_http_token
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from nousd.wire.commands import COMMANDS
from nousd.wire.events import EVENTS, FROZEN_EVENTS
from nousd.wire.events.sessions import CONTRACT_VERSION
from nousd.wire.limit_table import LIMITS

ANSWER_SECONDS: Final = 5.0
"""Maximum wait for a daemon's capabilities."""

_DAMAGED_NAMED: Final = 20
"""Maximum number of damaged events that are listed; all are counted."""

KNOWN: Final = "[redacted:known]"
"""Replaces every occurrence of a secret from the settings or the environment."""


_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})
"""Variables with the current directory. Their names resemble those of passwords, but they hold paths."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum uncompressed bytes of the parts of a bundle.

    Args:
        events: the lines of the newest events.
        artifact: one artifact; a longer one is left out.
        artifacts: all artifacts together, newest first.
        log: the end of the diagnostic log.
    """

    events: int = 64 * 1024 * 1024
    artifact: int = 1024 * 1024
    artifacts: int = 32 * 1024 * 1024
    log: int = 4 * 1024 * 1024


class BundleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a bundle.

    Args:
        session_id: the only session to include; None for all.
        flags, environ, config: the sources of the settings, for ``doctor``.
    """

    resolved: ResolvedSettings
    session_id: str | None = None
    flags: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}
    config: Path | None = None
    limits: Limits = Limits()


class BundleReport(msgspec.Struct, frozen=True):
    """The content of a bundle; ``redacted`` is the number of removed secrets."""

    path: str
    files: int
    left_out: int
    redacted: int

    @property
    def summary(self) -> str:
        """One line for people."""
        return (
            f"{self.path}: {self.files} files, {self.left_out} things left out,"
            f" {self.redacted} secrets redacted; see manifest.json in it"
        )


def bundle(request: BundleRequest, target: Path, *, overwrite: bool = False) -> BundleReport:
    """Write a bundle to ``target``, readable only by the user.

    Raises:
        SessionNotFound: the log has no such session.
        StoreError: ``target`` exists and may not be overwritten, or cannot be written. Nothing is left
            there.
    """
    if os.path.lexists(target):
        if target.is_symlink() or not target.is_file():
            raise StoreError(f"{target} exists and is not a regular file")
        if not overwrite:
            raise StoreError(f"{target} exists; --force overwrites it")
    try:
        with _create_partial_file(target) as (half, file):
            report = write_bundle(request, file, str(target))
            file.close()
            half.rename(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    return report


@contextmanager
def _create_partial_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Provide a new private file beside the target; remove it if it still exists at the end."""
    half = target.with_name(f".{target.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(half, flags, 0o600), "wb") as file:
            yield half, file
    finally:
        with suppress(FileNotFoundError):
            half.unlink()


def write_bundle(request: BundleRequest, output: IO[bytes], name: str) -> BundleReport:
    """Write a bundle to a stream; ``name`` is its name in the report. See ``bundle``.

    Raises:
        SessionNotFound: the log has no such session.
        OSError: the output cannot be written.
    """
    redactor = Redactor(
        _find_secrets(request),
        rules=(*rules_of(request.resolved.settings.redact), *RULES),
        mark=KNOWN,
    )
    now = datetime.now(UTC)
    archive = Archive(output, redactor, now)
    for item, add in _PARTS.items():
        with _omit_on_error(item, archive):
            add(request, archive)
    archive.close(
        {
            "generated_at": now.isoformat(),
            "session": request.session_id or "all",
            "limits": msgspec.to_builtins(request.limits),
            "versions": _versions(),
        }
    )
    return BundleReport(
        name, len(archive.files), len(archive.left_out), sum(redactor.counts.values())
    )


@contextmanager
def _omit_on_error(item: str, archive: Archive) -> Iterator[None]:
    try:
        yield
    except SessionNotFound:
        raise
    except (NousdError, apsw.Error, msgspec.MsgspecError, OSError, ValueError) as error:
        if archive.is_broken:
            raise
        archive.leave_out(item, f"could not be had: {error}")


def _find_secrets(request: BundleRequest) -> Iterator[str]:
    """Yield the known secrets: from the settings and the environment, and the HTTP token."""
    # An unusable token file is not part of a bundle either.
    with suppress(ConfigError):
        token = existing_http_token(locations.http_token_file(request.resolved.settings.state_dir))
        if token is not None:
            yield token
    for provider in request.resolved.settings.providers.values():
        if provider.api_key is not None:
            yield provider.api_key.reveal()
    for name, value in request.environ.items():
        if names_secret(name) and name not in _FOLDERS:
            yield value


# --- parts of the bundle ---------------------------------------------------------------------


def _versions() -> dict[str, str]:
    return {
        "nousd": __version__,
        "contract": CONTRACT_VERSION,
        "events": str(EVENT_SCHEMA_VERSION),
        "python": sys.version.split()[0],
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "msgspec": msgspec.__version__,
        "trio": trio.__version__,
        "system": platform.platform(),
    }


def _add_versions(_request: BundleRequest, archive: Archive) -> None:
    archive.add_json("versions.json", _versions())


def _add_doctor(request: BundleRequest, archive: Archive) -> None:
    found = doctor(request.flags, request.environ, request.config)
    archive.add_text("doctor.txt", "\n".join([*map(str, found.checks), found.summary, ""]))


def _add_capabilities(request: BundleRequest, archive: Archive) -> None:
    """Add the capabilities of the running daemon, or those of the code if no daemon answers."""
    try:
        with Connection(request.resolved.settings.socket, timeout_seconds=ANSWER_SECONDS) as daemon:
            capabilities = {"from": "the daemon", **daemon.request("get_capabilities", {}).payload}
    except ClientError as error:
        capabilities = {
            "from": f"the code, as no daemon answers: {error}",
            "protocol": CONTRACT_VERSION,
            "commands": list(COMMANDS),
            "events": list(EVENTS),
            "frozen_events": list(FROZEN_EVENTS),
            "limits": {name: value for name, (value, _) in LIMITS.items()},
        }
    archive.add_json("capabilities.json", capabilities)


def _add_settings(request: BundleRequest, archive: Archive) -> None:
    archive.add_text("settings.txt", "\n".join([*map(str, report(request.resolved)), ""]))


def _add_log(request: BundleRequest, archive: Archive) -> None:
    path = locations.database_file(request.resolved.settings.state_dir)
    if not path.exists():
        raise StoreError(f"there is no log at {path}")
    with open_log(path) as connection:
        connection.execute("BEGIN")
        if request.session_id is not None:
            _require_session(connection, request.session_id)
        with _omit_on_error("the events", archive):
            find_doomed(connection, "main")
            _add_events(connection, request, archive)
        with _omit_on_error("the artifacts", archive):
            _add_artifacts(connection, request, archive)


def _require_session(connection: apsw.Connection, session_id: str) -> None:
    query = "SELECT 1 FROM sessions WHERE session_id = ? AND NOT deleted"
    if connection.execute(query, (session_id,)).get is None:
        raise SessionNotFound(f"there is no session {session_id} in the log")


def _add_events(connection: apsw.Connection, request: BundleRequest, archive: Archive) -> None:
    events = bundle_log.Events(connection, request.session_id, bytes_max=request.limits.events)
    calls = bundle_log.ToolCalls()

    def note_calls() -> Iterator[dict[str, Any]]:
        for event in events:
            calls.note(event)
            yield event

    if events.omitted:
        archive.leave_out(
            f"the {events.omitted} oldest events", "they are past the limit of events"
        )
    archive.add_json_lines("events.jsonl", note_calls())
    archive.add_json("tool-transcripts.json", list(calls.records.values()))
    if events.damaged:
        named = ", ".join(f"evt-{seq}" for seq in sorted(events.damaged)[:_DAMAGED_NAMED])
        reason = "they cannot be read; nousd check says more"
        archive.leave_out(f"{len(events.damaged)} damaged events: {named}", reason)


def _add_artifacts(connection: apsw.Connection, request: BundleRequest, archive: Archive) -> None:
    if not bundle_log.has_known_artifacts(connection):
        reason = "the log is of another version: a daemon of this one brings it up to date"
        archive.leave_out("all artifacts", reason)
        return
    room = request.limits.artifacts
    for stored in bundle_log.list_artifacts(connection, request.session_id):
        reason = _reason_against(stored, room, request.limits)
        text = None if reason else bundle_log.text_of(connection, stored)
        if reason or text is None:
            item = f"artifact {stored.id} ({stored.media_type}, {stored.size_bytes} bytes)"
            archive.leave_out(item, reason or "is not text")
            continue
        room -= stored.size_bytes
        archive.add_document(f"artifacts/{stored.id.replace(':', '-')}.txt", text)


def _reason_against(stored: bundle_log.StoredArtifact, room: int, limits: Limits) -> str:
    """Return why an artifact is left out, or an empty string."""
    if stored.media_type is None:
        return "is missing in the log"
    if not _may_be_text(stored.media_type):
        return "is not text"
    if stored.size_bytes > limits.artifact:
        return f"is longer than {limits.artifact} bytes"
    return f"together they are longer than {limits.artifacts} bytes" * (stored.size_bytes > room)


def _may_be_text(media_type: str) -> bool:
    name = media_type.partition(";")[0].strip().lower()
    return name.startswith("text/") or name.endswith(("/json", "+json", "/xml", "+xml", "ndjson"))


def _add_daemon_log(request: BundleRequest, archive: Archive) -> None:
    path = request.resolved.settings.log_file
    if path is None:
        archive.leave_out("the daemon's own log", "goes to standard error, not to a file")
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - request.limits.log))
        content = file.read(request.limits.log)
    if size > request.limits.log:
        reason = f"is longer than {request.limits.log} bytes"
        archive.leave_out(f"the beginning of {path.name}", reason)
        # The first line is cut and may begin in the middle of a secret.
        content = content.partition(b"\n")[2]
    archive.add_text("nousd.log", content.decode(errors="replace"))
    if path.with_name(f"{path.name}.1").exists():
        archive.leave_out(f"{path.name}.1 and older", "only the newest log file is taken")


_PARTS: Final[Mapping[str, Callable[[BundleRequest, Archive], None]]] = {
    "versions": _add_versions,
    "doctor": _add_doctor,
    "capabilities": _add_capabilities,
    "settings": _add_settings,
    "the log": _add_log,
    "the daemon's own log": _add_daemon_log,
}
"""Name of a part -> the function that adds it."""
