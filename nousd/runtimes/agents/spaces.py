"""Where the programs of a runtime keep their files, and which variables they receive, by namespace.

A namespace says whose log-in is used: ``default`` is the user's own, ``user:ID`` that of somebody else.
The level says what has a HOME of its own:

- ``shared``: no program of ``default``, which uses the user's HOME; each other namespace has one;
- ``namespaced``: each namespace;
- ``ephemeral``: each life of a program, after which it is removed.

A HOME of ours is a private folder for one runtime: neither two namespaces nor two runtimes share a
file.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from nousd.tools.environment import allowed_environment
from nousd.tools.fs.deep_folders import remove_folder
from nousd.wire.objects.runtimes import DEFAULT_NAMESPACE, IsolationLevel

_FOLDER_MODE: Final = 0o700
_ESCAPED: Final = re.compile(r"[^a-z0-9.@+-]")
_TEMPORARY: Final = "tmp"

_REMOVALS_MAX: Final = 20
_REMOVAL_SECONDS: Final = 0.5
"""Tries to remove what a killed daemon left, and the time between them: its programs may write for a
moment longer than it."""


class OfTheUser(NamedTuple):
    """The variables of a program that belong to the user's own log-in.

    Args:
        keys: those that only ``default`` receives.
        folders: those that name files of the user, which a program with a HOME of ours does not receive.
    """

    keys: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()

    def without_keys(self, names: Iterable[str]) -> OfTheUser:
        """Return the same, but for keys that the settings give to every namespace by name."""
        return self._replace(keys=self.keys.difference(names))


class Spaces:
    """The files and variables of one runtime's programs.

    Args:
        folder: of ours, for all runtimes; made when it is needed.
        runtime: the runtime's name.
    """

    def __init__(
        self,
        folder: Path,
        runtime: str,
        level: IsolationLevel = "shared",
        of_the_user: OfTheUser = OfTheUser(),  # noqa: B008  it is immutable
    ) -> None:
        self._folder = folder
        self._runtime = runtime
        self._level = level
        self._of_the_user = of_the_user

    def level(self, namespace: str) -> IsolationLevel:
        """Return what has a HOME of its own: of the namespaces only ``default`` can have the user's."""
        is_own = self._level == "shared" and namespace != DEFAULT_NAMESPACE
        return "namespaced" if is_own else self._level

    def home(self, namespace: str) -> Path | None:
        """Return the HOME that a namespace keeps, which need not exist; None if it has none of ours."""
        if self.level(namespace) != "namespaced":
            return None
        return self._folder / "namespaces" / folder_name(namespace) / self._runtime

    @asynccontextmanager
    async def opened(self, namespace: str) -> AsyncIterator[Path | None]:
        """Provide the HOME of a life; None for the user's own. An ephemeral one is removed at the end.

        Raises:
            OSError: it cannot be made.
        """
        if self.level(namespace) != "ephemeral":
            home = self.home(namespace)
            if home is not None:
                await trio.to_thread.run_sync(_make, self._folder, home)
            yield home
            return
        home = ephemeral_folder(self._folder) / secrets.token_hex(8)
        try:
            await trio.to_thread.run_sync(_make, self._folder, home)
            yield home
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(remove_folder, home)

    def environment(
        self, namespace: str, home: Path | None, variables: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the whole environment of a program.

        Args:
            home: as ``opened`` gives it.
            variables: those besides the allowed ones of any program.
        """
        withheld = self.withheld(namespace)
        given = {**allowed_environment(), **variables, **variables_of(home)}
        return {name: value for name, value in given.items() if name not in withheld}

    def withheld(self, namespace: str) -> frozenset[str]:
        """Return the names of variables that a namespace does not receive."""
        keys, folders = self._of_the_user
        withheld = frozenset[str]() if namespace == DEFAULT_NAMESPACE else keys
        return withheld if self.level(namespace) == "shared" else withheld | folders

    def user_folders(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of an environment that name files of the user."""
        folders = self._of_the_user.folders
        return {name: value for name, value in environment.items() if name in folders}


def variables_of(home: Path | None) -> dict[str, str]:
    """Return the variables that make a program keep its files in a HOME of ours."""
    return {} if home is None else {"HOME": str(home), "TMPDIR": str(home / _TEMPORARY)}


def folder_name(namespace: str) -> str:
    """Return the folder of a namespace; no two have the same, even where case does not count."""
    kind, _, id_ = namespace.partition(":")
    if not id_:
        return kind
    escaped = _ESCAPED.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), id_)
    return f"{kind}-{escaped}"


def ephemeral_folder(folder: Path) -> Path:
    """Return the folder of the HOMEs that are kept for one life."""
    return folder / "ephemeral"


async def remove_leftovers(left: Iterable[Path]) -> None:
    """Remove the HOMEs that a killed daemon has left."""
    for home in left:
        for _ in range(_REMOVALS_MAX):
            await trio.to_thread.run_sync(remove_folder, home)
            if not home.exists():
                break
            await trio.sleep(_REMOVAL_SECONDS)


def _make(folder: Path, home: Path) -> None:
    path = folder
    for name in ("", *home.relative_to(folder).parts, _TEMPORARY):
        path /= name
        path.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        # The umask may have taken rights of our own.
        path.chmod(_FOLDER_MODE)
