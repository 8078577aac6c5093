from __future__ import annotations

import msgspec
import pytest

from nousd.errors import ToolError
from nousd.redaction.redactor import Redactor
from nousd.tools.builtin import read
from nousd.wire.limits import TOOL_RESULT_BYTES_MAX, TOOL_RESULT_LINES_MAX
from tests.tools.bench import Bench


def numbered(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(1, count + 1))


async def test_a_small_file_is_returned_whole(bench: Bench) -> None:
    bench.put("a.txt", "one\ntwo\n")
    bench.put("b.txt", "no newline")
    assert await bench.text("read", path="a.txt") == "one\ntwo"
    assert await bench.text("read", path="b.txt") == "no newline"


async def test_an_empty_file_is_reported_as_empty(bench: Bench) -> None:
    bench.put("a.txt", "")
    assert await bench.text("read", path="a.txt") == "(empty file)"


@pytest.mark.parametrize("lines", [1, 1999, 2000])
async def test_a_file_up_to_the_line_limit_has_no_note(lines: int, bench: Bench) -> None:
    bench.put("a.txt", numbered(lines))
    assert await bench.text("read", path="a.txt") == numbered(lines).rstrip("\n")


async def test_pages_read_by_following_the_notes_join_to_the_whole_file(bench: Bench) -> None:
    bench.put("a.txt", numbered(2 * TOOL_RESULT_LINES_MAX + 1))
    pages, offset = [], 1
    for last in (2000, 4000):
        page, note = (await bench.text("read", path="a.txt", offset=offset)).split("\n\n")
        pages.append(page)
        assert note == f"[Lines {offset}-{last} are shown; continue with offset={last + 1}.]"
        offset = last + 1
    pages.append(await bench.text("read", path="a.txt", offset=offset))
    assert "\n".join(pages) + "\n" == numbered(4001)


async def test_offset_and_limit_select_lines(bench: Bench) -> None:
    bench.put("a.txt", numbered(10))
    text = await bench.text("read", path="a.txt", offset=4, limit=2)
    assert text == "line 4\nline 5\n\n[Lines 4-5 are shown; continue with offset=6.]"
    assert await bench.text("read", path="a.txt", offset=10, limit=5) == "line 10"
    assert await bench.text("read", path="a.txt", offset=9, limit=2) == "line 9\nline 10"


@pytest.mark.parametrize(("content", "lines"), [("a\nb\n", 2), ("a\nb", 2), ("a\n\n", 2)])
async def test_an_offset_after_the_end_is_refused_with_the_number_of_lines(
    content: str, lines: int, bench: Bench
) -> None:
    bench.put("a.txt", content)
    for offset in (lines + 1, lines + 2, 1000):
        with pytest.raises(ToolError) as caught:
            await bench.call("read", path="a.txt", offset=offset)
        assert str(caught.value) == (
            f"read_failed: offset {offset} is behind the end of a.txt, which has {lines} lines"
        )


async def test_a_page_ends_at_the_byte_limit(bench: Bench) -> None:
    bench.put("a.txt", ("x" * 99 + "\n") * 1000)
    text = await bench.text("read", path="a.txt")
    assert text.endswith("\n\n[Lines 1-512 are shown; continue with offset=513.]")


async def test_a_line_that_is_too_long_is_cut_and_later_lines_are_readable(bench: Bench) -> None:
    bench.put("a.txt", "short\n" + "x" * 200_000 + "\nlast\n")
    first = await bench.text("read", path="a.txt")
    assert first == "short\n\n[Lines 1-1 are shown; continue with offset=2.]"
    long, note = (await bench.text("read", path="a.txt", offset=2)).split("\n\n")
    assert long == "x" * TOOL_RESULT_BYTES_MAX
    assert note == (
        f"[Line 2 is longer than {TOOL_RESULT_BYTES_MAX} bytes; only its beginning is shown."
        " Lines 2-2 are shown; continue with offset=3.]"
    )
    assert await bench.text("read", path="a.txt", offset=3) == "last"


@pytest.mark.parametrize("offset", [1, 2, 30_000, 100_000, 262_144, 262_145, 400_000])
async def test_an_offset_is_found_across_the_chunks_of_a_file(offset: int, bench: Bench) -> None:
    # 400,000 lines of 4 bytes: the first chunk of 1 MiB ends with line 262,144.
    thousand = b"".join(b"%03d\n" % (number % 1000) for number in range(1, 1001))
    bench.put("a.txt", thousand * 400)
    text = await bench.text("read", path="a.txt", offset=offset, limit=1)
    assert text.split("\n")[0] == f"{offset % 1000:03d}"


