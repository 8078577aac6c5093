"""The processes of the machine, as the kernel shows them in ``/proc``.

Standard library only, like all modules that the fork server loads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator


class Process:
    """A process as the kernel reports it; ``pages`` are its resident pages, ``tasks`` its threads."""

    def __init__(self, id: int, facts: list[bytes]) -> None:
        self.id = id
        self.is_dead = facts[0] in (b"Z", b"X")
        self.parent = int(facts[1])
        self.group = int(facts[2])
        self.tasks = int(facts[17])
        self.pages = int(facts[21])


def descendants(root: int, excluded: Collection[int] = ()) -> Iterator[Process]:
    """Yield all processes below ``root``, except the excluded ones and those below them."""
    children: dict[int, list[Process]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    ahead = list(children.get(root, ()))
    while ahead:
        found = ahead.pop()
        if found.id not in excluded:
            yield found
            ahead.extend(children.get(found.id, ()))


def children_of(process: int) -> list[int]:
    """Return the children of a process that has one thread."""
    with open(f"/proc/{process}/task/{process}/children", "rb") as file:  # noqa: PTH123
        return [int(child) for child in file.read().split()]


def count_tasks(user: int) -> int:
    """Return how many threads all processes of a user have."""
    return sum(process.tasks for process in _processes() if _owner(process.id) == user)


def own_bytes(process: int) -> int:
    """Return the memory of a process in bytes, without pages of files."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as file,  # noqa: PTH123
    ):
        found = dict(line.partition(":")[::2] for line in file)
        return sum(
            int(found.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "RssShmem")
        )
    return 0


def _processes() -> Iterator[Process]:
    names: list[str] = []
    with contextlib.suppress(OSError):  # such as too many open files: the next scan finds them
        names = os.listdir("/proc")  # noqa: PTH208
    for name in names:
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # The program's name is in parentheses and may contain anything.
            facts = file.read().rpartition(b")")[2].split()
            yield Process(int(name), facts)


def _owner(process: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{process}").st_uid
    return None
