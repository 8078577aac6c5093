"""The project files that the user trusts, by path, while they have the trusted hash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nousd.daemon.eventlog.log import CommitHandle, Log
from nousd.errors import CommandRejected
from nousd.wire.events import TrustUpdated
from nousd.wire.limits import TRUSTED_FILES_MAX


class Trust:
    """The trust in project files, from the log. Before the log is open, nothing is trusted."""

    def __init__(self) -> None:
        self._trusted: dict[str, str] = {}

    def remember(self, trusted: Mapping[str, str]) -> None:
        """Take over the trusted files from the log."""
        self._trusted = dict(trusted)

    def trusts(self, path: Path | str, file_hash: str) -> bool:
        """Return whether the user trusts the file at that path with that hash."""
        return bool(file_hash) and self._trusted.get(str(path)) == file_hash

    def paths(self) -> tuple[str, ...]:
        """Return the paths of the trusted files, including files that have changed since."""
        return tuple(self._trusted)

    def update(self, log: Log, path: str, file_hash: str | None) -> CommitHandle:
        """Trust a file with that hash; None revokes the trust. The handle is resolved when the change is
        durable.

        Raises:
            CommandRejected: ``too_many_trusted_files``.
        """
        is_new = file_hash is not None and path not in self._trusted
        if is_new and len(self._trusted) >= TRUSTED_FILES_MAX:
            raise CommandRejected("too_many_trusted_files")
        handle = log.submit(log.encode((TrustUpdated(session_id="", path=path, hash=file_hash),)))

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is not None:
                return
            if file_hash is None:
                self._trusted.pop(path, None)
            else:
                self._trusted[path] = file_hash

        handle.when_resolved(on_resolved)
        return handle
