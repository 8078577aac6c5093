"""Writes by which git would run a program although its user only looks: ``status``, ``diff``, ``log``.

git looks for a repository in the folder where it is started and in those above. Its sign is not the name
``.git``: any folder with ``HEAD``, ``objects`` and ``refs`` is one, or with ``HEAD`` and ``commondir``,
and git then runs what the ``config`` beside them names. So a write is judged by its result, as git
judges it. What ``HEAD`` says is not looked at: it can be said later.

The name ``.git`` itself is one of the protected paths (``machine.policy.protected_paths``), as are files
that other programs obey. Everything here blocks. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from nousd.tools.fs.outside_paths import UP, Parts
from nousd.tools.fs.regular_file import beginning_of

_PARTS: Final = ("HEAD", "objects", "refs", "commondir")

_ATTRIBUTES: Final = ".gitattributes"
_ATTRIBUTES_BYTES_MAX: Final = 1024 * 1024

_SET_BY_NAME: Final = (
    rb"text|binary|crlf|ident|delta|whitespace|export-ignore|export-subst|lockable"
    rb"|(?:linguist|gitlab)-[a-z-]+"
)
"""Attributes of git and of hosts of repositories that need no value. A user who makes a macro of one
has its driver run nearly everywhere already.
"""

_MACRO: Final = b"[attr]"
"""How a line begins that gives several attributes one name."""


def why_git_obeys(workdir: Path, results: Mapping[Parts, bytes | None]) -> str:
    """Return why git would obey the results of a call, for people; "" if it would not.

    Args:
        workdir: the folder that the paths are relative to.
        results: real path -> what the file will hold, None if it is removed. Only the content of
            ``.gitattributes`` is looked at.
    """
    removed = {parts for parts, data in results.items() if data is None}
    folder = repository_around(workdir, results.keys() - removed, removed)
    if folder is not None:
        name = "/".join(folder) or "the workspace"
        return f"git takes {name} for a repository, and runs programs that files in it name"
    for parts, data in results.items():
        if is_attributes(parts) and drivers_in(data) - drivers_in(
            beginning_of(workdir.joinpath(*parts), _ATTRIBUTES_BYTES_MAX)
        ):
            name = "/".join(parts)
            return f"git runs a program for each file to which {name} gives a driver, or a macro"
    return ""


def is_attributes(parts: Parts) -> bool:
    """Return whether a path is one of the files whose content counts."""
    return parts[-1:] != () and parts[-1].casefold() == _ATTRIBUTES


def repository_around(
    workdir: Path, made: Collection[Parts], removed: Collection[Parts] = ()
) -> Parts | None:
    """Return the folder that git takes for a repository, before or after a call, and that holds one of
    the paths; None if there is none.

    Args:
        made, removed: the real paths of the files that the call makes or changes, and removes.
    """
    for folder in _folders_around((*made, *removed)):
        place = workdir.joinpath(*folder)
        gone = {parts[-1].lower() for parts in removed if parts[:-1] == folder}
        new = {parts[len(folder)].lower() for parts in made if parts[: len(folder)] == folder}
        if is_repository(place) or is_repository(place, new, gone):
            return folder
    return None


def is_repository(folder: Path, made: Collection[str] = (), removed: Collection[str] = ()) -> bool:
    """Return whether git takes a folder for a repository.

    Args:
        made, removed: names in it that will be there and gone, in lower case, since the file system may
            not tell the cases apart.
    """
    # A link counts, wherever it leads: its target may come later.
    there = {
        name
        for name in _PARTS
        if os.path.lexists(f"{folder}/{name}") and name.lower() not in removed
    }
    return is_layout(there | {name for name in _PARTS if name.lower() in made})


def is_layout(names: Collection[str]) -> bool:
    """Return whether git takes a folder with these names in it for a repository."""
    return "HEAD" in names and (("objects" in names and "refs" in names) or "commondir" in names)


def _folders_around(paths: Iterable[Parts]) -> Iterator[Parts]:
    """Yield the folders above some paths: from the workspace on, or what is outside of it."""
    found: dict[Parts, None] = {}
    for parts in paths:
        above = next((count for count, name in enumerate(parts) if name != UP), len(parts))
        found |= dict.fromkeys(parts[:count] for count in range(above, len(parts)))
    yield from found


@cache
def _driver() -> re.Pattern[bytes]:
    r"""Match a line that names a driver, or sets what may be a macro: at the top of the repository, in
    its git folder or in the user's settings, ``[attr]`` gives several attributes one name. Only a name
    without a sign and a value stands for others; so ``-diff`` and ``!diff`` name no driver.

    As git reads it, ``#`` begins a comment only at the start of a line, ``\r`` separates words, NUL
    ends a line, and a pattern in quotes need not be separated from the first attribute. It is compiled
    when attributes are first read, because that takes milliseconds.
    """
    return re.compile(
        rb"""
        ^ (?:\A\xef\xbb\xbf)?+ [ \t\r]*+ (?!\#)
        (?> "(?:[^"\\\n]|\\.)*" | [^ \t\r\n]+ )             # the pattern of file names
        (?: .*[ \t\r] )?
        (?: (?:filter|diff|merge)=
          | (?! [-!] | (?:%b)(?:[ \t\r\0]|$) )              # what may be a macro
            [^= \t\r\n\0]+ (?:[ \t\r\0]|$) )
        .* $
        """
        % _SET_BY_NAME,
        re.MULTILINE | re.VERBOSE,
    )


def drivers_in(attributes: bytes | None) -> set[bytes]:
    """Return the lines of a ``.gitattributes`` that name drivers; all, if one of these defines a macro,
    because each may use that.
    """
    lines = set(_driver().findall(attributes or b""))
    if attributes is None or not any(line.strip().startswith(_MACRO) for line in lines):
        return lines
    return {line for line in attributes.splitlines() if line.strip()}
