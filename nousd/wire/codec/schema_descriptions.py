"""JSON Schemas made of our structs, tidied for readers: what a docstring says becomes one line."""

from __future__ import annotations

import inspect
from typing import Any


def tidied(schema: Any) -> Any:
    """Shortens a docstring to its first paragraph, and drops defaults that only say "absent"."""
    if isinstance(schema, list):
        return [tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {
        key: tidied(item) for key, item in schema.items() if not (key == "default" and item is None)
    }
    if isinstance(description := tidy.get("description"), str):
        tidy["description"] = first_paragraph(description)
    return tidy


def first_paragraph(docstring: str | None) -> str:
    """Returns the first paragraph of a docstring as one line of Markdown."""
    paragraph = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())
