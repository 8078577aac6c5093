"""The media types of attachments, and a check of bytes against their media type.

The check looks at the first bytes, and at whether a text is UTF-8: enough to catch a wrong suffix or a
wrong claim. It does not know which types a model accepts.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
PDF: Final = "application/pdf"
TEXT: Final = "text/plain"

ATTACHABLE: Final = f"{', '.join(IMAGES)}, {PDF} or text/*"
"""The media types that can be attached, for error messages."""

_BY_SUFFIX: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": PDF,
    ".csv": "text/csv",
    ".htm": "text/html",
    ".html": "text/html",
    ".md": "text/markdown",
    ".xml": "text/xml",
}

_FIRST_BYTES: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    PDF: (b"%PDF-",),
}

_PDF_BEGINS_WITHIN: Final = 1024
"""PDF readers and model servers skip bytes before the header."""


def bare(media_type: str) -> str:
    """Return a media type without parameters and in lower case."""
    return media_type.partition(";")[0].strip().lower()


def is_attachable(media_type: str) -> bool:
    """Return whether a file of that (bare) type can be attached."""
    kind, _, subtype = media_type.partition("/")
    return media_type in _FIRST_BYTES or (kind == "text" and bool(subtype))


def guess_from_name(name: str) -> str:
    """Return the media type for a file's name; ``text/plain`` unless its suffix is known."""
    return _BY_SUFFIX.get(PurePosixPath(name).suffix.lower(), TEXT)


def matches_content(media_type: str, data: bytes) -> bool:
    """Return whether bytes can be a file of that (attachable) type; an empty file never is."""
    if media_type == PDF:
        return _FIRST_BYTES[PDF][0] in data[:_PDF_BEGINS_WITHIN]
    if media_type in _FIRST_BYTES:
        is_riff_of_another_kind = media_type == "image/webp" and data[8:12] != b"WEBP"
        return data.startswith(_FIRST_BYTES[media_type]) and not is_riff_of_another_kind
    return bool(data) and _is_text(data)


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False
