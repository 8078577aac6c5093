"""The table of normalized.md."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from nousd.bridge.openapi.document import first_paragraph
from nousd.views.normalized.payloads import PAYLOADS, Payload

from .markdown import code_list, table


def types_table() -> str:
    def row(name: str, struct: type[Payload]) -> tuple[str, ...]:
        fields = structs.fields(struct)
        always = code_list(field.encode_name for field in fields if field.required)
        others = code_list(field.encode_name for field in fields if not field.required)
        return f"`{name}`", first_paragraph(struct.__doc__).replace("\n", " "), always, others

    header = ("type", "what it says", "keys always present", "other keys")
    return table(header, (row(*each) for each in PAYLOADS.items()))


NORMALIZED_TABLES: dict[str, Callable[[], str]] = {"types": types_table}
