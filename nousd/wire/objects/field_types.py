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
"""The absolute path of a folder on the daemon's machine; ``~`` and variables mean nothing in it."""


_TYPE_NAME: Final = r"[A-Za-z0-9!#$&^_.+-]+"


MediaType = Annotated[
    str,
    Meta(
        max_length=NAME_CHARS_MAX,
        pattern=rf"^{_TYPE_NAME}/{_TYPE_NAME}( ?;[\x20-\x7e]*)?$(?!\n)",
        examples=["image/png"],
    ),
]
"""What bytes are, such as ``text/plain; charset=utf-8``."""


ArtifactOffset = Annotated[int, Meta(ge=0, le=2**53)]
"""An offset in an artifact, in bytes."""


PageSize = Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
"""Number of rows wanted in one response."""


# The lookahead is for Python, where $ also matches before a trailing LF.
_CURSOR: Final = rf"^evt-[0-9]{{1,{CURSOR_DIGITS_MAX}}}$(?!\n)"


Cursor = Annotated[str, Meta(pattern=_CURSOR, examples=["evt-120"])]
"""A position in the log, such as ``evt-120``; ``evt-0`` is before everything."""


OptionalCursor = Cursor | None


View = Literal["normalized"]
"""Other words for the events: see protocol/normalized.md."""


ViewSeq = Annotated[int, Meta(ge=0, le=2**53)]
"""The ``seq`` of an event in a view."""


EventTypes = Literal["v1", "all"] | Annotated[tuple[Name, ...], Meta(max_length=TYPES_MAX)]
"""The thirteen frozen types, all types, or a list of names."""


OutputKind = Literal["stdout", "stderr", "progress"]
"""What a piece of a tool's output is: a stream of a program, or what an MCP server tells meanwhile."""


QueueRevision = Annotated[int, Meta(ge=0, le=2**53)]
"""How often a session's queue has changed."""


QueueMode = Literal["one-at-a-time", "all"]
"""Whether a turn takes one text of a queue or all (protocol/semantics/runs-and-queues.md)."""


QueueKind = Literal["steer", "follow_up"]
