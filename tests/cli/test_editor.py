"""The line being typed: keys in, lines out, and the row that shows it."""

from __future__ import annotations

import pytest

from nousd.cli.chat.editor import TEXT_CHARS_MAX, Control, LineEditor, TypedLine, cells

PASTE, END = "\x1b[200~", "\x1b[201~"


def editor() -> LineEditor:
    return LineEditor(lambda _: None)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("abc\x7f\x08d", "ad"),
        ("abc\x1b[D\x1b[Dx", "axbc"),
        ("abc\x01x\x05y", "xabcy"),
        ("abc\x1b[Hx\x1b[Fy", "xabcy"),
        ("abc\x1bOD\x1b[3~", "ab"),
        ("abc\x1b[D\x04", "ab"),
        ("one two\x17x", "one x"),
        ("one two\x1bbx", "one xtwo"),
        ("one two\x01\x1bfx", "onex two"),
        ("one two\x1b[1;5D\x0b", "one "),
        ("one two\x1b[D\x15", "o"),
        ("a\x1b\rb", "a\nb"),
        ("né 日本 e\u0301", "né 日本 e\u0301"),
        ("a\tb\x00\x1e\x1b[99;9Xc", "abc"),
    ],
)
def test_keys_edit_the_line(keys: str, text: str) -> None:
    whole, one_by_one = editor(), editor()
    assert whole.feed(f"{keys}\r") == [TypedLine(text, pasted=False)]
    typed = [each for key in f"{keys}\r" for each in one_by_one.feed(key)]
    assert typed == [TypedLine(text, pasted=False)]


def test_a_paste_is_inserted_as_it_is_however_it_is_cut() -> None:
    keys = f"a{PASTE}1\r\n2\r3\n\x1b[D\x04{END}b\r"
    for cut in range(len(keys)):
        line = editor()
        typed = [*line.feed(keys[:cut]), *line.feed(keys[cut:])]
        assert typed == [TypedLine("a1\n2\n3\n\x1b[D\x04b", pasted=True)]


def test_lines_that_come_in_one_piece_count_as_pasted() -> None:
    line = editor()
    assert line.feed("a\rb\rc") == [TypedLine("a", pasted=True), TypedLine("b", pasted=True)]
    assert line.feed("\r") == [TypedLine("c", pasted=True)]
    assert line.feed("d\r") == [TypedLine("d", pasted=False)]


def test_a_paste_that_was_deleted_whole_is_forgotten() -> None:
    line = editor()
    assert line.feed(f"{PASTE}y{END}\x7fy\r") == [TypedLine("y", pasted=False)]
    assert line.feed(f"{PASTE}y{END}n\x1b[D\x7f\r") == [TypedLine("n", pasted=True)]


def test_the_beginning_of_a_line_and_its_end_by_deletion_are_told() -> None:
    told: list[bool] = []
    line = LineEditor(told.append)
    for keys in ("a", "b", "\x7f", "\x7f", "c", "\r", "d", "\x15"):
        line.feed(keys)
    assert told == [True, False, True, True, False]
    line.feed("e")
    line.clear()
    assert told[5:] == [True, False]


def test_a_line_is_recalled_and_a_draft_kept() -> None:
    line = editor()
    line.feed("one\r")
    line.feed("two\r")
    line.feed("dra\x1b[A\x1b[A\x1b[A")
    assert line.text == "one"
    line.feed("\x1b[B\x1b[B\x1b[B")
    assert line.text == "dra"


def test_control_d_ends_the_input_in_an_empty_line_only() -> None:
    line = editor()
    assert line.feed("a\x04") == []
    assert line.feed("\x7f\x04") == [Control.END]
    assert line.feed("\x1a") == [Control.SUSPEND]


def test_a_line_that_could_not_be_sent_does_not_replace_another() -> None:
    line = editor()
    line.restore("first")
    line.restore("second")
    assert line.text == "first"


def test_the_text_is_bounded() -> None:
    line = editor()
    line.feed(PASTE + "x" * (TEXT_CHARS_MAX + 10) + END)
    line.feed("y")
    assert len(line.text) == TEXT_CHARS_MAX


def test_the_row_shows_the_line_around_the_cursor() -> None:
    line = editor()
    line.feed("0123456789" * 3)
    assert line.view("> ", 20) == ("> 45678901234567890123456789"[:2] + "4567890123456789", 18)
    line.feed("\x01")
    assert line.view("> ", 20) == ("> 01234567890123456", 2)


def test_the_row_shows_what_would_be_invisible_and_never_exceeds_the_terminal() -> None:
    line = editor()
    line.feed(f"{PASTE}日\u202e\nab{END}")
    assert line.view("> ", 80) == ("[2 lines] > 日<U+202E><LF>abc"[:-1], 28)
    for columns in range(1, 60):
        row, left = line.view("> ", columns)
        assert left <= cells(row)
        assert columns < 20 or cells(row) < columns


def test_wide_and_combining_characters_are_counted() -> None:
    assert [cells(text) for text in ("abc", "日本", "e\u0301", "é")] == [3, 4, 1, 1]
