"""Builds the event ``model_input`` from an input and its stored parts."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from nousd.machine.context.compiler import CompiledInput
from nousd.machine.context.input_chunks import StoredInput
from nousd.wire.codec.unset import or_unset
from nousd.wire.events import ModelInput
from nousd.wire.events.models import Source
from nousd.wire.limits import OMITTED_MAX


def model_input(
    compiled: CompiledInput,
    stored: StoredInput,
    *,
    sources: Iterable[Source],
    leaf_id: str | None,
    session_id: str,
    run_id: str | UnsetType = UNSET,
    turn_id: str | UnsetType = UNSET,
) -> ModelInput:
    """Return the event of a model call that is about to be made.

    Args:
        sources: the sources of the system prompt.
    """
    request = compiled.request
    return ModelInput(
        session_id=session_id,
        run_id=run_id,
        turn_id=turn_id,
        purpose=request.purpose,
        provider=request.provider,
        model=request.model,
        thinking=or_unset(request.thinking),
        sampling=or_unset(request.sampling),
        leaf_id=or_unset(leaf_id),
        entries=compiled.context_entries,
        messages=len(request.messages),
        tokens_estimated=compiled.tokens,
        context_window=compiled.window,
        tools=tuple(tool.name for tool in request.tools),
        input_hash=stored.input_hash,
        input_ref=stored.input_ref,
        rest_ref=stored.rest_ref,
        strategy=compiled.strategy,
        sources=tuple(sources),
        omitted_count=len(compiled.omitted),
        omitted=compiled.omitted[:OMITTED_MAX] or UNSET,
    )
