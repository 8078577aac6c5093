"""``ls``, ``find`` and ``grep``."""

from __future__ import annotations

import io
import os
import re
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from nousd.errors import ToolError
from nousd.redaction.redactor import Redactor
from nousd.tools.fs.globs import glob_matcher
from nousd.tools.search import _search_main
from nousd.tools.search.process import search
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import Bench


@pytest.fixture
def tree(bench: Bench) -> Bench:
    bench.put("b.py", "import os\nprint('b')\n")
    bench.put("A.txt", "alpha\nBeta\nbeta\n")
    bench.put("src/main.py", "def main():\n    pass\n")
    bench.put("src/deep/x.py", "x = 1\n")
    bench.put(".git/config", "import secrets\n")
    bench.put("data.bin", b"import\0x\n")
    (bench.work / "loop").symlink_to(".")
    return bench


async def test_ls_sorts_without_case_and_marks_directories(tree: Bench) -> None:
    listed = await tree.text("ls")
    assert listed == ".git/\nA.txt\nb.py\ndata.bin\nloop\nsrc/"
    assert await tree.text("ls", path="src") == "deep/\nmain.py"


async def test_ls_reports_an_empty_directory(bench: Bench) -> None:
    (bench.work / "empty").mkdir()
    assert await bench.text("ls", path="empty") == "(empty folder)"


async def test_ls_reports_the_number_of_omitted_names(tree: Bench) -> None:
    listed = await tree.text("ls", limit=2)
    assert listed == ".git/\nA.txt\n\n[2 of 6 names are shown; raise limit for more.]"


async def test_names_that_are_not_valid_text_are_listed(bench: Bench) -> None:
    (bench.work / "caf\udce9").write_text("x")
    assert await bench.text("ls") == "caf?"
    assert await bench.text("find", pattern="caf*") == "caf?"


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["b.py", "src/deep/x.py", "src/main.py"]),
        ("src/*.py", ["src/main.py"]),
        ("src/**/*.py", ["src/deep/x.py", "src/main.py"]),
        ("**/deep", ["src/deep/"]),
        ("*.{txt,py}", ["A.txt", "b.py", "src/deep/x.py", "src/main.py"]),
        ("[ab].*", ["b.py"]),
        ("config", []),
        ("nothing", []),
    ],
)
async def test_find_matches_globs_in_order(pattern: str, found: list[str], tree: Bench) -> None:
    expected = "\n".join(found) or "No files found."
    assert await tree.text("find", pattern=pattern) == expected


async def test_paths_from_find_can_be_passed_to_read(tree: Bench) -> None:
    (path,) = (await tree.text("find", pattern="x.*", path="src")).splitlines()
    assert path == "src/deep/x.py"
    assert await tree.text("read", path=path) == "x = 1"


async def test_find_reports_that_there_are_more_paths(tree: Bench) -> None:
    text = await tree.text("find", pattern="*.py", limit=2)
    assert (
        text
        == "b.py\nsrc/deep/x.py\n\n[The first 2 paths are shown; raise limit or narrow pattern.]"
    )
    assert "[" not in await tree.text("find", pattern="*.py", limit=3)


@pytest.mark.slow
async def test_a_long_list_is_cut_and_stored_whole(bench: Bench) -> None:
    for number in range(2100):
        bench.put(f"{number:04d}", "")
    result = await bench.call("find", pattern="*", limit=3000)
    assert "[Output cut: the first 2000 of 2100 lines are shown" in result.text
    assert result.full == b"".join(b"%04d\n" % number for number in range(2100))


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    ("args", "found"),
    [
        ({"pattern": "import"}, ["b.py:1: import os"]),
        ({"pattern": "^beta$"}, ["A.txt:3: beta"]),
        ({"pattern": "^beta$", "ignoreCase": True}, ["A.txt:2: Beta", "A.txt:3: beta"]),
        ({"pattern": "main()", "literal": True}, ["src/main.py:1: def main():"]),
        ({"pattern": ".", "glob": "x.*"}, ["src/deep/x.py:1: x = 1"]),
        ({"pattern": "pass", "path": "src"}, ["src/main.py:2:     pass"]),
        ({"pattern": "b", "path": "b.py"}, ["b.py:2: print('b')"]),
        ({"pattern": "nowhere"}, ["No matches found."]),
        (
            {"pattern": "Beta", "context": 1},
            ["A.txt-1- alpha", "A.txt:2: Beta", "A.txt-3- beta"],
        ),
    ],
)
async def test_grep_finds_matching_lines(
    args: dict[str, Any], found: list[str], tree: Bench
) -> None:
    assert (await tree.text("grep", **args)).splitlines() == found


async def test_lines_of_context_are_printed_once(bench: Bench) -> None:
    bench.put("a.txt", "0\n1\nx\n3\nx\n5\n6\n7\nx\n")
    text = await bench.text("grep", pattern="x", path="a.txt", context=1)
    assert text.splitlines() == [
        "a.txt-2- 1",
        "a.txt:3: x",
        "a.txt-4- 3",
        "a.txt:5: x",
        "a.txt-6- 5",
        "a.txt-8- 7",
        "a.txt:9: x",
    ]


async def test_grep_reports_that_there_are_more_matches(bench: Bench) -> None:
    bench.put("a.txt", "x\n" * 5)
    text = await bench.text("grep", pattern="x", limit=2)
    note = "[The first 2 matches are shown; raise limit or narrow pattern.]"
    assert text == f"a.txt:1: x\na.txt:2: x\n\n{note}"
    assert "[" not in await bench.text("grep", pattern="x", limit=5)


