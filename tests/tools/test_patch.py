"""A patch is applied completely and exactly, or not at all; ``diff`` and ``git`` are the judges."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nousd.errors import ToolError
from nousd.tools.builtin import patch
from nousd.tools.builtin.patch import PATCH, Patch
from nousd.tools.diff.hunks import apply_hunks
from nousd.tools.diff.unified_diff import FileDiff, parse
from nousd.tools.fs import file_changes
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.staged_file import StagedFile
from tests.suites import examples
from tests.tools.bench import Bench

NUMBERS = "".join(f"{number}\n" for number in range(1, 31))

CHANGE = """\
--- a/numbers
+++ b/numbers
@@ -4,3 +4,3 @@
 4
-5
+five
 6
"""


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return the bytes of every file below a directory, and whether it is executable."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def left_over(bench: Bench) -> list[str]:
    return [str(path) for path in bench.work.rglob("*.tmp")]


async def refusal(bench: Bench, text: str, **args: Any) -> str:
    """Apply a patch that must be refused, assert that nothing has changed, and return the error."""
    before, folders = tree(bench.work), sorted(bench.work.rglob("*"))
    with pytest.raises(ToolError) as caught:
        await bench.call("patch", patch=text, **args)
    assert tree(bench.work) == before
    assert sorted(bench.work.rglob("*")) == folders
    return str(caught.value)


# --- changes ---------------------------------------------------------------------------------


async def test_a_change_is_applied_and_reported(bench: Bench) -> None:
    file = bench.put("numbers", NUMBERS)
    assert await bench.text("patch", patch=CHANGE) == "Patched 1 file.\nchanged numbers: +1 -1"
    assert file.read_text() == NUMBERS.replace("5\n", "five\n", 1)
    assert left_over(bench) == []


async def test_a_dry_run_reports_the_changes_and_makes_none(bench: Bench) -> None:
    bench.put("numbers", NUMBERS)
    before = tree(bench.work)
    text = await bench.text("patch", patch=CHANGE, dryRun=True)
    assert text == "The patch fits 1 file; nothing was changed.\nchanged numbers: +1 -1"
    assert tree(bench.work) == before


EVERYTHING = """\
From 0123 Mon Sep 17 00:00:00 2001
Subject: everything

---
 numbers | 2 +-
diff --git a/numbers b/numbers
index e8823e1..0a6f24e 100644
--- a/numbers
+++ b/numbers
@@ -1,2 +1,2 @@ heading
-1
+one
 2
diff --git a/gone b/gone
deleted file mode 100644
index 7898192..0000000
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-a
diff --git a/deep/er/new b/deep/er/new
new file mode 100755
--- /dev/null
+++ b/deep/er/new
@@ -0,0 +1 @@
+new
\\ No newline at end of file
diff --git a/empty b/empty
new file mode 100644
index 0000000..e69de29
diff --git a/old name b/new name
similarity index 50%
rename from old name
rename to new name
--- a/old name
+++ b/new name
@@ -1,2 +1,2 @@
 x
-y
+z
diff --git a/source b/copy
similarity index 100%
copy from source
copy to copy
diff --git a/script b/script
old mode 100644
new mode 100755
diff --git "a/\\303\\251" "b/\\303\\251"
--- "a/\\303\\251"
+++ "b/\\303\\251"
@@ -1 +1,2 @@
 é
