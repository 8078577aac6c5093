"""How a model's input is kept: a chain of small artifacts, each with what is new since the one before.

A call with a long history differs from the call before it by a few messages at the end. So each call
stores one **node**: its new messages, the id of the node before, and the id of the **rest**, which is
everything of the input but its messages and seldom changes. ``messages`` is the first key of an input's
canonical JSON, so the bytes of all its parts, one behind the other, are that JSON, and its hash can be
made without looking at the history again.

Here is the form of the artifacts, and how an input is put together again from them: in bytes, so that
nothing is lost on the way. What a message is, and when a chain begins anew, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from nousd.errors import InputNotWhole
from nousd.wire.codec.canonical_json import canonical, digest
from nousd.wire.events.models import Omitted

MEDIA_TYPE: Final = "application/json"
"""Of nodes and rests."""

CHAIN_NODES_MAX: Final = 100_000
"""Nodes of one input, past which it is taken for damaged; one more for each model call in a context."""

BEGIN: Final = b'{"messages":['
END: Final = b"],"
"""What stands before the messages, and between them and the rest without its first brace."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the chain.

    Args:
        previous: the id of the node before, None for the first.
        messages: those that are new since that node.
        closing: messages behind them that belong to this call only.
        count: how many messages stand in the chain up to here.
        prefix_hash: of the canonical JSON up to the last of those, from its first byte on.
        rest: the id of the input without its messages.
        omitted: every entry that the model is not told, or not whole.
    """

    closing: tuple[msgspec.Raw, ...]
    count: int
    messages: tuple[msgspec.Raw, ...]
    omitted: tuple[Omitted, ...]
    prefix_hash: str
    previous: str | None
    rest: str


_node_decoder: Final = msgspec.json.Decoder(Node)


def encode_node(node: Node) -> bytes:
    """Returns the node's canonical JSON; its messages are canonical already."""
    return b'{"closing":[%b],"count":%d,"messages":[%b],"omitted":%b,%b' % (
        b",".join(map(bytes, node.closing)),
        node.count,
        b",".join(map(bytes, node.messages)),
        canonical(msgspec.to_builtins(node.omitted)),
        canonical(
            {"prefix_hash": node.prefix_hash, "previous": node.previous, "rest": node.rest}
        ).removeprefix(b"{"),
    )


def decode_node(data: bytes) -> Node:
    """Returns the node that an artifact holds.

    Raises:
        InputNotWhole: it holds none.
    """
    try:
        return _node_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InputNotWhole("an artifact is no part of a model's input") from error


def put_together(input_ref: str, fetch: Callable[[str], bytes]) -> bytes:
    """Returns the canonical JSON of the input whose newest node is ``input_ref``.

    Args:
        fetch: returns the bytes of an artifact.

    Raises:
        InputNotWhole: an artifact holds other bytes than its id says, or no part of an input.
    """
    newest = decode_node(_fetched(input_ref, fetch))
    nodes = [newest]
    while (previous := nodes[-1].previous) is not None:
        if len(nodes) == CHAIN_NODES_MAX:
            raise InputNotWhole(f"the input has more than {CHAIN_NODES_MAX} parts")
        nodes.append(decode_node(_fetched(previous, fetch)))
    messages = [bytes(message) for node in reversed(nodes) for message in node.messages]
    messages += map(bytes, newest.closing)
    rest = _fetched(newest.rest, fetch)
    return BEGIN + b",".join(messages) + END + rest.removeprefix(b"{")


def _fetched(artifact_id: str, fetch: Callable[[str], bytes]) -> bytes:
    data = fetch(artifact_id)
    if digest(data) != artifact_id:
        raise InputNotWhole(f"artifact {artifact_id} has other bytes than its id says")
    return data
