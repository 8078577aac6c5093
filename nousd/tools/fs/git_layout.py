"""Detects writes after which read-only git commands (``status``, ``diff``, ``log``) would run programs.

git searches for a repository in its working directory and in the folders above. It does not go by the
name ``.git``: any folder with ``HEAD``, ``objects`` and ``refs``, or with ``HEAD`` and ``commondir``, is
a repository, and git runs the programs that its ``config`` names. So a write is judged by its result, by
git's own criteria. The content of ``HEAD`` is ignored, because it can be written later.

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

_HARMLESS_ATTRIBUTES: Final = (
    rb"text|binary|crlf|ident|delta|whitespace|export-ignore|export-subst|lockable"
    rb"|(?:linguist|gitlab)-[a-z-]+"
)
"""Attributes of git and of repository hosts that need no value. If the user has defined a macro with
such a name, its driver already runs in nearly every repository.
"""

_MACRO: Final = b"[attr]"
"""The beginning of a line that defines a macro: one name for several attributes."""


def why_git_obeys(workdir: Path, results: Mapping[Parts, bytes | None]) -> str:
    """Return the reason, for people, why git would obey the results of a call; "" if it would not.

    Args:
        workdir: the folder that the paths are relative to.
        results: real path -> new content of the file, None if it is removed. Only the content of
            ``.gitattributes`` is examined.
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
    """Return whether a path names a ``.gitattributes``, in upper or lower case."""
    return parts[-1:] != () and parts[-1].casefold() == _ATTRIBUTES


def repository_around(
    workdir: Path, made: Collection[Parts], removed: Collection[Parts] = ()
) -> Parts | None:
    """Return a folder that contains one of the paths, and that git takes for a repository before or
    after the call; None if there is none.

    Args:
        made, removed: the real paths of the files that the call makes or changes, and removes.
    """
    for folder in _folders_around((*made, *removed)):
        path = workdir.joinpath(*folder)
        removed_names = {parts[-1].lower() for parts in removed if parts[:-1] == folder}
        new_names = {parts[len(folder)].lower() for parts in made if parts[: len(folder)] == folder}
        if is_repository(path) or is_repository(path, new_names, removed_names):
            return folder
    return None


def is_repository(folder: Path, made: Collection[str] = (), removed: Collection[str] = ()) -> bool:
    """Return whether git takes a folder for a repository.

    Args:
        made, removed: names in it that will exist or be gone, in lower case, because the file system
            may ignore case.
    """
    # A link counts even if it is broken: its target may be created later.
    names = {
        name
        for name in _PARTS
        if os.path.lexists(f"{folder}/{name}") and name.lower() not in removed
    }
    return is_layout(names | {name for name in _PARTS if name.lower() in made})


def is_layout(names: Collection[str]) -> bool:
    """Return whether git takes a folder with these names in it for a repository."""
    return "HEAD" in names and (("objects" in names and "refs" in names) or "commondir" in names)


def _folders_around(paths: Iterable[Parts]) -> Iterator[Parts]:
    """Yield the folders above some paths: the workspace and those in it, or those outside of it."""
    found: dict[Parts, None] = {}
    for parts in paths:
        above = next((count for count, name in enumerate(parts) if name != UP), len(parts))
        found |= dict.fromkeys(parts[:count] for count in range(above, len(parts)))
    yield from found


@cache
def _driver() -> re.Pattern[bytes]:
    r"""Return a pattern of lines that name a driver or set an attribute that may be a macro.

    ``[attr]`` defines macros at the top of the repository, in its git folder or in the user's settings.
    Only a name without sign and value can be one; so ``-diff`` and ``!diff`` name no driver. As in git,
    ``#`` begins a comment only at the start of a line, ``\r`` separates words, NUL ends a line, and a
    quoted pattern need not be separated from the first attribute. The pattern is compiled on first use,
    because that takes milliseconds.
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
        % _HARMLESS_ATTRIBUTES,
        re.MULTILINE | re.VERBOSE,
    )


def drivers_in(attributes: bytes | None) -> set[bytes]:
    """Return the lines of a ``.gitattributes`` that name drivers; all lines if one of these defines a
    macro, because any line may use it.
    """
    lines = set(_driver().findall(attributes or b""))
    if attributes is None or not any(line.strip().startswith(_MACRO) for line in lines):
        return lines
    return {line for line in attributes.splitlines() if line.strip()}
