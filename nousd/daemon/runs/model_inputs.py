"""Caches the chunks of each session's last model input, so that the next input stores and hashes only
new chunks.

The cache has the sessions used last. For others, and after a restart, chunks are read from the log: the
newest ``model_input`` of the session's last runs names the end of the chain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio
from msgspec import UNSET

from nousd.daemon.eventlog.log_walk import for_each_event
from nousd.errors import InputNotWhole
from nousd.machine.context.compiler import CompiledInput
from nousd.machine.context.input_chunks import (
    Chain,
    Rest,
    StoredInput,
    new_messages,
    resume_chain,
    store_input,
)
from nousd.machine.context.model_input import ModelMessage
from nousd.store.artifacts import PUT_STEP_BYTES, Artifact
from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire import events
from nousd.wire.codec.envelope import decode_event
from nousd.wire.codec.input_chunks import MEDIA_TYPE, decode_node
from nousd.wire.codec.late_decoder import LateDecoder

KEPT_SESSIONS_MAX: Final = 32
KEPT_CHARS_MAX: Final = 8 * 1024 * 1024
"""Maximum total characters of cached messages, most of which are shared with cached contexts."""

_RUNS_LOOKED_AT: Final = 3

QUICK_MESSAGES_MAX: Final = 128
QUICK_CHARS_MAX: Final = 256 * 1024
"""Up to this many messages and characters of their texts are encoded and hashed in the event loop, which
takes about a millisecond."""


def artifacts_of(stored: StoredInput) -> list[Artifact]:
    """Return the artifacts to commit together with the ``model_input`` event."""
    return [Artifact(artifact_id, MEDIA_TYPE, data) for artifact_id, data in stored.artifacts]


async def put_large(store: Store, artifacts: Sequence[Artifact], *, now: str) -> list[Artifact]:
    """Store large artifacts in steps, with other writes in between; return the small ones.

    Raises:
        StoreError: some may have been stored.
    """
    for artifact in artifacts:
        if len(artifact.data) > PUT_STEP_BYTES:
            await store.put_artifact(_InMemory(artifact), artifact.media_type, now=now)
    return [artifact for artifact in artifacts if len(artifact.data) <= PUT_STEP_BYTES]


class _InMemory:
    """See ``ArtifactSource``."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact_id = artifact.id
        self.size_bytes = len(artifact.data)
        self._data = artifact.data

    async def read(self, offset: int, length: int) -> bytes:
        """See ``ArtifactSource.read``."""
        await trio.lowlevel.checkpoint()
        return self._data[offset : offset + length]


class ModelInputs:
    """The newest chain of each session. ``last_rest`` is that of the newest input of any session,
    because most runs have the same tools and instructions.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last_rest: Rest | None = None
        self._cache: OrderedDict[str, Chain] = OrderedDict()
        self._chars = 0

    async def chain(self, session_id: str, messages: Sequence[ModelMessage]) -> Chain | None:
        """Return the chain that an input with these messages can continue, and drop it from
        the cache.
        """
        cached = self.forget(session_id)
        if cached is not None or len(messages) <= 1:
            return cached
        return await self._load_newest_chain(session_id, messages)

    def keep(self, session_id: str, chain: Chain) -> None:
        """Cache a chain. The caller forgets it if one of its commits fails."""
        self.forget(session_id)
        self._cache[session_id] = chain
        self._chars += chain.chars
        while len(self._cache) > KEPT_SESSIONS_MAX or self._chars > KEPT_CHARS_MAX:
            self.forget(next(iter(self._cache)))

    def forget(self, session_id: str) -> Chain | None:
        """Drop a session's cached chain, and return it."""
        chain = self._cache.pop(session_id, None)
        if chain is not None:
            self._chars -= chain.chars
        return chain

    async def _load_newest_chain(
        self, session_id: str, messages: Sequence[ModelMessage]
    ) -> Chain | None:
        for record in await self._store.runs(session_id, limit=_RUNS_LOOKED_AT, before=None):
            node_ref = await self._newest_input(record.run_id)
            if node_ref is not None:
                return await self._resume_chain(node_ref, messages)
        return None

    async def _newest_input(self, run_id: str) -> str | None:
        """Return the id of the node of the run's last ``model_input`` that requested an answer."""
        event_filter = EventFilter(run_id=run_id, types=frozenset({"model_input"}))
        newest: str | None = None

        def take(stored: StoredEvent) -> None:
            nonlocal newest
            model_input = _decoder.decode(decode_event(stored.line).payload)
            if model_input.purpose == "answer" and model_input.input_ref is not UNSET:
                newest = model_input.input_ref

        await for_each_event(self._store, event_filter, take)
        return newest

    async def _resume_chain(self, node_ref: str, messages: Sequence[ModelMessage]) -> Chain | None:
        artifact = await self._store.artifact(node_ref)
        if artifact is None:
            return None
        try:
            node = decode_node(artifact.data)
        except InputNotWhole:
            return None
        if len(messages) <= QUICK_MESSAGES_MAX:
            return resume_chain(node, node_ref, messages)
        return await trio.to_thread.run_sync(resume_chain, node, node_ref, messages)


class InputsOfRun:
    """The model inputs of one run; each continues the previous one."""

    def __init__(self, inputs: ModelInputs, session_id: str) -> None:
        self._inputs = inputs
        self._session_id = session_id
        self._chain: Chain | None = None

    async def store(self, compiled: CompiledInput) -> StoredInput:
        """Return the new chunks of an input. The input of a summary shares nothing with others."""
        if compiled.request.purpose == "summary":
            return await encode_standalone_input(compiled)
        if self._chain is None:
            messages = compiled.request.messages
            self._chain = await self._inputs.chain(self._session_id, messages)
        stored = await _encode_input(self._chain, compiled, self._inputs.last_rest)
        self._chain = stored.chain
        self._inputs.last_rest = stored.chain.rest
        return stored

    def leave(self) -> None:
        """Leave the chain to the session's next run."""
        if self._chain is not None:
            self._inputs.keep(self._session_id, self._chain)

    def forget(self) -> None:
        """Drop the chain after a failed commit, because it contains chunks that were not stored."""
        self._chain = None
        self._inputs.forget(self._session_id)


async def encode_standalone_input(compiled: CompiledInput) -> StoredInput:
    """Return the chunks of an input that shares nothing with others, such as that of a summary."""
    return await _encode_input(None, compiled, None)


async def _encode_input(
    chain: Chain | None, compiled: CompiledInput, likely: Rest | None
) -> StoredInput:
    """Encode and hash the new messages; in a thread, if that would delay other tasks noticeably."""
    store = partial(
        store_input,
        chain,
        compiled.request,
        closing=compiled.closing,
        omitted=compiled.omitted,
        likely=likely,
    )
    new = new_messages(chain, compiled.request.messages)
    is_quick = len(new) + len(compiled.omitted) <= QUICK_MESSAGES_MAX
    if is_quick and sum(len(message.text) for message in new) <= QUICK_CHARS_MAX:
        return store()
    return await trio.to_thread.run_sync(store)


_decoder: Final = LateDecoder(events.ModelInput)
