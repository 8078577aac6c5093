"""JSON Schemas made of our structs, made readable: a docstring becomes one line."""

from __future__ import annotations

import inspect
from typing import Any


def tidy_schema(schema: Any) -> Any:
    """Return a schema with each description cut to its first paragraph, without null defaults."""
    if isinstance(schema, list):
        return [tidy_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {
        key: tidy_schema(item)
        for key, item in schema.items()
        if not (key == "default" and item is None)
    }
    if isinstance(description := tidy.get("description"), str):
        tidy["description"] = first_paragraph(description)
    return tidy


def first_paragraph(docstring: str | None) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    paragraph = inspect.cleandoc(docstring or "").split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())