+\ttab
--\x20
2.39.5
"""


async def test_every_file_operation_of_a_git_patch_is_applied(bench: Bench) -> None:
    bench.put("numbers", NUMBERS)
    bench.put("gone", "a\n")
    bench.put("old name", "x\ny\n")
    bench.put("source", "s\n")
    bench.put("script", "#!/bin/sh")
    bench.put("é", "é\n")
    output = await bench.text("patch", patch=EVERYTHING)
    assert output.split("\n") == [
        "Patched 8 files.",
        "changed numbers: +1 -1",
        "removed gone: +0 -1",
        "made deep/er/new: +1 -0",
        "made empty: +0 -0",
        "renamed old name to new name: +1 -1",
        "copied source to copy: +0 -0",
        "changed script: +0 -0",
        "changed é: +1 -0",
    ]
    found = tree(bench.work)
    del found[".state/log.db"]
    assert found == {
        "numbers": (NUMBERS.replace("1\n", "one\n", 1).encode(), False),
        "deep/er/new": (b"new", True),
        "empty": (b"", False),
        "new name": (b"x\nz\n", False),
        "source": (b"s\n", False),
        "copy": (b"s\n", False),
        "script": (b"#!/bin/sh", True),
        "é": ("é\n\ttab\n".encode(), False),
    }


async def test_a_file_mode_that_the_patch_does_not_name_is_kept(bench: Bench) -> None:
    file = bench.put("numbers", NUMBERS)
    file.chmod(0o740)
    await bench.call("patch", patch=CHANGE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o740
    text = "diff --git a/numbers b/n2\nrename from numbers\nrename to n2\n"
    await bench.call("patch", patch=text)
    assert stat.S_IMODE((bench.work / "n2").stat().st_mode) == 0o740


async def test_a_later_part_of_a_patch_applies_to_the_result_of_an_earlier_one(
    bench: Bench,
) -> None:
    bench.put("numbers", NUMBERS)
    again = CHANGE.replace("-5\n+five", "-five\n+cinq").replace(" 4\n", " 4\n")
    await bench.call("patch", patch=CHANGE + again)
    assert "\ncinq\n" in (bench.work / "numbers").read_text()


@pytest.mark.parametrize(
    ("old", "new", "strip"),
    [
        ("a/sub/f", "b/sub/f", None),
        ("sub/f", "sub/f", None),
        ("left/sub/f", "right/sub/f", None),
        ("x/y/sub/f", "x/z/sub/f", 2),
        ("a/sub/f\t2026-01-01 00:00:00 +0000", "b/sub/f\t2026-01-02 00:00:00 +0000", None),
        ('"a/sub/f"', '"b/sub/f"', None),
    ],
)
async def test_prefixes_and_quotes_and_dates_are_removed_from_file_names(
    bench: Bench, old: str, new: str, strip: int | None
) -> None:
    file = bench.put("sub/f", "x\n")
    text = f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-x\n+y\n"
    await bench.call("patch", patch=text, strip=strip)
    assert file.read_text() == "y\n"


async def test_a_file_dated_at_the_epoch_counts_as_absent(bench: Bench) -> None:
    epoch = "1970-01-01 00:00:00.000000000 +0000"
    await bench.call("patch", patch=f"--- old/n\t{epoch}\n+++ new/n\n@@ -0,0 +1 @@\n+x\n", strip=1)
    assert (bench.work / "n").read_text() == "x\n"
    text = f"--- old/n\n+++ new/n\t{epoch}\n@@ -1 +0,0 @@\n-x\n"
    await bench.call("patch", patch=text, strip=1)
    assert not (bench.work / "n").exists()


# --- positions of hunks ----------------------------------------------------------------------


async def test_a_hunk_with_a_wrong_line_number_applies_at_its_only_match(bench: Bench) -> None:
    file = bench.put("numbers", "0\n0\n" + NUMBERS)
    output = await bench.text("patch", patch=CHANGE)
    assert output.endswith("changed numbers: +1 -1 (1 of 1 hunks on other lines than they say)")
    assert file.read_text() == "0\n0\n" + NUMBERS.replace("5\n", "five\n", 1)


async def test_a_hunk_with_a_wrong_line_number_and_two_matches_is_refused(bench: Bench) -> None:
    bench.put("numbers", "x\n" + NUMBERS + NUMBERS)
    assert await refusal(bench, CHANGE) == (
        "patch_failed: numbers: the hunk of line 3 fits at lines 5 and 35, but not at line 4, which it"
        " names; give the right number or more lines around it"
    )


async def test_a_hunk_with_two_matches_applies_at_its_line_number(bench: Bench) -> None:
    file = bench.put("numbers", NUMBERS + NUMBERS)
    await bench.call("patch", patch=CHANGE)
    assert file.read_text() == NUMBERS.replace("5\n", "five\n", 1) + NUMBERS


async def test_a_hunk_with_different_white_space_is_refused(bench: Bench) -> None:
    bench.put("numbers", NUMBERS.replace("4\n", "4 \n", 1))
    assert await refusal(bench, CHANGE) == (
        "patch_failed: numbers: the hunk of line 3 does not fit: expected '4\\n', found '4 \\n'"
    )


async def test_a_last_line_without_a_newline_does_not_match_one_with_a_newline(
    bench: Bench,
) -> None:
    bench.put("f", "a\nb")
    text = "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert "expected 'b\\n', found 'b'" in await refusal(bench, text)
    await bench.call("patch", patch=text.replace("-b\n", "-b\n\\ No newline at end of file\n"))
    assert (bench.work / "f").read_bytes() == b"a\nc\n"


async def test_a_file_with_crlf_keeps_its_line_endings(bench: Bench) -> None:
    file = bench.put("numbers", NUMBERS.replace("\n", "\r\n"))
    await bench.call("patch", patch=CHANGE)
    assert file.read_bytes() == NUMBERS.replace("5\n", "five\n", 1).replace("\n", "\r\n").encode()


async def test_a_patch_with_crlf_applies_to_a_file_with_lf(bench: Bench) -> None:
    file = bench.put("numbers", NUMBERS)
    await bench.call("patch", patch=CHANGE.replace("\n", "\r\n"))
    assert file.read_text() == NUMBERS.replace("5\n", "five\n", 1)


async def test_invalid_bytes_and_a_byte_order_mark_are_kept(bench: Bench) -> None:
    file = bench.put("f", b"\xef\xbb\xbfa\nb\n\xff\xfe\n")
    await bench.call("patch", patch="--- f\n+++ f\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n")
    assert file.read_bytes() == b"\xef\xbb\xbfA\nb\n\xff\xfe\n"


# --- all or nothing --------------------------------------------------------------------------

SECOND = "--- a/other\n+++ b/other\n@@ -1 +1 @@\n-x\n+y\n"

FAULTS = {
    "a hunk does not fit": (CHANGE + SECOND.replace("-x", "-z"), "expected 'z\\n', found 'x\\n'"),
    "a file is missing": (CHANGE + SECOND.replace("other", "missing"), "missing: is not there"),
    "a count is wrong": (CHANGE.replace("-4,3 +4,3", "-4,4 +4,4"), "more old and 1 more new lines"),
    "lines are left over": (CHANGE + " 7\n", "line 8: a line of no hunk"),
    "there are no hunks": ("--- numbers\n+++ numbers\n", "no hunk for numbers"),
    "nothing is said": (
        "diff --git a/numbers b/numbers\nindex 1..2\n",
        "nothing is said of numbers",
    ),
    "a hunk has no file": ("@@ -1 +1 @@\n-1\n+2\n", "line 1: a hunk without a file"),
    "there is nothing": ("no patch at all\n", "there is no file in the patch"),
    "a hunk has no numbers": ("--- f\n+++ f\n@@ @@\n-1\n+2\n", "line 3: a hunk begins with"),
    "an insertion has nothing around it": (
        "--- numbers\n+++ numbers\n@@ -3,0 +4 @@\n+x\n",
        "has neither lines around it nor lines to remove",
    ),
    "a made file is there": (
        CHANGE + "--- /dev/null\n+++ b/other\n@@ -0,0 +1 @@\n+x\n",
        "other: is there already",
    ),
    "a removed file has more": (
        "--- a/numbers\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
        "numbers: is not empty without the lines",
    ),
    "a rename has a target": (
        CHANGE + "diff --git a/numbers b/other\nrename from numbers\nrename to other\n",
        "other: is there already",
    ),
    "it is binary": (
        CHANGE + "Binary files a/x and b/x differ\n",
        "binary files cannot be patched",
    ),
    "it is binary for git": (
        "diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 1\n",
        "binary files cannot be patched",
    ),
    "the file is binary": (CHANGE.replace("numbers", "binary"), "binary: is a binary file"),
    "it makes a link": (
        "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
        "only regular files can be patched",
    ),
    "it names two files": ("--- x\n+++ y\n@@ -1 +1 @@\n-x\n+y\n", "two names for one file"),
    "it removes a link": ("--- a/link\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "link: is a link"),
    "it is a folder": (CHANGE.replace("numbers", "folder"), "folder: Is a directory"),
    "nothing is left of a path": (CHANGE + SECOND, "no path with 3 folders to take off"),
}


@pytest.mark.behaviour("a_patch_is_applied_whole_or_not_at_all")
@pytest.mark.parametrize("case", FAULTS)
async def test_a_patch_with_a_fault_changes_nothing(bench: Bench, case: str) -> None:
    bench.put("numbers", NUMBERS)
    bench.put("other", "x\n")
    bench.put("binary", b"\0" + NUMBERS.encode())
    (bench.work / "folder").mkdir()
    (bench.work / "link").symlink_to("other")
    text, said = FAULTS[case]
    strip = 3 if "3 folders" in said else None
    assert said in await refusal(bench, text, strip=strip)


@pytest.mark.parametrize("put", range(4))
async def test_written_files_are_restored_when_a_later_one_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, put: int
) -> None:
    bench.put("numbers", NUMBERS)
    bench.put("other", "x\n")
    bench.put("gone", "x\n")
    (bench.work / "other").chmod(0o750)
    text = (
        CHANGE
        + SECOND
        + "--- /dev/null\n+++ b/new/folder/f\n@@ -0,0 +1 @@\n+x\n"
        + "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    modes = {path: path.stat().st_mode for path in bench.work.iterdir()}
    real, calls = file_changes._put, []

    def failing(*args: Any) -> None:
        calls.append(args)
        real(*args)
        if len(calls) > put:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_changes, "_put", failing)
    assert await refusal(bench, text) == "patch_failed: the files: Input/output error"
    assert {path: path.stat().st_mode for path in bench.work.iterdir()} == modes


async def test_files_that_cannot_be_restored_are_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("numbers", NUMBERS)
    bench.put("other", "x\n")
    real = file_changes._put

    def failing(
        path_sandbox: PathSandbox, change: file_changes.Change, file: StagedFile | None
    ) -> None:
        if change.parts == ("other",):
            shutil.rmtree(bench.work / "sub")
            raise OSError(5, "Input/output error")
        real(path_sandbox, change, file)

    monkeypatch.setattr(file_changes, "_put", failing)
    bench.put("sub/numbers", NUMBERS)
    with pytest.raises(ToolError) as caught:
        await bench.call("patch", patch=CHANGE.replace("numbers", "sub/numbers") + SECOND)
    assert str(caught.value) == (
        "patch_failed: Input/output error; these files could not be put back: sub/numbers"
    )


async def test_a_directory_that_becomes_a_link_before_the_write_stops_the_patch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patch was allowed for one path and would now be written to another."""
    bench.put("sub/numbers", NUMBERS)
    bench.put("other/numbers", NUMBERS)

    def exchanging(*args: Any) -> None:
        (bench.work / "sub").rename(bench.work / "moved")
        (bench.work / "sub").symlink_to("other")
        file_changes.change_files(*args)

    monkeypatch.setattr(patch, "change_files", exchanging)
    with pytest.raises(ToolError, match=r"^path_changed: sub\S*: a folder became a link"):
        await bench.call("patch", patch=CHANGE.replace("numbers", "sub/numbers"))
    assert (bench.work / "other/numbers").read_text() == NUMBERS
    assert (bench.work / "moved/numbers").read_text() == NUMBERS


