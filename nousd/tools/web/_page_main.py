"""The process that converts an HTML page to text.

Its arguments are LIBRARIES FORMAT CHARSET; LIBRARIES is the folder with the parser. It reads the page
from stdin and prints the text, followed by a NUL. It is a program because parsing is computation: in a
thread it would block the event loop, and a maliciously slow page could not be stopped. It does not know
where the page came from.
"""

from __future__ import annotations

import resource
import sys
import warnings
from typing import Final

MEMORY_BYTES_MAX: Final = 2 * 1024**3
"""Limit of address space: the parsed tree takes a hundred times the bytes of its page."""

CPU_SECONDS_MAX: Final = 30
"""Limit of CPU time, in case the parent has died."""


def main(arguments: list[str]) -> None:
    libraries, form, charset = arguments
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    sys.path.append(libraries)
    from justhtml import JustHTML

    # Decoded here, because the library knows only a few of the encodings that pages use.
    page = JustHTML(sys.stdin.buffer.read().decode(charset, "replace"))
    text = page.to_text(separator="\n") if form == "text" else page.to_markdown()
    sys.stdout.buffer.write(text.replace("\0", "").encode("utf-8", "replace") + b"\0")


if __name__ == "__main__":
    main(sys.argv[1:])