async def test_long_lines_are_searched_whole_and_shown_in_part(bench: Bench) -> None:
    bench.put("a.txt", "y" * 60_000 + "x" + "y" * 200_000 + "\nx\n")
    text = await bench.text("grep", pattern="x")
    assert text == "a.txt:1: " + "y" * 500 + "... [line cut]\na.txt:2: x"


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("cut", range(1, len("sk-secret-0123456789")))
async def test_a_line_is_cut_when_its_secrets_are_removed(cut: int, bench: Bench) -> None:
    key = "sk-secret-0123456789"
    bench.context = msgspec.structs.replace(bench.context, secrets=Redactor([key]))
    bench.put("a.txt", "y" * (500 - cut) + key + "z" * 100)
    text = await bench.text("grep", pattern="y")
    before = "a.txt:1: " + "y" * (500 - cut)
    assert text == f"{before}{'[redacted]zzzzzzzzz'[:cut]}... [line cut]"


async def test_a_nul_in_a_line_hides_nothing_of_it(bench: Bench) -> None:
    bench.put("a.txt", "-" * 10_000 + "\nx\0 7 y\n")
    assert await bench.text("grep", pattern="y") == "a.txt:2: x\ufffd 7 y"


async def test_files_that_cannot_be_opened_do_not_end_a_search(tree: Bench) -> None:
    os.mkfifo(tree.work / "fifo")
    (tree.work / "dangling").symlink_to("nowhere")
    assert await tree.text("grep", pattern="import") == "b.py:1: import os"


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    ("tool", "args", "text"),
    [
        ("grep", {"pattern": "("}, "validation_failed: grep.pattern: missing )"),
        ("grep", {"pattern": "x", "glob": "{a,b}" * 9}, "validation_failed: grep.glob: braces"),
        ("find", {"pattern": "{a,b}" * 9}, "validation_failed: find.pattern: braces stand for"),
        ("grep", {"pattern": "x", "path": "no"}, "grep_failed: no: No such file or directory"),
        ("find", {"pattern": "x", "path": "no"}, "find_failed: no: No such file or directory"),
        ("find", {"pattern": "x", "path": "b.py"}, "find_failed: b.py: Not a directory"),
        ("ls", {"path": "b.py"}, "ls_failed: b.py: Not a directory"),
    ],
)
async def test_an_impossible_search_is_refused_with_the_reason(
    tool: str, args: dict[str, Any], text: str, tree: Bench
) -> None:
    with pytest.raises(ToolError) as caught:
        await tree.call(tool, **args)
    assert str(caught.value).startswith(text)


CATASTROPHIC = {
    "pattern": "^(a+)+$",
    "path": "a.txt",
    "glob": "**",
    "ignore_case": False,
    "literal": False,
    "context": 0,
    "limit": 100,
}


async def test_a_search_that_takes_too_long_is_ended(bench: Bench) -> None:
    bench.put("a.txt", "a" * 60 + "!\n")
    with pytest.raises(ToolError, match=r"^grep_failed: took longer than 0.3 seconds"):
        with trio.fail_after(WAIT_SECONDS):
            await search("grep", CATASTROPHIC, bench.context, empty_text="", seconds_max=0.3)


async def test_a_search_that_takes_forever_can_be_cancelled(bench: Bench) -> None:
    bench.put("a.txt", "a" * 60 + "!\n")
    with trio.fail_after(WAIT_SECONDS):
        with trio.move_on_after(0.2) as scope:
            await bench.call("grep", pattern="^(a+)+$")
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*", "a/b", True),
        ("a", "x/a", True),
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("./a", "a", True),
        ("a/**", "a/b/c", True),
        ("**/c", "c", True),
        ("**/b/**/c", "a/b/c", True),
        ("**/b/**/c", "a/c", False),
        ("{a,b/c}", "b/c", True),
        ("{a,{b,c}}", "c", True),
        ("a{,b}", "a", True),
        ("{", "{", True),
        ("*.PY", "a.py", False),
        ("/", "a", False),
        ("./", "a", False),
        (".", "a/b", True),
        ("[^a]", "^", True),
        ("[z-a]", "z", False),
    ],
)
def test_a_glob_matches_or_does_not_match_a_path(pattern: str, path: str, *, matches: bool) -> None:
    assert glob_matcher(pattern)(tuple(path.split("/"))) is matches


def test_a_glob_of_many_stars_is_matched_without_backtracking() -> None:
    assert not glob_matcher("**/a/" * 20 + "b")(("a",) * 100)


@given(
    content=st.lists(st.sampled_from([b"a", b"ab", b".", b"\n", b"\r", b"\xc3\xa9", b"\xff"])).map(
        b"".join
    ),
    pattern=st.sampled_from(["a", "ab", "aab", "é", "a.", "[ab]b", "(?i)AB", "", "b\n"]),
    literal=st.booleans(),
    ignore_case=st.booleans(),
)
@example(content=b"\n\naab\n\n\n\n", pattern="aab", literal=False, ignore_case=False)
def test_lines_match_as_if_each_were_searched(
    content: bytes, pattern: str, *, literal: bool, ignore_case: bool
) -> None:
    request = {"pattern": pattern, "literal": literal, "ignore_case": ignore_case}
    search = _search_main._expression(request).search
    # So short that a file consists of several blocks, and its lines of several pieces.
    with patch.multiple(_search_main, LINE_BYTES_MAX=8, _BLOCK_BYTES=4):
        lines = _search_main._lines(io.BytesIO(content), _search_main._needle(request))
        found = [line for line in lines if search(line)]
    assert found == [line for line in lines_of(content, 8) if search(line)]


def lines_of(content: bytes, bytes_max: int) -> list[str]:
    """Return the lines of a file, without what is too long of them."""
    lines = [line[:bytes_max] for line in re.findall(rb"[^\n]*\n|[^\n]+", content)]
    return [line.decode("utf-8", "replace").rstrip("\r\n") for line in lines]
