"""The JSON that a model input's hash covers (protocol/semantics/models.md)."""

from __future__ import annotations

import msgspec

from nousd.machine.context.model_input import ModelInput
from nousd.wire.codec.canonical_json import canonical

ONLY_IF_SAID = ("sampling", "tool_choice")


def canonical_of(request: ModelInput) -> bytes:
    """Return the canonical JSON of an input, without unset keys that were added later."""
    values = msgspec.to_builtins(request)
    return canonical(
        {
            key: value
            for key, value in values.items()
            if key not in ONLY_IF_SAID or value is not None
        }
    )
