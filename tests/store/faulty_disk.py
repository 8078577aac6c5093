"""A disk that fails on command and simulates power cuts.

::

    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            disk.fail(Fault.FULL, at=7)        # the seventh write or sync from now on, and all after
            ...
            disk.mend()

It is a VFS over the real files below SQLite's writing connection; reads are unchanged. A sync that
fails does what Linux does (since 4.13): pages that could not be written count as written from then on,
each other open file of the same name reports the failure at its next sync, once, and no later sync says
otherwise.
"""

from __future__ import annotations

import enum
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

_names: Final = itertools.count()


class Fault(enum.Enum):
    """The fate of a write or a sync."""

    FULL = "no space: nothing is written"
    TORN_FULL = "no space: half of it is written"
    ERROR = "an I/O error: nothing is written or synced"
    TORN = "an I/O error: half of it is written"
    LIE = "an I/O error, and all of it is written or synced all the same"

    @property
    def is_full(self) -> bool:
        return self in (Fault.FULL, Fault.TORN_FULL)


class FaultyDisk:
    """See the module.

    ``operations`` counts the writes, truncations and syncs since ``fail``; ``syncs`` counts all syncs
    except those of folders.
    """

    def __init__(self, seed: int = 0) -> None:
        self.operations = 0
        self.syncs = 0
        self._vfs_name = f"faulty-{next(_names)}"
        self._fault: Fault | None = None
        self._at = 0
        self._only_once = False
        self._only: Path | None = None
        self._failing_syncs = 0
        self._only_syncs_of: Path | None = None
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._files: dict[str, _Surface] = {}

    def connect(self, name: str) -> apsw.Connection:
        """Make a connection whose files lie on this disk."""
        return apsw.Connection(name, vfs=self._vfs_name)

    def fail(
        self, fault: Fault, *, at: int = 0, once: bool = False, only: Path | None = None
    ) -> None:
        """Fail the operation ``at`` from now on (0 is the next) and, unless ``once``, all later ones.

        Args:
            only: the one file whose operations count.
        """
        self.operations = 0
        self._fault, self._at, self._only_once, self._only = fault, at, once, only

    def fail_syncs(self, count: int = 1000, *, only: Path | None = None) -> None:
        """Fail the next ``count`` syncs; writes reach the kernel, but not the disk.

        Args:
            only: the one file whose syncs count.
        """
        self._failing_syncs, self._only_syncs_of = count, only

    def mend(self) -> None:
        self._fault = None
        self._failing_syncs = 0

    def count(self) -> None:
        """Start to count operations, and let all of them succeed."""
        self.mend()
        self.operations = 0

    def after_power_cut(self, path: Path, to: Path) -> Path:
        """Copy a database as a power cut may leave it: synced bytes, and any part of the rest."""
        to.mkdir()
        with self._lock:
            for name in (path.name, f"{path.name}-wal"):
                surface = self._files[str(path.with_name(name))]
                (to / name).write_bytes(surface.left_by_power_cut(self._random))
        return to / path.name

    def survive_kill(self, path: Path, to: Path) -> Path:
        """Copy a database as a kill leaves it, with as many bytes synced as in the original."""
        to.mkdir()
        with self._lock:
            for name in (path.name, f"{path.name}-wal"):
                content = path.with_name(name).read_bytes()
                (to / name).write_bytes(content)
                copied = _Surface(bytes(self._files[str(path.with_name(name))].durable))
                copied.truncate(0)
                copied.write(0, content)
                self._files[str(to / name)] = copied
        return to / path.name

    # --- the VFS ------------------------------------------------------------------------------

    def _surface(self, name: str) -> _Surface:
        return self._files.setdefault(name, _Surface(_content(name)))

    def _judge(self, path: str, *, is_sync: bool) -> Fault | None:
        self.syncs += is_sync
        if is_sync and self._failing_syncs and self._only_syncs_of in (None, Path(path)):
            self._failing_syncs -= 1
            return Fault.ERROR
        if self._only not in (None, Path(path)):
            return None
        number, self.operations = self.operations, self.operations + 1
        if self._fault is None or number < self._at:
            return None
        if self._only_once and number > self._at:
            return None
        return self._fault