async def test_a_call_that_is_cancelled_before_it_begins_changes_nothing(bench: Bench) -> None:
    bench.put("numbers", NUMBERS)
    before = tree(bench.work)
    with trio.CancelScope() as scope:
        scope.cancel()
        await bench.call("patch", patch=CHANGE)
    assert scope.cancelled_caught
    assert tree(bench.work) == before


# --- bounds and facts ------------------------------------------------------------------------


async def test_a_patch_with_too_many_files_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patch, "PATCH_FILES_MAX", 1)
    bench.put("numbers", NUMBERS)
    bench.put("other", "x\n")
    assert await refusal(bench, CHANGE + SECOND) == "patch_failed: more than 1 files"


async def test_files_that_are_too_large_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("numbers", NUMBERS)
    monkeypatch.setattr(patch, "PATCHED_BYTES_MAX", len(NUMBERS))
    assert "larger than" in await refusal(bench, CHANGE)
    monkeypatch.setattr(patch, "TEXT_BYTES_MAX", len(NUMBERS) - 1)
    assert "numbers: is larger than" in await refusal(bench, CHANGE)


async def test_the_access_of_a_call_lists_the_real_path_of_every_file(bench: Bench) -> None:
    bench.put("real/numbers", NUMBERS)
    (bench.work / "link").symlink_to("real")
    text = (
        CHANGE.replace("/numbers", "/link/numbers")
        + "--- /dev/null\n+++ b/not/../yet/there\n@@ -0,0 +1 @@\n+x\n"
        + "diff --git a/from b/to\nrename from from\nrename to to\n"
        + "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    access = await PATCH.access(Patch(text), bench.context)
    assert access.classes == {"write"}
    assert access.paths == ("real/numbers", "yet/there", "from", "to", "gone")
    assert (await PATCH.access(Patch("nothing"), bench.context)).paths == ()


# --- judges ----------------------------------------------------------------------------------

TEXTS = st.lists(
    st.sampled_from(["a", "b", "", "}", " x", "-", "+", "-- ", "@@ -1 +1 @@"]), max_size=12
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    lines = draw(TEXTS)
    end = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    text = end.join(lines) + (end if draw(st.booleans()) else "")
    return text.encode()


def diff_of(old: bytes, new: bytes, context: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in (("old", old), ("new", new)):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "f").write_bytes(data)
        made = subprocess.run(
            ["git", "diff", "--no-index", f"-U{context}", "old/f", "new/f"],
            cwd=folder,
            stdout=subprocess.PIPE,
        )
    return made.stdout.decode()


def apply_with_git(text: str, diff: str) -> str | None:
    """Return the file after ``git apply``; None if the patch does not apply."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f"
        file.write_bytes(text.encode())
        done = subprocess.run(
            ["git", "apply", "-p2", "--whitespace=nowarn"],
            cwd=folder,
            input=diff.encode(),
            stderr=subprocess.DEVNULL,
            env=os.environ | {"GIT_CEILING_DIRECTORIES": folder},
        )
        return file.read_bytes().decode() if done.returncode == 0 else None


PARTS = [
    *("--- a/f", "+++ b/f", "+++ /dev/null", "@@ -1,2 +1 @@", "@@ -0,0 +1 @@", "@@ -1 +1 @@"),
    *("diff --git a/f b/f", " a", "-a", "+a", "-", "+", "\\ No newline at end of file"),
]
OTHERS = [
    *("rename from f", "rename to g", "new file mode 100644", "index 1..2", "@@", "", "-- "),
    *("text", '--- "a', "\0", "Binary files a and b differ"),
]


def parse_or_none(text: str) -> list[FileDiff] | None:
    """Return the diffs in a text; None if it is refused. Any other error fails the test."""
    try:
        return parse(text)
    except ToolError:
        return None


@settings(max_examples=examples(200), deadline=None)
@given(lines=st.lists(st.sampled_from(PARTS + OTHERS)), end=st.sampled_from(["\n", "\r\n"]))
def test_any_text_is_parsed_or_refused(lines: list[str], end: str) -> None:
    diffs = parse_or_none(end.join(lines))
    assert diffs is None or all(diff.old or diff.new for diff in diffs)


@settings(max_examples=examples(200), deadline=None)
@given(lines=st.lists(st.sampled_from(PARTS)), end=st.sampled_from(["\n", "\r\n"]))
def test_no_changed_line_is_skipped(lines: list[str], end: str) -> None:
    """Lines after foreign text may be skipped; these inputs contain no foreign text."""
    diffs = parse_or_none(end.join(lines))
    if diffs is not None:
        taken = sum(hunk.added + hunk.removed for diff in diffs for hunk in diff.hunks)
        before = min(diff.line for diff in diffs) - 1
        changes = sum(line.startswith(("+", "-")) for line in lines[before:])
        names = sum(line.startswith(("--- ", "+++ ")) for line in lines[before:])
        assert taken >= changes - names


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=files(), new=files(), context=st.integers(1, 3))
def test_a_diff_by_git_turns_the_old_file_into_the_new_one(
    old: bytes, new: bytes, context: int
) -> None:
    text = diff_of(old, new, context)
    if text:
        (diff,) = parse(text, 2)
        assert apply_hunks(old.decode(), diff.hunks).text == new.decode()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(old=b"a", new=b"a\na", other=b"a\na")
@example(old=b"b", new=b"a\nb", other=b"b\nb")
@given(old=files(), new=files(), other=files())
def test_a_diff_applies_to_another_file_as_with_git_or_is_refused(
    old: bytes, new: bytes, other: bytes
) -> None:
    text = diff_of(old, new, 3)
    if not text or not other:
        return
    (diff,) = parse(text, 2)
    try:
        ours = apply_hunks(other.decode(), diff.hunks).text
    except ToolError:
        return
    theirs = apply_with_git(other.decode(), text)
    # Git does not match LF with CRLF.
    if theirs is not None and b"\r" not in other and ours != theirs:
        # Git lets a hunk that ends without LF match inside of a file, and joins two lines there.
        assert "\n\\ No newline" in text
        assert theirs.count("\n") == ours.count("\n") - 1
        assert sorted(theirs.replace("\n", "")) == sorted(ours.replace("\n", ""))
