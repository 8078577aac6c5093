"""Tables of facts about models, by the beginnings of their names.

A vendor before a slash (``openai/gpt-4o``) is passed over, case does not count, the longest beginning
that fits counts, and ``""`` fits every name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Row = TypeVar("Row")


def plain_name(model: str) -> str:
    """Return a model's name in lower case, without a vendor before a slash."""
    return model.lower().rpartition("/")[2]


def row_of(table: Mapping[str, Row], model: str, otherwise: Row) -> Row:
    """Return the row for the model."""
    name = plain_name(model)
    fitting = [beginning for beginning in table if name.startswith(beginning)]
    return table[max(fitting, key=len)] if fitting else otherwise
