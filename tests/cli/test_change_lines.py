"""Changes of files that wait for approval, as diffs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nousd.cli.render.change_lines import change_lines, without_texts


def request(tool_name: str, **args: Any) -> dict[str, Any]:
    return {"tool_name": tool_name, "args": args}


def test_an_edit_is_shown_as_a_diff_and_keeps_its_other_arguments() -> None:
    asked = request("edit", path="a", oldText="one\ntwo\n", newText="one\n2\n", replaceAll=True)
    assert change_lines(asked, "/w") == ["@@ -1,2 +1,2 @@", " one", "-two", "+2"]
    assert without_texts(asked)["args"] == {"path": "a", "replaceAll": True}


def test_an_edit_is_shown_where_its_piece_is_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n4\n5\n6\n")
    asked = request("edit", path="a", oldText="5", newText="five")
    assert change_lines(asked, str(tmp_path)) == [
        "@@ -2,5 +2,5 @@",
        *(" 2", " 3", " 4", "-5", "+five", " 6"),
    ]


def test_an_edit_whose_piece_is_there_twice_is_shown_as_the_piece_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n1\n")
    asked = request("edit", path="a", oldText="1", newText="2", replaceAll=True)
    assert change_lines(asked, str(tmp_path)) == ["@@ -1 +1 @@", "-1", "+2"]


def test_a_write_is_compared_with_the_file_in_the_workspace(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(3000)]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    lines[2000] = "new"
    asked = request("write", path="a", content="\n".join(lines) + "\n")
    assert change_lines(asked, str(tmp_path)) == [
        "@@ -1998,7 +1998,7 @@",
        *(f" line {number}" for number in (1997, 1998, 1999)),
        "-line 2000",
        "+new",
        *(f" line {number}" for number in (2001, 2002, 2003)),
    ]


def test_a_missing_line_end_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    asked = request("write", path="a", content="one")
    assert change_lines(asked, str(tmp_path)) == ["@@ -1,2 +1 @@", " one", "-"]


def test_a_new_file_is_shown_whole_and_one_that_cannot_be_read_is_said_to_be(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    new, pipe = (request("write", path=name, content="x\n") for name in ("new", "pipe"))
    assert change_lines(new, str(tmp_path)) == ["(a new file)", "+x"]
    assert change_lines(pipe, str(tmp_path))[0] == "(what the file holds now cannot be read)"


def test_a_long_change_is_bounded_and_says_how_much_is_left_out() -> None:
    patch = "".join(f"+{number}\n-{number}\n" for number in range(50)) + "+" + "x" * 1000
    shown = change_lines(request("patch", patch=patch), "/w")
    assert len(shown) == 81
    assert shown[-1] == "(21 more lines: 11 added, 10 removed)"
    [cut] = change_lines(request("patch", patch="+" + "x" * 1000), "/w")
    assert cut.endswith("x (701 more characters)")


def test_hidden_characters_in_a_change_are_shown_and_tabs_kept() -> None:
    asked = request("edit", path="a", oldText="\ta", newText="\ta\u202e\x1b[2J")
    assert change_lines(asked, "/w")[1:] == ["-\ta", "+\ta<U+202E><U+001B>[2J"]


def test_shortened_arguments_are_named() -> None:
    asked = request("edit", path="a", oldText="a", newText="b") | {"args_ref": "art-1"}
    assert change_lines(asked, "/w")[-1] == "(shortened; the whole: nousctl artifact get art-1)"


def test_other_tools_and_unusual_arguments_are_left_as_they_are() -> None:
    for asked in (request("bash", command="ls"), request("write", path="a", content=3)):
        assert change_lines(asked, "/w") == []
        assert without_texts(asked) == asked
