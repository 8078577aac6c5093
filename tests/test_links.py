"""Every relative link in the documents leads to a file that exists, and to a heading in it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *(path for path in ROOT.glob("*.md")),
    *(ROOT / ".github").rglob("*.md"),
    *(ROOT / "fixtures").rglob("*.md"),
    *(ROOT / "scripts").rglob("*.md"),
    *(ROOT / "protocol").rglob("*.md"),
    *(ROOT / "nousd").rglob("*.md"),
]


def prose(path: Path) -> str:
    """Return a document without code blocks and code spans."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", "code", text)


@functools.cache
def anchors(path: Path) -> set[str]:
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(path: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


def test_every_relative_link_has_a_target() -> None:
    dead = {str(path): list(dead_links(path)) for path in DOCUMENTS}
    assert {path: links for path, links in dead.items() if links} == {}


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[here](#one-thing) [there](#nothing) [file](missing.md)\n")
    assert list(dead_links(page)) == ["#nothing", "missing.md"]
