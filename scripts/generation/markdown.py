"""Tables, and the documents of protocol/ that have them between markers. What is in a table is not known
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

PROTOCOL: Final = Path(__file__).resolve().parents[2] / "protocol"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code_list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def with_blocks(document: str, blocks: Mapping[str, Callable[[], str]], name: str) -> str:
    """Return a document with the text between its markers written anew.

    Raises:
        SystemExit: if a marker is missing or stands there twice.
    """
    for block, make in blocks.items():
        begin, end = f"<!-- generated: {block} -->", f"<!-- end: {block} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        replacement = f"{begin}\n{make()}\n{end}"
        document, count = pattern.subn(replacement.replace("\\", r"\\"), document)
        if count != 1:
            raise SystemExit(f"{name}: the markers of {block} stand there {count} times")
    return document
