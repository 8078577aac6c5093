"""Tables of facts about models, keyed by prefixes of their names.

A vendor before a slash (``openai/gpt-4o``) is ignored, and so is case. The longest matching prefix
wins; ``""`` matches every name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Row = TypeVar("Row")


def plain_name(model: str) -> str:
    """Return a model's name in lower case, without a vendor before a slash."""
    return model.lower().rpartition("/")[2]


def row_of(table: Mapping[str, Row], model: str, otherwise: Row) -> Row:
    """Return the row for the model; ``otherwise`` if no prefix matches."""
    name = plain_name(model)
    fitting = [beginning for beginning in table if name.startswith(beginning)]
    return table[max(fitting, key=len)] if fitting else otherwise
