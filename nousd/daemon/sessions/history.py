"""Reads the effective part of a session's transcript, backwards from the leaf as far as needed.

The last transcript is cached, because the next run usually continues where the previous one ended.
Entries never change, so a cached transcript stays valid for as long as the session has its leaf.

All texts are whole: those that are too long for the log are read from their artifacts
(``machine.context.text_offload``).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon.sessions.live_session import LiveSession
from nousd.machine.context import text_offload, transcript
from nousd.machine.context.compiler import InputCache
from nousd.machine.context.model_input import begins_with
from nousd.machine.context.tokens import estimate_tokens
from nousd.store.interface import Store
from nousd.store.rows import Path
from nousd.wire.codec.envelope import encode_json
from nousd.wire.limits import ENTRY_BYTES_MAX, PAGE_BYTES_MAX
from nousd.wire.objects.entries import Entry, MessageEntry, parent_of
from nousd.wire.objects.inputs import QueuedInput

_log = logging.getLogger(__name__)

_FIRST_PAGE_ENTRIES: Final = 64
_PAGE_GROWTH: Final = 8
_PAGE_ENTRIES_MAX: Final = 4096
"""Each page has eight times the entries of the previous one, so that a path takes few pages and little
is read unnecessarily. The event loop looks through the maximum in a millisecond or two.
"""

_FREED_AT_ONCE: Final = 4096
"""Entries to free in one step, which takes about a millisecond."""

_PAGE_BYTES: Final = 4 * 1024 * 1024

KEPT_SESSIONS_MAX: Final = 32
KEPT_TOKENS_MAX: Final = 2_000_000
"""Maximum size of the cache: about 8 MB of text."""


class Context(msgspec.Struct, frozen=True):
    """A context, oldest entry first.

    Args:
        tokens: its estimated size.
        grown: the parts of the last model input that the next one can reuse.
    """

    entries: Sequence[Entry]
    tokens: int
    grown: InputCache


_UNREAD: Final = Context((), 0, InputCache())


class Contexts:
    """Provides contexts: the path from the root to a leaf, from the last compaction on if there is one.

    Args:
        tokens_max: the size at which reading stops; older entries could not be sent to a model.
    """

    def __init__(self, store: Store, *, tokens_max: int) -> None:
        self._store = store
        self._tokens_max = tokens_max
        self._cache: OrderedDict[str, tuple[str | None, Context]] = OrderedDict()
        self._tokens = 0

    async def at_leaf(self, live: LiveSession) -> Context:
        """Return the context that the session's next work continues from."""
        leaf_id = live.state.leaf_id
        cached_leaf_id, cached = self._cache.get(live.session_id, (None, None))
        if cached is not None and cached_leaf_id == leaf_id:
            self._cache.move_to_end(live.session_id)
            return cached
        if live.committed.leaf_id != leaf_id:
            # The store has only committed entries, and this leaf is not committed yet.
            await self._store.flush()
        return await self.read(live.session_id, leaf_id)

    async def read(self, session_id: str, leaf_id: str | None) -> Context:
        """Read the context of any committed leaf."""
        path, tokens = await self._read(session_id, leaf_id)
        return Context(path, tokens, InputCache())

    async def read_entries(self, session_id: str, leaf_id: str | None) -> list[Entry]:
        """Read the context of any committed leaf, as a new list that the caller may change."""
        path, _ = await self._read(session_id, leaf_id)
        return path

    async def _read(self, session_id: str, leaf_id: str | None) -> tuple[list[Entry], int]:
        """Read a context and estimate its tokens."""
        path: list[Entry] = []
        tokens = 0
        cursor = leaf_id
        limit = _FIRST_PAGE_ENTRIES
        first_kept: str | None = None
        while cursor is not None:
            page = await whole_path(
                self._store, session_id, cursor, limit=limit, bytes_max=_PAGE_BYTES
            )
            path[:0] = page.entries
            tokens += estimate_tokens(page.entries)
            first_kept = first_kept or _find_first_kept(page.entries)
            is_reached = first_kept is not None and any(
                entry.id == first_kept for entry in page.entries
            )
            if not page.has_more or is_reached or tokens > self._tokens_max:
                break
            cursor = parent_of(page.entries[0])
            limit = min(limit * _PAGE_GROWTH, _PAGE_ENTRIES_MAX)
        if first_kept is not None:
            path = transcript.in_context(path)
            tokens = estimate_tokens(path)
        return path, tokens

    def keep(self, session_id: str, leaf_id: str | None, context: Context) -> None:
        """Cache the context of a leaf, and drop the oldest beyond the bounds."""
        self.forget(session_id)
        self._cache[session_id] = (leaf_id, context)
        self._tokens += context.tokens
        while len(self._cache) > KEPT_SESSIONS_MAX or self._tokens > KEPT_TOKENS_MAX:
            self.forget(next(iter(self._cache)))

    def forget(self, session_id: str) -> None:
        """Drop the cached contexts of a session."""
        _, cached = self._cache.pop(session_id, (None, None))
        if cached is not None:
            self._tokens -= cached.tokens


