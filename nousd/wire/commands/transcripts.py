"""Commands that read a session's tree of entries, move its leaf, and summarize its path."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import PAGE_ROWS_MAX, TEXT_CHARS_MAX
from nousd.wire.objects.field_types import Name, PageSize
from nousd.wire.responses.transcripts import (
    Compaction,
    Leaf,
    Messages,
    Tree,
)


class GetMessages(AnsweredBy[Messages], frozen=True, kw_only=True):
    """Read the messages on the path from the root to the leaf, newest page first."""

    session_id: Name | None = None
    leaf_id: Name | None = None
    before: Name | None = None
    limit: PageSize = PAGE_ROWS_MAX
    compacted: bool = False


class GetTree(AnsweredBy[Tree], frozen=True, kw_only=True):
    """Read the tree of a session's entries, oldest first."""

    session_id: Name | None = None
    after: Name | None = None
    limit: PageSize = PAGE_ROWS_MAX


class SetLeaf(AnsweredBy[Leaf], frozen=True, kw_only=True):
    """Move the leaf: new work continues from this entry."""

    leaf_id: Name
    session_id: Name | None = None


class CompactSession(AnsweredBy[Compaction], frozen=True, kw_only=True):
    """Replace the older part of the model's context by a summary. No entry is deleted."""

    session_id: Name | None = None
    instruction: Annotated[str, Meta(max_length=TEXT_CHARS_MAX)] | None = None
