"""The format of a model's input as a chain of small artifacts, each with the messages that are new.

A call with a long history differs from the previous call by a few messages at the end. So each call
stores one **node**: its new messages, the id of the previous node, and the id of the **rest**, which is
the input without its messages and seldom changes. ``messages`` is the first key of an input's canonical
JSON, so the concatenated bytes of all its parts are that JSON, and its hash can be computed without
reading the history again.

This module encodes the artifacts and assembles an input from them, as bytes, so that nothing is lost. It
does not interpret messages, and others decide when a new chain begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from nousd.errors import InputNotWhole
from nousd.wire.codec.canonical_json import canonical, digest
from nousd.wire.codec.late_decoder import LateDecoder
from nousd.wire.events.models import Omitted

MEDIA_TYPE: Final = "application/json"
"""The media type of nodes and rests."""

CHAIN_NODES_MAX: Final = 100_000
"""An input with more nodes is treated as damaged; each model call in a context adds one."""

BEGIN: Final = b'{"messages":['
END: Final = b"],"
"""The bytes before the messages, and between them and the rest without its first brace."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the chain.

    Args:
        previous: the id of the previous node, None for the first.
        messages: the messages that are new since that node.
        closing: messages after them that belong to this call only.
        count: number of messages in the chain up to this node.
        prefix_hash: hash of the canonical JSON up to the last of those messages.
        rest: the id of the input without its messages.
        omitted: every entry that the model receives only in part, or not at all.
    """

    closing: tuple[msgspec.Raw, ...]
    count: int
    messages: tuple[msgspec.Raw, ...]
    omitted: tuple[Omitted, ...]
    prefix_hash: str
    previous: str | None
    rest: str


_node_decoder: Final = LateDecoder(Node)


def encode_node(
    *,
    closing: bytes | memoryview,
    count: int,
    messages: bytes | memoryview,
    omitted: Sequence[Omitted],
    prefix_hash: str,
    previous: str | None,
    rest: str,
) -> bytes:
    """Return a node's canonical JSON.

    Args:
        closing: like ``messages``, canonical JSON values separated by commas. See ``Node`` for the rest.
    """
    rest_of_it = canonical({"prefix_hash": prefix_hash, "previous": previous, "rest": rest})
    return b"".join(
        (
            b'{"closing":[',
            closing,
            b'],"count":%d,"messages":[' % count,
            messages,
            b'],"omitted":',
            canonical(msgspec.to_builtins(omitted)),
            b",",
            rest_of_it.removeprefix(b"{"),
        )
    )


def decode_node(data: bytes) -> Node:
    """Decode the node in an artifact.

    Raises:
        InputNotWhole: the artifact is not a node.
    """
    try:
        return _node_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InputNotWhole("an artifact is no part of a model's input") from error


def assemble_input(input_ref: str, fetch: Callable[[str], bytes]) -> bytes:
    """Return the canonical JSON of the input whose newest node is ``input_ref``.

    Args:
        fetch: returns the bytes of an artifact.

    Raises:
        InputNotWhole: the bytes of an artifact do not match its id, or it is not a part of an input.
    """
    newest = decode_node(_fetch_verified(input_ref, fetch))
    nodes = [newest]
    while (previous := nodes[-1].previous) is not None:
        if len(nodes) == CHAIN_NODES_MAX:
            raise InputNotWhole(f"the input has more than {CHAIN_NODES_MAX} parts")
        nodes.append(decode_node(_fetch_verified(previous, fetch)))
    messages = [bytes(message) for node in reversed(nodes) for message in node.messages]
    messages += map(bytes, newest.closing)
    rest = _fetch_verified(newest.rest, fetch)
    return BEGIN + b",".join(messages) + END + rest.removeprefix(b"{")


def _fetch_verified(artifact_id: str, fetch: Callable[[str], bytes]) -> bytes:
    data = fetch(artifact_id)
    if digest(data) != artifact_id:
        raise InputNotWhole(f"artifact {artifact_id} has other bytes than its id says")
    return data
