"""The types that the fields of several payloads share: names, texts, cursors, page sizes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from nousd.wire.limits import (
    CURSOR_DIGITS_MAX,
    NAME_CHARS_MAX,
    PAGE_ROWS_MAX,
    PATH_CHARS_MAX,
    TEXT_CHARS_MAX,
    TOOLS_MAX,
    TYPES_MAX,
)

Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX, pattern=r"\S")]
"""A text for the model: not blank, bounded."""


Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
"""An id or a name."""


ToolNames = Annotated[tuple[Name, ...], Meta(max_length=TOOLS_MAX)]
"""Names of tools, in the order that a client gave them."""


Folder = Annotated[
    str, Meta(min_length=1, max_length=PATH_CHARS_MAX, examples=["/home/me/project"])
]
"""The absolute path of a folder on the daemon's machine; ``~`` and variables are not expanded."""


_TYPE_NAME: Final = r"[A-Za-z0-9!#$&^_.+-]+"


MediaType = Annotated[
    str,
    Meta(
        max_length=NAME_CHARS_MAX,
        pattern=rf"^{_TYPE_NAME}/{_TYPE_NAME}( ?;[\x20-\x7e]*)?$(?!\n)",
        examples=["image/png"],
    ),
]
"""A media type, such as ``text/plain; charset=utf-8``."""


ArtifactOffset = Annotated[int, Meta(ge=0, le=2**53)]
"""An offset in an artifact, in bytes."""


PageSize = Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
"""Maximum number of rows in one response."""


# The lookahead is for Python, where $ also matches before a trailing LF.
_CURSOR: Final = rf"^evt-[0-9]{{1,{CURSOR_DIGITS_MAX}}}$(?!\n)"


Cursor = Annotated[str, Meta(pattern=_CURSOR, examples=["evt-120"])]
"""A position in the log, such as ``evt-120``; ``evt-0`` is before everything."""


OptionalCursor = Cursor | None


View = Literal["normalized"]
"""An alternative vocabulary of events (protocol/normalized.md)."""


ViewSeq = Annotated[int, Meta(ge=0, le=2**53)]
"""The ``seq`` of an event in a view."""


EventTypes = Literal["v1", "all"] | Annotated[tuple[Name, ...], Meta(max_length=TYPES_MAX)]
"""The thirteen frozen types, all types, or a list of names."""


OutputKind = Literal["stdout", "stderr", "progress"]
"""The kind of a piece of a tool's output: a stream of a program, or an MCP server's progress report."""


QueueRevision = Annotated[int, Meta(ge=0, le=2**53)]
"""The number of changes to a session's queue."""


QueueMode = Literal["one-at-a-time", "all"]
"""Whether a turn takes one text of a queue or all (protocol/semantics/runs-and-queues.md)."""


QueueKind = Literal["steer", "follow_up"]
