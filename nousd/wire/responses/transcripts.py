"""Responses about a session's transcript: messages, tree, leaf, compaction."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import Entry
from nousd.wire.responses.base import Response


class Messages(Response, frozen=True, kw_only=True):
    """The path from the root to the leaf, oldest first."""

    session_id: str
    messages: tuple[Entry, ...]
    cursor: str
    has_more: bool
    leaf_id: str | UnsetType = UNSET
    before: str | UnsetType = UNSET


class Compaction(Response, frozen=True, kw_only=True):
    """The compaction that was written."""

    session_id: str
    summary: str
    first_kept_entry_id: str
    tokens_before: int
    trigger: str
    entry_id: str
    instruction: str | UnsetType = UNSET


class Leaf(Response, frozen=True, kw_only=True):
    """The leaf that was set."""

    session_id: str
    leaf_id: str


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the tree, with the beginning of its text."""

    id: str
    parent_id: str
    role: str
    snippet: str


class Tree(Response, frozen=True, kw_only=True):
    """A page of the tree, oldest entry first."""

    session_id: str
    nodes: tuple[TreeNode, ...]
    has_more: bool
    leaf_id: str | UnsetType = UNSET
