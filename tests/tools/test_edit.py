from __future__ import annotations

import pytest
import trio

from nousd.errors import ToolError
from nousd.tools.fs.text_files import TEXT_BYTES_MAX
from tests.tools.bench import Bench


async def fault(bench: Bench, **args: object) -> str:
    with pytest.raises(ToolError) as caught:
        await bench.call("edit", path="a.txt", **args)
    return str(caught.value)


async def test_the_only_occurrence_is_replaced_and_the_change_is_shown(bench: Bench) -> None:
    file = bench.put("a.txt", "".join(f"line {number}\n" for number in range(1, 12)))
    text = await bench.text("edit", path="a.txt", oldText="line 6\n", newText="six\nsix\n")
    assert "line 5\nsix\nsix\nline 7\n" in file.read_text()
    assert text == (
        "Replaced 1 occurrence in a.txt.\n\n@@ -3,7 +3,8 @@\n"
        " line 3\n line 4\n line 5\n-line 6\n+six\n+six\n line 7\n line 8\n line 9"
    )


async def test_a_change_within_the_first_or_last_line_is_shown_in_whole_lines(bench: Bench) -> None:
    bench.put("a.txt", "first word\nlast")
    text = await bench.text("edit", path="a.txt", oldText="first", newText="1st")
    assert text.endswith("@@ -1,2 +1,2 @@\n-first word\n+1st word\n last")
    text = await bench.text("edit", path="a.txt", oldText="last", newText="end\n")
    assert text.endswith("@@ -1,2 +1,2 @@\n 1st word\n-last\n+end")
    assert (bench.work / "a.txt").read_text() == "1st word\nend\n"


async def test_a_text_that_is_not_found_is_an_error(bench: Bench) -> None:
    file = bench.put("a.txt", "abc")
    text = await fault(bench, oldText="abd", newText="x")
    assert text.startswith("edit_failed: oldText was not found in a.txt; it must match exactly")
    assert file.read_text() == "abc"


@pytest.mark.parametrize(("content", "old", "count"), [("a b a b a", "a", 3), ("aaa", "aa", 2)])
async def test_a_text_with_several_matches_is_an_error(
    content: str, old: str, count: int, bench: Bench
) -> None:
    file = bench.put("a.txt", content)
    text = await fault(bench, oldText=old, newText="x")
    assert text.startswith(f"edit_failed: oldText has {count} matches in a.txt; ")
    assert file.read_text() == content


@pytest.mark.parametrize("name", ["replaceAll", "all"])
async def test_all_occurrences_can_be_replaced(name: str, bench: Bench) -> None:
    file = bench.put("a.txt", "a\n" * 3)
    text = await bench.text("edit", path="a.txt", oldText="a", newText="b", **{name: True})
    assert text.startswith("Replaced 3 occurrences in a.txt.\n\n@@ -1,3 +1,3 @@\n-a\n-a\n-a\n+b")
    assert file.read_text() == "b\n" * 3


async def test_equal_old_and_new_texts_are_an_error(bench: Bench) -> None:
    bench.put("a.txt", "a")
    assert await fault(bench, oldText="a", newText="a") == (
        "edit_failed: oldText and newText are the same"
    )


async def test_text_can_be_deleted(bench: Bench) -> None:
    file = bench.put("a.txt", "keep drop")
    await bench.call("edit", path="a.txt", oldText=" drop", newText="")
    assert file.read_text() == "keep"


@pytest.mark.parametrize("old", ["one\ntwo", "one\r\ntwo"])
async def test_crlf_and_byte_order_mark_are_kept(old: str, bench: Bench) -> None:
    file = bench.put("a.txt", b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    await bench.call("edit", path="a.txt", oldText=old, newText="1\n2")
    assert file.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"


async def test_in_mixed_line_endings_only_the_replaced_text_changes(bench: Bench) -> None:
    file = bench.put("a.txt", b"a\r\nb\r\nc\nd\n\re\r\n")
    await bench.call("edit", path="a.txt", oldText="c\nd", newText="x\ny")
    assert file.read_bytes() == b"a\r\nb\r\nx\ny\n\re\r\n"
    await bench.call("edit", path="a.txt", oldText="a\nb", newText="A\nB")
    assert file.read_bytes() == b"A\r\nB\r\nx\ny\n\re\r\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9", "is not UTF-8 text"),
        (b"a\0b", "is a binary file"),
        (b"a" * (TEXT_BYTES_MAX + 1), "is larger than 16777216 bytes"),
    ],
)
async def test_a_binary_or_too_large_file_is_not_changed(
    content: bytes, reason: str, bench: Bench
) -> None:
    file = bench.put("a.txt", content)
    assert await fault(bench, oldText="a", newText="b") == f"edit_failed: a.txt {reason}"
    assert file.read_bytes() == content


async def test_the_file_mode_is_kept(bench: Bench) -> None:
    file = bench.put("a.txt", "a")
    file.chmod(0o751)
    await bench.call("edit", path="a.txt", oldText="a", newText="b")
    assert file.stat().st_mode & 0o7777 == 0o751


async def test_concurrent_edits_of_one_file_are_all_applied(bench: Bench) -> None:
    file = bench.put("a.txt", "".join(f"<{number}>" for number in range(20)))

    async def edit(number: int) -> None:
        await bench.call("edit", path="a.txt", oldText=f"<{number}>", newText=f"[{number}]")

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(edit, number)
    assert file.read_text() == "".join(f"[{number}]" for number in range(20))


async def test_the_diff_of_a_huge_change_is_omitted(bench: Bench) -> None:
    bench.put("a.txt", "start\n" + "x\n" * 1000 + "end\n")
    text = await bench.text("edit", path="a.txt", oldText="x\n" * 1000, newText="y\n")
    assert text == (
        "Replaced 1 occurrence in a.txt.\n\n[The change spans 1002 lines; the diff is left out.]"
    )