class _Surface:
    """The durable bytes of a file, and the writes that are not yet durable."""

    def __init__(self, durable: bytes) -> None:
        self.durable = bytearray(durable)
        self.unsynced: list[tuple[int, bytes | None]] = []
        self.failed_syncs = 0

    def write(self, offset: int, data: bytes) -> None:
        self.unsynced.append((offset, data))

    def truncate(self, size: int) -> None:
        self.unsynced.append((size, None))

    def sync(self) -> None:
        self._apply(self.durable, self.unsynced)
        self.unsynced.clear()

    def fail_to_sync(self, chance: random.Random) -> None:
        self._apply(self.durable, [change for change in self.unsynced if chance.random() < 0.5])
        self.unsynced.clear()
        self.failed_syncs += 1

    def left_by_power_cut(self, chance: random.Random) -> bytes:
        content = bytearray(self.durable)
        share = chance.random()
        arrived = [change for change in self.unsynced if chance.random() < share]
        if arrived:
            offset, data = arrived.pop()
            torn = None if data is None else data[: chance.randrange(len(data) + 1)]
            arrived.append((offset, torn))
        self._apply(content, arrived)
        return bytes(content)

    @staticmethod
    def _apply(content: bytearray, changes: list[tuple[int, bytes | None]]) -> None:
        for offset, data in changes:
            if data is None:
                del content[offset:]
                continue
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data


def _content(name: str) -> bytes:
    path = Path(name)
    return path.read_bytes() if path.exists() else b""


class _Vfs(apsw.VFS):
    def __init__(self, name: str, disk: FaultyDisk) -> None:
        super().__init__(name, "")
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802
        return _File(name, flags, self._disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self._disk._files.pop(filename, None)
        super().xDelete(filename, False)


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], disk: FaultyDisk) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._surface = disk._surface(self._path)
        self._reported_failures = self._surface.failed_syncs
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        def write(part: bytes) -> None:
            self._surface.write(offset, part)
            super(_File, self).xWrite(part, offset)

        self._do(
            apsw.SQLITE_IOERR_WRITE, lambda: write(data), lambda: write(data[: len(data) // 2])
        )

    def xTruncate(self, size: int) -> None:  # noqa: N802
        def truncate() -> None:
            self._surface.truncate(size)
            super(_File, self).xTruncate(size)

        self._do(apsw.SQLITE_IOERR_TRUNCATE, truncate, _nothing)

    def xSync(self, flags: int) -> None:  # noqa: N802
        def sync() -> None:
            self._surface.sync()  # a real sync would only cost time

        def fail_to_sync() -> None:
            self._surface.fail_to_sync(self._disk._random)

        self._do(apsw.SQLITE_IOERR_FSYNC, sync, fail_to_sync, fail_to_sync)

    def _do(
        self,
        error_code: int,
        work: Callable[[], None],
        half: Callable[[], None],
        nothing: Callable[[], None] = lambda: None,
    ) -> None:
        is_sync = error_code == apsw.SQLITE_IOERR_FSYNC
        steps = {
            None: work,
            Fault.LIE: work,
            Fault.TORN: half,
            Fault.TORN_FULL: half,
            Fault.FULL: nothing,
            Fault.ERROR: nothing,
        }
        with self._disk._lock:
            fault = self._disk._judge(self._path, is_sync=is_sync)
            steps[fault]()
            if is_sync and self._reported_failures != self._surface.failed_syncs:
                self._reported_failures = self._surface.failed_syncs
                fault = fault or Fault.ERROR
        if fault is not None:
            # SQLite reports a sync without space as an I/O error.
            is_full = fault.is_full and not is_sync
            error = apsw.exception_for(apsw.SQLITE_FULL if is_full else error_code)
            error.args = (fault.value,)
            raise error


def _nothing() -> None:
    pass


@contextmanager
def faulty_disk(seed: int = 0) -> Iterator[FaultyDisk]:
    """Yield a disk that works until ``fail`` is called."""
    disk = FaultyDisk(seed)
    vfs = _Vfs(disk._vfs_name, disk)
    try:
        yield disk
    finally:
        vfs.unregister()
