"""A remark on a model that was chosen, and that its server does not list.

It is no refusal: servers serve models that they do not list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nousd.client.answers import Answer
from nousd.errors import ClientError

Ask = Callable[[str, Mapping[str, Any]], Answer]
"""Sends a command with a payload."""


def set_model(ask: Ask, payload: Mapping[str, Any]) -> tuple[Answer, str]:
    """Set a model; return the answer, and a remark, which is empty if there is nothing to say.

    Raises:
        ClientError: as the request.
    """
    # Before the change, because the daemon lists also what is set.
    try:
        listing = ask("list_models", {}).payload
    except ClientError:
        listing = {}
    answer = ask("set_model", payload)
    chosen = answer.payload
    return answer, _remark(listing, chosen.get("provider", ""), chosen.get("model", ""))


def _remark(listing: Mapping[str, Any], provider: str, model: str) -> str:
    catalogs = {row["provider"]: row["catalog"] for row in listing.get("providers", ())}
    if catalogs.get(provider) != "server" or listing.get("truncated"):
        return ""
    listed = [row["model"] for row in listing["models"] if row["provider"] == provider]
    if model in listed:
        return ""
    from difflib import get_close_matches

    [nearest] = get_close_matches(model, listed, n=1, cutoff=0.0) or [""]
    return f"{provider} lists no model {model}; the nearest is {provider}/{nearest}"
