"""The files and environment variables of a runtime's programs, by namespace.

A namespace selects a log-in: ``default`` is the user's own, ``user:ID`` that of another user. The
isolation level decides who has a private HOME instead of the user's:

- ``shared``: each namespace except ``default``;
- ``namespaced``: each namespace;
- ``ephemeral``: each life of a program, after which it is removed.

A private HOME is a folder in nousd's state folder for one namespace and one runtime: no two of them
share a file.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from nousd.runtimes.agents.time_limits import REMOVAL_SECONDS
from nousd.tools.environment import filter_environment
from nousd.tools.fs.deep_folders import remove_folder, walk
from nousd.wire.objects.runtimes import DEFAULT_NAMESPACE, IsolationLevel

_FOLDER_MODE: Final = 0o700
_GROUP_AND_OTHERS: Final = 0o077
_ESCAPED: Final = re.compile(r"[^a-z0-9.@+-]")
_TEMPORARY: Final = "tmp"

_REMOVALS_MAX: Final = 20
"""Maximum number of attempts to remove a HOME left by a killed daemon, whose programs may keep writing
for a moment.
"""


class OwnVariables(NamedTuple):
    """The names of the environment variables that decide which log-in a program uses.

    Args:
        keys: variables with keys, which only ``default`` receives.
        folders: variables that name files of the user, which a program with a private HOME does not
            receive.
        temporary: variables that name the folder for temporary files, which a private HOME contains.
    """

    keys: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    temporary: tuple[str, ...] = ("TMPDIR",)

    def without_keys(self, names: Iterable[str]) -> OwnVariables:
        """Return a copy without some keys, because the settings pass these to every namespace."""
        return self._replace(keys=self.keys.difference(names))


class Spaces:
    """The files and variables of one runtime's programs.

    Args:
        folder: the parent folder of the private HOMEs of all runtimes; created when it is needed.
        runtime: the runtime's name.
    """

    def __init__(
        self,
        folder: Path,
        runtime: str,
        level: IsolationLevel = "shared",
        own: OwnVariables = OwnVariables(),  # noqa: B008  it is immutable
    ) -> None:
        self._folder = folder
        self._runtime = runtime
        self._level = level
        self._own = own

    def level(self, namespace: str) -> IsolationLevel:
        """Return the isolation level of a namespace: only ``default`` can use the user's HOME."""
        has_own_home = self._level == "shared" and namespace != DEFAULT_NAMESPACE
        return "namespaced" if has_own_home else self._level

    def home(self, namespace: str) -> Path | None:
        """Return a namespace's permanent private HOME, which need not exist; None if it has none."""
        return self._build_kept_path(namespace) if self.level(namespace) == "namespaced" else None

    def _build_kept_path(self, namespace: str) -> Path:
        return self._folder / "namespaces" / folder_name(namespace) / self._runtime

    def _build_fresh_path(self) -> Path:
        return ephemeral_folder(self._folder) / secrets.token_hex(8)

    @asynccontextmanager
    async def open_home(self, namespace: str) -> AsyncIterator[Path | None]:
        """Provide the private HOME of a life; None if it uses the user's. Afterwards an ephemeral HOME
        is removed, and the files in a permanent one are made private.

        Raises:
            OSError: the HOME cannot be created.
        """
        level = self.level(namespace)
        if level == "shared":
            yield None
            return
        is_permanent = level == "namespaced"
        home = self._build_kept_path(namespace) if is_permanent else self._build_fresh_path()
        try:
            await trio.to_thread.run_sync(_make, self._folder, home)
            yield home
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(
                    _make_private if is_permanent else remove_folder, home
                )

    def environment(
        self, namespace: str, home: Path | None, variables: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the complete environment of a program.

        Args:
            home: the HOME from ``open_home``.
            variables: the agent's variables, in addition to those allowed for any program.
        """
        withheld = self.list_withheld(namespace)
        found = {**filter_environment(), **variables}
        env = {name: value for name, value in found.items() if name not in withheld}
        if home is not None:
            env |= {"HOME": str(home)} | dict.fromkeys(self._own.temporary, str(home / _TEMPORARY))
        return env

    def list_withheld(self, namespace: str) -> frozenset[str]:
        """Return the names of variables that a namespace does not receive."""
        withheld = frozenset[str]() if namespace == DEFAULT_NAMESPACE else self._own.keys
        return withheld if self.level(namespace) == "shared" else withheld | self._own.folders

    def user_folders(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of an environment that name files of the user."""
        folders = self._own.folders
        return {name: value for name, value in environment.items() if name in folders}


def folder_name(namespace: str) -> str:
    """Return the folder name of a namespace. Names differ even on a case-insensitive file system."""
    kind, _, id_ = namespace.partition(":")
    if not id_:
        return kind
    escaped = _ESCAPED.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), id_)
    return f"{kind}-{escaped}"


def ephemeral_folder(folder: Path) -> Path:
    """Return the parent folder of the ephemeral HOMEs."""
    return folder / "ephemeral"


def leftovers(folder: Path) -> tuple[Path, ...]:
    """Return the ephemeral HOMEs that a killed daemon has left, before this daemon creates any."""
    lives = ephemeral_folder(folder)
    return tuple(lives.iterdir()) if lives.is_dir() else ()


async def remove_leftovers(homes: Iterable[Path]) -> None:
    """Remove the HOMEs that a killed daemon has left."""
    for home in homes:
        for _ in range(_REMOVALS_MAX):
            await trio.to_thread.run_sync(remove_folder, home)
            if not home.exists():
                break
            await trio.sleep(REMOVAL_SECONDS)


def _make(folder: Path, home: Path) -> None:
    path = folder
    for name in ("", *home.relative_to(folder).parts, _TEMPORARY):
        path /= name
        path.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        # The umask may have removed the owner's rights.
        path.chmod(_FOLDER_MODE)


def _make_private(home: Path) -> None:
    """Remove the rights of other users from the files in a HOME: a program may have set modes itself."""
    for folder, folders, others in walk(str(home)):
        for name in (*folders, *others):
            with suppress(OSError):
                _take_rights(Path(folder, name))


def _take_rights(path: Path) -> None:
    if not path.lstat().st_mode & _GROUP_AND_OTHERS:
        return
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchmod(file, stat.S_IMODE(os.fstat(file).st_mode) & ~_GROUP_AND_OTHERS)
    finally:
        os.close(file)
