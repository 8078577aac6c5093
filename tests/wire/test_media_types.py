"""Media types of attachments, and their detection from bytes."""

from __future__ import annotations

import pytest

from nousd.wire.objects import media_types

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.png", "image/png"),
        ("photo.JPG", "image/jpeg"),
        ("x.jpeg", "image/jpeg"),
        ("x.gif", "image/gif"),
        ("x.webp", "image/webp"),
        ("deep/in/a.folder/report.pdf", "application/pdf"),
        ("notes.md", "text/markdown"),
        ("main.rs", "text/plain"),
        ("Makefile", "text/plain"),
    ],
)
def test_the_suffix_of_a_file_name_gives_its_media_type(name: str, media_type: str) -> None:
    assert media_types.guess_from_name(name) == media_type


@pytest.mark.parametrize(
    ("media_type", "attachable"),
    [
        ("image/png", True),
        ("image/webp", True),
        ("application/pdf", True),
        ("text/plain", True),
        ("text/x-whatever", True),
        ("text/", False),
        ("text", False),
        ("image/bmp", False),
        ("application/json", False),
        ("video/mp4", False),
        ("", False),
    ],
)
def test_only_images_pdf_and_texts_can_be_attached(media_type: str, attachable: bool) -> None:
    assert media_types.is_attachable(media_type) is attachable


def test_a_bare_media_type_has_no_parameters_and_is_lower_case() -> None:
    assert media_types.bare("Text/Plain; charset=utf-8") == "text/plain"


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", PNG + b"rest"),
        ("image/jpeg", b"\xff\xd8\xff\xe0"),
        ("image/gif", b"GIF87a"),
        ("image/gif", b"GIF89a..."),
        ("image/webp", b"RIFF\x10\0\0\0WEBPVP8 "),
        ("application/pdf", b"%PDF-1.7\n"),
        ("application/pdf", b"\n" * 1000 + b"%PDF-1.7\n"),
        ("text/plain", "grüße\n".encode()),
    ],
)
def test_content_of_a_media_type_matches_it(media_type: str, data: bytes) -> None:
    assert media_types.matches_content(media_type, data)


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", b"\xff\xd8\xff\xe0"),
        ("image/png", PNG[:-1]),
        ("image/jpeg", PNG),
        ("image/webp", b"RIFF\x10\0\0\0WAVEfmt "),
        ("application/pdf", b"not a document"),
        ("application/pdf", b"\n" * 1024 + b"%PDF-1.7\n"),
        ("text/plain", b"\xff\xfe\x00"),
        ("text/plain", b"a\0b"),
        *((media_type, b"") for media_type in ("image/png", "application/pdf", "text/plain")),
    ],
)
def test_other_content_does_not_match_a_media_type(media_type: str, data: bytes) -> None:
    assert not media_types.matches_content(media_type, data)
