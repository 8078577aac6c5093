"""Stores model inputs incrementally: only the parts that are new since the last input are encoded, and
the whole is hashed without reading the rest again.

A ``Chain`` remembers the messages common to the last inputs of a session, and the state of the hash
after them. The next input usually begins with the same messages; then only the messages after them are
encoded, hashed and stored. Otherwise (a compaction, previews, another leaf) a new chain begins.

Pure: artifacts are returned for storing, and a chain never changes. ``wire.codec.input_chunks`` defines
the stored form and reassembles inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
)
from nousd.wire.codec.canonical_json import canonical, digest, is_simple
from nousd.wire.codec.input_chunks import BEGIN, END, Node, encode_node
from nousd.wire.events.models import Omitted

if TYPE_CHECKING:
    from hashlib import _Hash


_REST_FIELDS: Final = tuple(name for name in ModelInput.__struct_fields__ if name != "messages")

_LATER_FIELDS: Final = frozenset({"tool_choice", "sampling"})
"""Fields added later: omitted where unset, so that hashes of older inputs stay the same."""


_ENCODED_TOGETHER: Final = 64
"""Messages that are encoded in one step, in which no other thread runs."""

Json = bytes | memoryview
"""JSON text, copied as rarely as possible because a context may have megabytes."""


class Rest(NamedTuple):
    """The stored form of an input without its messages; ``values`` tells whether it has changed."""

    values: tuple[object, ...]
    ref: str
    data: bytes


class Chain(NamedTuple):
    """The stored messages that the next input can continue.

    Args:
        messages: the messages of the chain.
        hasher: the state of the hash after them; copy it, never change it.
        node_ref: the id of the newest node.
        rest: the rest of the newest input; None if only its id is known.
        rest_ref: the id of that rest.
        chars: the total length of the texts of all messages.
    """

    messages: tuple[ModelMessage, ...]
    hasher: _Hash
    node_ref: str
    rest: Rest | None
    rest_ref: str
    chars: int


class StoredInput(NamedTuple):
    """An input that is ready to be stored.

    Args:
        input_hash: the hash of the whole input's canonical JSON.
        input_ref: the id of its newest node, from which the whole can be read.
        rest_ref: the id of everything but the messages.
        artifacts: (id, bytes) of the new parts.
        chain: the chain that the next input can continue.
    """

    input_hash: str
    input_ref: str
    rest_ref: str
    artifacts: tuple[tuple[str, bytes], ...]
    chain: Chain


def store_input(
    chain: Chain | None,
    request: ModelInput,
    *,
    closing: int = 0,
    omitted: Sequence[Omitted] = (),
    likely: Rest | None = None,
) -> StoredInput:
    """Return the new parts of an input, to be stored.

    Args:
        chain: the chain of the previous stored input; None if there was none.
        closing: number of messages at the end that belong to this call only.
        omitted: the entries that are left out or shortened.
        likely: the rest of another input, which is often equal.
    """
    lasting = request.messages[: len(request.messages) - closing]
    known = _list_messages(chain)
    if lasting[: len(known)] != known:
        chain, known = None, ()
    new = _encode_messages(lasting[len(known) :])
    last = _encode_messages(request.messages[len(lasting) :])
    hasher = _extend_hash(chain, new)
    rest = _rest(likely if chain is None or chain.rest is None else chain.rest, request)
    node = encode_node(
        closing=last,
        count=len(lasting),
        messages=new,
        omitted=tuple(omitted),
        prefix_hash=f"sha256:{hasher.hexdigest()}",
        previous=None if chain is None else chain.node_ref,
        rest=rest.ref,
    )
    node_ref = digest(node)
    is_stored = chain is not None and chain.rest_ref == rest.ref
    return StoredInput(
        _input_hash(hasher, last, rest, is_first=not lasting),
        node_ref,
        rest.ref,
        ((node_ref, node),) if is_stored else ((node_ref, node), (rest.ref, rest.data)),
        Chain(lasting, hasher, node_ref, rest, rest.ref, _chars(chain, lasting[len(known) :])),
    )


def resume_chain(node: Node, node_ref: str, messages: Sequence[ModelMessage]) -> Chain | None:
    """Return the chain that ends with a stored node; None if ``messages`` begin differently."""
    if node.count > len(messages):
        return None
    same = tuple(messages[: node.count])
    hasher = _extend_hash(None, _encode_messages(same))
    if f"sha256:{hasher.hexdigest()}" != node.prefix_hash:
        return None
    return Chain(same, hasher, node_ref, None, node.rest, _chars(None, same))


def new_messages(
    chain: Chain | None, messages: tuple[ModelMessage, ...]
) -> tuple[ModelMessage, ...]:
    """Return the messages that a chain does not contain."""
    known = _list_messages(chain)
    return messages[len(known) :] if messages[: len(known)] == known else messages


def _list_messages(chain: Chain | None) -> tuple[ModelMessage, ...]:
    return () if chain is None else chain.messages


def _chars(chain: Chain | None, new: Sequence[ModelMessage]) -> int:
    return (0 if chain is None else chain.chars) + sum(len(message.text) for message in new)


def _encode_messages(messages: Sequence[ModelMessage]) -> Json:
    """Return the canonical JSON of messages, separated by commas.

    For simple messages, the encoder writes the same bytes, many messages in one call.
    """
    parts: list[Json] = []
    for are_simple, neighbours in groupby(messages, _is_simple):
        while some := list(islice(neighbours, _ENCODED_TOGETHER)):
            parts.append(_simple(some) if are_simple else _any(some))
    return parts[0] if len(parts) == 1 else b",".join(parts)


def _simple(messages: list[ModelMessage]) -> Json:
    try:
        return memoryview(_encoder.encode(messages))[1:-1]
    except UnicodeEncodeError:  # a lone surrogate
        return _any(messages)


def _any(messages: Iterable[ModelMessage]) -> bytes:
    return b",".join(canonical(msgspec.to_builtins(message)) for message in messages)


def _is_simple(message: ModelMessage) -> bool:
    """Return whether the plain encoder writes canonical JSON: field names are ASCII, numbers small."""
    if type(message) is not AssistantMessage or not (message.tool_calls or message.reasoning):
        return True
    return all(is_simple(call.args) for call in message.tool_calls) and all(
        is_simple(block.data) for block in message.reasoning
    )


_encoder: Final = msgspec.json.Encoder(order="sorted")


def _extend_hash(chain: Chain | None, new: Json) -> _Hash:
    """Return the state of the hash after the messages of the chain and the new ones."""
    hasher = hashlib.sha256(BEGIN) if chain is None else chain.hasher.copy()
    if new:
        hasher.update(b"," if chain is not None and chain.messages else b"")
        hasher.update(new)
    return hasher


def _input_hash(hasher: _Hash, last: Json, rest: Rest, *, is_first: bool) -> str:
    full = hasher.copy()
    if last:
        full.update(b"" if is_first else b",")
        full.update(last)
    full.update(END + rest.data.removeprefix(b"{"))
    return f"sha256:{full.hexdigest()}"


def _rest(likely: Rest | None, request: ModelInput) -> Rest:
    values = tuple(getattr(request, name) for name in _REST_FIELDS)
    if likely is not None and likely.values == values:
        return likely
    data = canonical(
        {
            name: msgspec.to_builtins(value)
            for name, value in zip(_REST_FIELDS, values, strict=True)
            if value is not None or name not in _LATER_FIELDS
        }
    )
    return Rest(values, digest(data), data)
