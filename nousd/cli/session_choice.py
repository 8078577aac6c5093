"""Finds the session that a command refers to: the named one, or that of the current folder.

``folders_of`` and ``matching`` are pure; the other functions query the daemon. The daemon's active
session is not used, because another client may change it at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nousd.cli.render.people import format_folder
from nousd.client.blocking import Connection
from nousd.errors import ClientError

Row = Mapping[str, Any]
"""A session in the response to ``list_sessions``."""

DAEMONS_CHOICE: Final = "@default"
"""In place of a session, leaves the choice to the daemon: the active session, or all sessions for
commands that then mean all."""

VARIABLE: Final = "NOUSD_SESSION"

_PREFIX: Final = "sess-"
_PREFIX_DIGITS_MIN: Final = 4
"""Minimum digits of an id prefix; otherwise, with one session, any digit would match."""
_PAGE_ROWS: Final = 1000
_PAGES_MAX: Final = 100
_SHOWN_MAX: Final = 8
"""Maximum number of sessions that an error lists."""

# --- without a daemon ------------------------------------------------------------------------


def folders_of(cwd: Path, home: Path, is_repository: Callable[[Path], bool]) -> list[Path]:
    """Return the folders whose sessions are used in a folder, the nearest first.

    These are the folder and its parents up to the root of its repository, excluding the home directory
    and the root of the file system, unless the folder itself is one of them.

    Args:
        cwd: the absolute folder with links resolved, as is ``home``.
        is_repository: returns whether a folder is the root of a repository.
    """
    folders = [cwd]
    for folder in cwd.parents:
        is_above_home = home.is_relative_to(folder)
        if is_repository(folders[-1]) or is_above_home or folder == Path(cwd.anchor):
            break
        folders.append(folder)
    return folders


def matching(rows: Sequence[Row], text: str) -> list[Row]:
    """Return the sessions that match a text by id, else by name or title, else by an id prefix.

    Args:
        text: the text; an id prefix may omit ``sess-`` and must have at least four digits.
    """
    digits = text.removeprefix(_PREFIX)
    matchers: tuple[Callable[[Row], bool], ...] = (
        lambda row: row["session_id"] == text,
        lambda row: text in _names(row),
        lambda row: text.casefold() in {name.casefold() for name in _names(row)},
        lambda row: (
            len(digits) >= _PREFIX_DIGITS_MIN
            and row["session_id"].removeprefix(_PREFIX).startswith(digits)
        ),
    )
    return next((found for matcher in matchers if (found := list(filter(matcher, rows)))), [])


def _names(row: Row) -> list[str]:
    return [row[key] for key in ("name", "title") if row.get(key)]


# --- with a daemon ---------------------------------------------------------------------------


def find_session(daemon: Connection, text: str, *, is_deleted: bool = False) -> str:
    """Return the id of the only session that matches a text.

    Args:
        is_deleted: whether to search the sessions whose deletion is scheduled instead of the others.

    Raises:
        ClientError: no session matches, or several.
    """
    rows = list(_all_sessions(daemon, is_deleted=is_deleted))
    found = matching(rows, text)
    if len(found) == 1:
        return str(found[0]["session_id"])
    if found:
        lines = [f"  {_label(row)}" for row in found[:_SHOWN_MAX]]
        more = [f"  and {len(found) - _SHOWN_MAX} more"] if len(found) > _SHOWN_MAX else []
        raise ClientError("\n".join([f'session "{text}" can be one of:', *lines, *more]))
    from difflib import get_close_matches

    near = get_close_matches(text, {name for row in rows for name in _names(row)}, n=1)
    hint = f'; the nearest is "{near[0]}"' if near else ""
    kind, flag = ("deleted session", " --deletion-scheduled") if is_deleted else ("session", "")
    raise ClientError(f'no {kind} "{text}"{hint}; list them with: nousctl session list{flag}')


def _all_sessions(daemon: Connection, *, is_deleted: bool) -> Iterator[Row]:
    page: dict[str, Any] = {"limit": _PAGE_ROWS, "children": True}
    if is_deleted:
        page["deletion_scheduled"] = True
    for _ in range(_PAGES_MAX):
        answer = daemon.request("list_sessions", page).payload
        rows = answer.get("sessions", [])
        yield from rows
        if not answer.get("has_more"):
            return
        page["before"] = rows[-1]["session_id"]


def _label(row: Row) -> str:
    name = next((f' "{name}"' for name in reversed(_names(row))), "")
    return f"{row['session_id']}{name} in {format_folder(row['workspace'])}"


def session_here(daemon: Connection) -> str | None:
    """Return the id of the newest session of the current folder, else of its nearest parent; or None."""
    for folder in folders_of(current_folder(), _home(), lambda path: (path / ".git").exists()):
        query = {"workspace": str(folder), "archived": False, "limit": 1}
        rows = daemon.request("list_sessions", query).payload.get("sessions", ())
        if rows:
            return str(rows[0]["session_id"])
    return None


def require_session_here(daemon: Connection) -> str:
    """Return the id of the current folder's session, as ``session_here``.

    Raises:
        ClientError: there is none.
    """
    session_id = session_here(daemon)
    if session_id is None:
        raise ClientError(
            f"no session in {format_folder(current_folder())}; start one with: nousctl prompt TEXT,"
            " or name one with --session; list them with: nousctl session list"
        )
    return session_id


def new_session_here(daemon: Connection) -> str:
    """Create a session in the current folder and return its id.

    Raises:
        ClientError: as ``workspace_here``.
        Refused: the daemon does not allow the folder.
    """
    payload = {"workspace": workspace_here(), "activate": False}
    return str(daemon.request("new_session", payload).payload["session_id"])


def workspace_here() -> str:
    """Return the current folder as the workspace of a new session.

    Raises:
        ClientError: the folder contains the home directory, which is hardly intended.
    """
    folder, home = current_folder(), _home()
    if home.is_relative_to(folder):
        shown = format_folder(folder)
        raise ClientError(
            f"{shown} is too wide to be a workspace by itself: go to the folder of a project, or name"
            f" it: nousctl session new --workspace {shown}"
        )
    return str(folder)


def _home() -> Path:
    return Path(os.path.realpath(Path.home()))


def current_folder() -> Path:
    """Return the current folder, with links resolved. Raise ClientError if it does not exist."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ClientError(f"the current folder cannot be used: {error.strerror}") from None
