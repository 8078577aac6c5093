"""The sections of the system prompt: the prompt itself and the instructions in files.

Each part is a source, which is logged with its hash whether it was used or not. Who reads the files
is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from nousd.wire.codec.canonical_json import digest
from nousd.wire.codec.envelope import scrub
from nousd.wire.events.models import Source

_AGENTS: Final = "# Agents that the tool task can name"

_HEADINGS: Final = {
    "user_instructions": "# The user's own instructions",
    "project_instructions": "# Instructions of the project",
    "extension": "# Instructions of an extension",
}


class SourceText(NamedTuple):
    """A source and the text that it gives; "" where nothing of it is used."""

    source: Source
    text: str = ""


def system_prompt(text: str, path: str = "") -> SourceText:
    """Return the source that the daemon's own prompt is; off if there is none.

    Args:
        path: the file it was read from, if it was.
    """
    if path:
        return of_file("system_prompt", path, text)
    if not text:
        return SourceText(Source(kind="system_prompt", enabled=False, reason="off"))
    data = text.encode()
    source = Source(kind="system_prompt", enabled=True, hash=digest(data), bytes=len(data))
    return SourceText(source, text)


def of_file(kind: str, path: str, text: str, reason: str = "") -> SourceText:
    """Return the source that a file is.

    Args:
        reason: why not all of it is used, or not as it is.
    """
    data = scrub(text).encode()
    more = {"reason": reason} if reason else {}
    if not text.strip():
        return unused(kind, reason or "empty", path)
    source = Source(
        kind=kind,  # type: ignore[arg-type]
        enabled=True,
        path=scrub(path),
        hash=digest(data),
        bytes=len(data),
        **more,
    )
    return SourceText(source, data.decode())


def agent_prompt(text: str) -> SourceText:
    """Return the source that a worker's own prompt is."""
    data = scrub(text).encode()
    source = Source(kind="agent_prompt", enabled=True, hash=digest(data), bytes=len(data))
    return SourceText(source, data.decode())


def agents_source(described: Sequence[tuple[str, str]]) -> tuple[SourceText, ...]:
    """Return the source that the names and descriptions of agents are; none if there are none."""
    if not described:
        return ()
    # On one line each: what a file says must not look like another part of the prompt.
    flat = ((name, " ".join(text.split())) for name, text in described)
    lines = (f"- {name}: {text}" if text else f"- {name}" for name, text in flat)
    data = scrub("\n".join([_AGENTS, "", *lines])).encode()
    source = Source(kind="agents", enabled=True, hash=digest(data), bytes=len(data))
    return (SourceText(source, data.decode()),)


def unused(kind: str, reason: str, path: str = "") -> SourceText:
    """Return a source that nothing is taken from; ``off`` if that was chosen."""
    more = {"path": scrub(path)} if path else {}
    enabled = reason != "off"
    source = Source(kind=kind, enabled=enabled, reason=reason, **more)  # type: ignore[arg-type]
    return SourceText(source)


def of_extension(extension: str, text: str) -> SourceText:
    """Return the source that an extension's addition for one run is."""
    data = scrub(text).encode()
    source = Source(
        kind="extension", enabled=True, extension=extension, hash=digest(data), bytes=len(data)
    )
    return SourceText(source, data.decode())


def left_out(extension: str) -> SourceText:
    """Return the source of an extension's addition for which there was no room."""
    return SourceText(Source(kind="extension", enabled=True, extension=extension, reason="no_room"))


def system_text(sources: Iterable[SourceText]) -> str:
    """Return the whole system prompt, in the order of its sources, each file under its name."""
    parts = []
    for source, text in sources:
        if not text:
            continue
        heading = _HEADINGS.get(source.kind)
        where = source.extension if source.kind == "extension" else source.path
        parts.append(text if heading is None else f"{heading} ({where})\n\n{text.strip()}")
    return "\n\n".join(parts)