class ContextOfRun:
    """The context of one run: read on first use, then extended."""

    def __init__(self, contexts: Contexts, live: LiveSession) -> None:
        self._contexts = contexts
        self._live = live
        self._context = _UNREAD
        self._entries: Sequence[Entry] | None = None
        self._leaf_id: str | None = None

    async def read(self) -> Sequence[Entry]:
        """Return the effective transcript, oldest first."""
        if self._entries is None:
            self._leaf_id = self._live.state.leaf_id
            self._context = await self._contexts.at_leaf(self._live)
            self._entries = self._context.entries
        return self._entries

    @property
    def grown(self) -> InputCache:
        """The input cache of the context as it was last read."""
        return self._context.grown

    def append(self, entry: Entry) -> None:
        """Extend the context with an entry at the session's leaf."""
        if not text_offload.is_whole(entry):
            # Its text was cut when it was accepted: read the context again, with whole texts.
            self._entries = None
        if self._entries is not None:
            self._entries = transcript.with_entry(self._entries, entry)
            self._leaf_id = entry.id

    def last_answer(self, run_id: str) -> str:
        """Return the last text of the model, if this run produced it."""
        for entry in reversed(self._entries or ()):
            if isinstance(entry, MessageEntry) and entry.role == "assistant" and entry.text:
                return entry.text if entry.run_id == run_id else ""
        return ""

    def leave(self) -> None:
        """Leave the context to the session's next run."""
        if self._entries is None:
            return
        count, tokens = len(self._context.entries), self._context.tokens
        if not begins_with(self._entries, self._context.entries):
            count, tokens = 0, 0  # it was compacted
        tokens += estimate_tokens(self._entries[count:])
        context = Context(self._entries, tokens, self._context.grown)
        self._contexts.keep(self._live.session_id, self._leaf_id, context)

    def forget(self) -> None:
        """Drop the cached context after a failed commit: it contains entries that were not stored."""
        self._contexts.forget(self._live.session_id)


def _find_first_kept(entries: Sequence[Entry]) -> str | None:
    """Return the id of the first entry that the last compaction has kept."""
    for entry in reversed(entries):
        if not isinstance(entry, MessageEntry):
            return entry.first_kept_entry_id
    return None


async def let_go(entries: list[Entry]) -> None:
    """Empty a list that may have the last references to its entries, in steps: no other task runs while
    Python frees the entries.
    """
    while entries:
        del entries[-_FREED_AT_ONCE:]
        await trio.lowlevel.checkpoint()


# --- whole texts -----------------------------------------------------------------------------


async def wholes_of(store: Store, refs: Iterable[str]) -> dict[str, bytes | None]:
    """Read the artifacts of texts; None for a missing one."""
    wholes: dict[str, bytes | None] = {}
    for ref in refs:
        artifact = await store.artifact(ref)
        if artifact is None:
            _log.error("the artifact %s of a text is missing", ref)
        wholes[ref] = None if artifact is None else artifact.data
    return wholes


async def whole_inputs(store: Store, inputs: Sequence[QueuedInput]) -> tuple[QueuedInput, ...]:
    """Return committed inputs with whole texts."""
    return text_offload.whole_inputs(inputs, await wholes_of(store, text_offload.refs_in(inputs)))


async def fit_inputs(store: Store, inputs: Sequence[QueuedInput]) -> tuple[QueuedInput, ...]:
    """Return all of the committed inputs so that they fit into one response: with whole texts up to one
    page, and with the beginnings of the other long texts.
    """
    shown: list[QueuedInput] = []
    room = PAGE_BYTES_MAX
    for queued in inputs:
        size = 0 if queued.text_bytes is UNSET else queued.text_bytes
        if size and (size <= room or room == PAGE_BYTES_MAX):
            (whole,) = await whole_inputs(store, (queued,))
            in_line = len(encode_json(whole))
            is_first = room == PAGE_BYTES_MAX and in_line <= ENTRY_BYTES_MAX
            if in_line <= room or is_first:
                room = max(0, room - in_line)
                shown.append(whole)
                continue
        shown.append(queued)
    return tuple(shown)


async def whole_path(
    store: Store, session_id: str, leaf_id: str, *, limit: int, bytes_max: int
) -> Path:
    """Like ``Store.path``, with whole texts, which count towards ``bytes_max``."""
    path = await store.path(session_id, leaf_id, limit=limit, bytes_max=bytes_max)
    if not text_offload.refs_in(path.entries):
        return path
    newest_first: list[Entry] = []
    size = 0
    for entry in reversed(path.entries):
        refs = text_offload.refs_in((entry,))
        # Texts that do not fit into the page are not even read.
        if newest_first and size + sum(refs.values()) > bytes_max:
            break
        whole = text_offload.whole_entry(entry, await wholes_of(store, refs))
        size += len(encode_json(whole))
        if newest_first and size > bytes_max:
            break
        newest_first.append(whole)
    has_more = path.has_more or len(newest_first) < len(path.entries)
    return Path(tuple(reversed(newest_first)), has_more)
