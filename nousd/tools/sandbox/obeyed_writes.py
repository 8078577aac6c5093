"""Determines why programs would obey the results of a call, for reasons other than the names of the
files. This is checked when a call is judged, and again when it writes, because concurrent calls may
have changed the answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from nousd.tools.fs.git_layout import why_git_obeys
from nousd.tools.fs.outside_paths import Parts
from nousd.tools.sandbox.git_folders import ObeyedByGit, find_paths_named_above, find_paths_named_in
from nousd.tools.sandbox.obeyed_links import ObeyedLinks


def why_obeyed(workdir: Path, links: ObeyedLinks, results: Mapping[Parts, bytes | None]) -> str:
    """Return the reason, for people, why a program would obey the results of a call; "" if none would.

    Args:
        workdir: the folder that the paths are relative to.
        results: real path -> new content of the file, None if it is removed. The content matters only
            for files for which ``git_layout.is_attributes`` is true; for others it may be any bytes.
    """
    return (
        why_git_obeys(workdir, results)
        or _why_git_names(workdir, results)
        or links.leading_to(workdir, results.keys())
    )


def _why_git_names(workdir: Path, resolved: Iterable[Parts]) -> str:
    """Return why git would obey a file outside of the git directory; "" if it would not."""
    above = find_paths_named_above(workdir)
    named: dict[Parts, ObeyedByGit] = {}
    for parts in resolved:
        path = os.path.normpath(workdir.joinpath(*parts))
        for folder in (parts[:count] for count in range(len(parts))):
            if folder not in named:
                named[folder] = find_paths_named_in(workdir.joinpath(*folder))
        found_by_folder = [above, *(named[parts[:count]] for count in range(len(parts)))]
        if any(_is_in(path, found.paths) for found in found_by_folder):
            return f"the repository's config or hooks name {'/'.join(parts)}, which git obeys"
        if any(found.is_partial for found in found_by_folder):
            return (
                f"the repository's config is too large to tell whether it names {'/'.join(parts)}"
            )
    return ""


def _is_in(path: str, folders: Iterable[Path]) -> bool:
    # If a hook is a link, git runs its target.
    real = (os.path.realpath(folder) for folder in folders)
    return any(path == folder or path.startswith(f"{folder}/") for folder in real)
