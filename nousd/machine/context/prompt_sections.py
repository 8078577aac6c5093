"""The sections of the system prompt: the prompt, the list of agents, and instructions from files and
extensions.

Each section comes from a source. All sources are logged, those that are used with their hash.
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
    """A source and its text; "" if none of it is used."""

    source: Source
    text: str = ""


def system_prompt(text: str, path: str = "") -> SourceText:
    """Return the source of the daemon's own prompt; it is off if there is no text.

    Args:
        path: the file of the prompt, if it has one.
    """
    if path:
        return of_file("system_prompt", path, text)
    if not text:
        return SourceText(Source(kind="system_prompt", enabled=False, reason="off"))
    data = text.encode()
    source = Source(kind="system_prompt", enabled=True, hash=digest(data), bytes=len(data))
    return SourceText(source, text)


def of_file(kind: str, path: str, text: str, reason: str = "") -> SourceText:
    """Return the source of a file.

    Args:
        reason: why it is not used, or only in part.
    """
    data = scrub(text).encode()
    more = {"reason": reason} if reason else {}
    if not text.strip():
        return build_unused_source(kind, reason or "empty", path)
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
    """Return the source of a worker's own prompt."""
    data = scrub(text).encode()
    source = Source(kind="agent_prompt", enabled=True, hash=digest(data), bytes=len(data))
    return SourceText(source, data.decode())


def agents_source(described: Sequence[tuple[str, str]]) -> tuple[SourceText, ...]:
    """Return the source that lists the names and descriptions of agents; none without agents."""
    if not described:
        return ()
    # One line each: text from a file must not look like another part of the prompt.
    flat = ((name, " ".join(text.split())) for name, text in described)
    lines = (f"- {name}: {text}" if text else f"- {name}" for name, text in flat)
    data = scrub("\n".join([_AGENTS, "", *lines])).encode()
    source = Source(kind="agents", enabled=True, hash=digest(data), bytes=len(data))
    return (SourceText(source, data.decode()),)


def build_unused_source(kind: str, reason: str, path: str = "") -> SourceText:
    """Return a source that is not used; the reason ``off`` means that it was disabled on purpose."""
    more = {"path": scrub(path)} if path else {}
    enabled = reason != "off"
    source = Source(kind=kind, enabled=enabled, reason=reason, **more)  # type: ignore[arg-type]
    return SourceText(source)


def of_extension(extension: str, text: str) -> SourceText:
    """Return the source of an extension's addition to one run."""
    data = scrub(text).encode()
    source = Source(
        kind="extension", enabled=True, extension=extension, hash=digest(data), bytes=len(data)
    )
    return SourceText(source, data.decode())


def build_omitted_source(extension: str) -> SourceText:
    """Return the source of an extension's addition that did not fit."""
    return SourceText(Source(kind="extension", enabled=True, extension=extension, reason="no_room"))


def system_text(sources: Iterable[SourceText]) -> str:
    """Return the whole system prompt: its sources in order, each file or extension under a heading."""
    parts = []
    for source, text in sources:
        if not text:
            continue
        heading = _HEADINGS.get(source.kind)
        origin = source.extension if source.kind == "extension" else source.path
        parts.append(text if heading is None else f"{heading} ({origin})\n\n{text.strip()}")
    return "\n\n".join(parts)
