"""What is answered about a session's transcript: its messages, its tree, its leaf, a compaction."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import Entry
from nousd.wire.responses.base import Response


class Messages(Response, frozen=True, kw_only=True):
    """The path root -> leaf, oldest first; ``before`` is where an older page ends."""

    session_id: str
    messages: tuple[Entry, ...]
    cursor: str
    has_more: bool
    leaf_id: str | UnsetType = UNSET
    before: str | UnsetType = UNSET


class Compaction(Response, frozen=True, kw_only=True):
    session_id: str
    summary: str
    first_kept_entry_id: str
    tokens_before: int
    trigger: str
    entry_id: str
    instruction: str | UnsetType = UNSET


class Leaf(Response, frozen=True, kw_only=True):
    session_id: str
    leaf_id: str


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """``parent_id`` is "" for a root; ``snippet`` is at most 80 bytes, cut ones end in "..."."""

    id: str
    parent_id: str
    role: str
    snippet: str


class Tree(Response, frozen=True, kw_only=True):
    session_id: str
    nodes: tuple[TreeNode, ...]
    has_more: bool
    leaf_id: str | UnsetType = UNSET