async def test_invalid_bytes_are_replaced(bench: Bench) -> None:
    bench.put("a.txt", b"caf\xe9\n")
    assert await bench.text("read", path="a.txt") == "caf\ufffd"


async def test_a_byte_order_mark_is_removed(bench: Bench) -> None:
    bench.put("a.txt", b"\xef\xbb\xbfhello")
    assert await bench.text("read", path="a.txt") == "hello"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "an image (image/png)"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "an image (image/jpeg)"),
        (b"\x7fELF\0\0", "a binary file"),
        ("utf-16".encode("utf-16"), "a binary file"),
    ],
)
async def test_a_file_that_is_not_text_is_refused_with_its_kind(
    content: bytes, kind: str, bench: Bench
) -> None:
    bench.put("a.bin", content)
    with pytest.raises(ToolError) as caught:
        await bench.call("read", path="a.bin")
    assert str(caught.value) == f"read_failed: a.bin is {kind}, not text"


async def test_a_path_that_cannot_be_read_is_refused_with_the_reason(bench: Bench) -> None:
    bench.put("sub/a.txt", "")
    cases = {
        "missing.txt": "No such file or directory",
        "sub": "Is a directory",
        "sub/a.txt/x": "Not a directory",
        ".": "Is a directory",
    }
    for path, reason in cases.items():
        with pytest.raises(ToolError) as caught:
            await bench.call("read", path=path)
        assert str(caught.value) == f"read_failed: {path}: {reason}"


@pytest.mark.parametrize(
    ("args", "first", "last"),
    [({}, 1, 3000), ({"offset": 11}, 11, 3000), ({"offset": 11, "limit": 2500}, 11, 2510)],
)
async def test_lines_cut_off_by_the_limits_are_stored_whole(
    bench: Bench, args: dict[str, int], first: int, last: int
) -> None:
    bench.put("a.txt", numbered(3000))
    result = await bench.call("read", path="a.txt", **args)
    assert isinstance(result.full, bytes)
    stored = result.full.decode().splitlines()
    assert (stored[0], stored[-1], len(stored)) == (
        f"line {first}",
        f"line {last}",
        last - first + 1,
    )


async def test_lines_that_were_not_requested_are_not_stored(bench: Bench) -> None:
    bench.put("a.txt", numbered(3000))
    for args in ({"limit": 20}, {"offset": 2990}):
        result = await bench.call("read", path="a.txt", **args)
        assert result.full is None


async def test_a_line_that_is_too_long_is_stored_whole(bench: Bench) -> None:
    bench.put("a.txt", "x" * 200_000 + "\nend\n")
    result = await bench.call("read", path="a.txt", limit=1)
    assert result.full == b"x" * 200_000


KEY = "sk-secret-0123456789"


@pytest.mark.slow(keep=7)
@pytest.mark.parametrize("cut", range(1, len(KEY)))
async def test_a_line_is_cut_behind_its_secrets_are_removed(cut: int, bench: Bench) -> None:
    bench.context = msgspec.structs.replace(bench.context, secrets=Redactor([KEY]))
    before = "x" * (TOOL_RESULT_BYTES_MAX - cut)
    for behind in ("", "\nnext\n", "y" * 2_000_000):
        bench.put("a.txt", before + KEY + behind)
        shown = (await bench.text("read", path="a.txt")).split("\n")[0]
        assert shown == f"{before}[redacted]{behind}"[: len(shown)]
        assert len(before) <= len(shown) <= TOOL_RESULT_BYTES_MAX


async def test_what_is_kept_of_a_long_file_ends_with_no_part_of_a_secret(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 2 * 1024 * 1024
    monkeypatch.setattr(read, "KEPT_BYTES_MAX", kept)
    bench.context = msgspec.structs.replace(bench.context, secrets=Redactor([KEY]))
    for cut in (1, len(KEY) - 1):
        before = "x\n" * (kept // 2 - len(KEY)) + "z" * (2 * len(KEY) - cut)
        bench.put("a.txt", f"{before}{KEY}\n")
        full = (await bench.call("read", path="a.txt")).full
        assert full == f"{before}[redacted]\n".encode()[:kept]
