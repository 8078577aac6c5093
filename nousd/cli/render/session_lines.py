"""Renders sessions and a project's files for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nousd.cli.render.people import age, format_folder, local_time

Payload = Mapping[str, Any]


def render_sessions(payload: Payload) -> Iterator[str]:
    """Yield one line per session, and a hint if there are more."""
    rows = payload["sessions"]
    for row in rows:
        mark = "*" if row["active"] else " "
        folder = f"  {format_folder(row['workspace'])}" if "workspace" in row else ""
        yield f"{mark} {row['session_id']}  {age(row['updated_at']):>4}  {_state(row)}{folder}"
    if payload["has_more"]:
        yield f"({len(rows)} of {payload['count']}; more: --before {rows[-1]['session_id']})"


def render_session_matches(payload: Payload) -> Iterator[str]:
    """Yield two lines per match, or a line if nothing matches, and a hint for the next page."""
    for match in payload["matches"]:
        row = match["session"]
        yield f"{row['session_id']}  {age(row['updated_at']):>4}  {_state(row)}"
        yield f"    {match.get('role', 'title')}: {match['snippet']}"
    if not payload["matches"]:
        yield "nothing found"
    if "before" in payload:
        more = "searched in part" if payload["partial"] else "more"
        yield f"({more}: --before {payload['before']})"


def _state(row: Payload) -> str:
    called = row.get("title") or row.get("name")
    name = f' "{called}"' if called else ""
    source = f" from {row['source']}" if "source" in row else ""
    if "origin" in row:
        of = f", a task of {row['origin']['session_id']}"
    else:
        of = f", a branch of {row['parent_id']}" if "parent_id" in row else ""
    archived = ", archived" if row["archived"] else ""
    unread = ", unread" if row.get("unread") else ""
    deletion = f", deleted at {local_time(row['delete_at'])}" if "delete_at" in row else ""
    runtime = f", runs by {row['runtime']}" if "runtime" in row else ""
    runtime += f" for {row['runtime_namespace']}" if "runtime_namespace" in row else ""
    return f"{row['run_state']}{name}{source}{of}{runtime}{unread}{archived}{deletion}"


def render_session_record(payload: Payload) -> Iterator[str]:
    """Yield the facts about one session, one line each."""
    row = payload["session"]
    yield f"{row['session_id']}  {_state(row)}"
    yield f"created   {local_time(row['created_at'])}, updated {local_time(row['updated_at'])}"
    yield f"workspace {format_folder(row['workspace'])}"
    yield f"model     {row['provider']} {row['model']}, mode {row['permission_mode']}"
    if "attached_from" in row:
        reason = f": {row['attach_reason']}" if "attach_reason" in row else ""
        folder = format_folder(row["attached_from"])
        yield f"before    {folder}, until {local_time(row['attached_at'])}{reason}"
    if "override" in row:
        yield f"override  until {local_time(row['override']['expires_at'])}"
    for key in ("parent_id", "run_id", "leaf_id"):
        if key in row:
            yield f"{key.removesuffix('_id'):<9} {row[key]}"
    if "sampling" in row:
        values = (f"{key} {value:g}" for key, value in row["sampling"].items())
        yield f"sampling  {', '.join(values)}"
    for decision, texts in row.get("rules", {}).items():
        for text in texts:
            yield f"rule      {decision} {text}"
    if "source_metadata" in row:
        yield f"kept      {', '.join(row['source_metadata'])}".rstrip()


def render_project_files(payload: Payload) -> Iterator[str]:
    """Yield the lines that show ``list_trust``."""
    for file in payload["files"]:
        yield from file_lines(file)
    if not payload["files"]:
        yield f"the project at {payload['root']} has no settings of its own"


def file_lines(file: Payload) -> Iterator[str]:
    """Yield the lines that show one file of a project."""
    state = "trusted" if file["trusted"] else "not trusted"
    yield f"{file['path']}: {state}"
    yield f"  {file['hash'] or 'it is not there, or cannot be read'}"
    for name, says in (
        ("restricts", "counts in any case"),
        ("adds", "counts if trusted"),
        ("problems", "never counts"),
    ):
        yield from (f"  {says}: {line}" for line in file.get(name, ()))
