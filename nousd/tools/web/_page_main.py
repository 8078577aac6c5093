"""The process that makes text of an HTML page: ``python -I _page_main.py FORMAT CHARSET``.

Reads the page on stdin and prints the text, and a NUL when that is all. A program of its own because
parsing computes: in a thread it would hold up the event loop, and a page that is made to be slow could
not be stopped. Where the page came from is not known here.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

MEMORY_BYTES_MAX: Final = 2 * 1024**3
"""Address space: a tree takes a hundred times the bytes of its page."""

CPU_SECONDS_MAX: Final = 30
"""Should nobody be left to end it."""


def main(form: str, charset: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    from justhtml import JustHTML

    # Decoded here: of what pages are written in the library knows a few.
    page = JustHTML(sys.stdin.buffer.read().decode(charset, "replace"))
    text = page.to_text(separator="\n") if form == "text" else page.to_markdown()
    sys.stdout.buffer.write(text.replace("\0", "").encode("utf-8", "replace") + b"\0")


if __name__ == "__main__":
    main(*sys.argv[1:])
