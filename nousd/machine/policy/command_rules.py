"""Matches the command pattern of a rule against a command line.

``git log`` matches exactly these words, ``git log *`` these words and any after them, ``=TEXT`` only the
line TEXT. A permission matches only commands that it certainly covers and that cannot hide a second
command; a denial or a question also reports possible matches (``maybe``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from nousd.errors import RuleInvalid
from nousd.machine.policy import command_lines
from nousd.machine.policy.command_lines import Words
from nousd.machine.policy.indirect_exec import (
    SHELLS,
    TRANSPARENT,
    find_wrapped_commands,
    may_hide_command,
    program_of,
    reads_line,
    runs_others,
    starts_others,
    takes_script,
)

Match = Literal["yes", "maybe", "no"]

_SHELLS_DEEP: Final = 4
"""Maximum depth of shells in shells, and programs in programs, that is examined."""

_STARTED_MAX: Final = 8
"""Maximum number of programs started by another program that are examined."""

_QUOTES: Final = str.maketrans("", "", "'\"\\")
"""Removes characters that a shell does not treat as part of a word."""

_RENAMING: Final = frozenset({"alias.", "include"})
"""Prefixes of settings by which git and others give their own commands other names."""

_SHELL_OPTION: Final = re.compile(r"-[abefhiklmnprtuvxBCEHPT]*|--(?:login|noprofile|norc|posix)")
"""Options of a shell that take no value."""


class CommandPattern(NamedTuple):
    """The parsed command pattern of a rule.

    Args:
        line: the whole line, if the pattern matches only that line.
        words: the first words of a command.
        goes_on: whether other words may follow.
    """

    line: str | None
    words: Words = ()
    goes_on: bool = False


def command_pattern(text: str) -> CommandPattern:
    """Parse a command pattern.

    Raises:
        RuleInvalid: it is not a valid command pattern.
    """
    if text.startswith("="):
        return CommandPattern(text[1:])
    if text == "*":
        return CommandPattern(None, (), goes_on=True)
    goes_on = text.endswith((" *", "\t*"))
    parts = command_lines.parts_of(text[:-2] if goes_on else text)
    if parts is None:
        raise RuleInvalid(
            "a command pattern is words, with * only behind the last one, or = and a whole line"
        )
    if len(parts) > 1:
        raise RuleInvalid("a command pattern is one command; a line of several stands behind a =")
    return CommandPattern(None, parts[0], goes_on)


def check_allows(pattern: CommandPattern) -> None:
    """Raise if a permission would allow any command.

    Raises:
        RuleInvalid: the star stands for the name of another program.
    """
    words = pattern.words
    if not pattern.goes_on or not words:
        return
    if runs_others(words):
        raise RuleInvalid(
            f"{words[0]} runs other programs, so that * would allow all of them; allow a command "
            "without a star, or a whole line behind a ="
        )
    if len(words) > 1 and program_of(words) != "sed" and may_hide_command(words, len(words) - 1):
        raise RuleInvalid(f"behind {words[-1]} the * would allow any program")


@lru_cache(maxsize=256)
def parts_of(line: str) -> tuple[Words, ...] | None:
    """See ``command_lines.parts_of``."""
    return command_lines.parts_of(line)


def allows(pattern: CommandPattern, words: Words) -> bool:
    """Return whether a permission with this pattern covers one command of a line."""
    literal = len(pattern.words)
    if pattern.line is not None or words[:literal] != pattern.words:
        return False
    if not pattern.goes_on:
        return len(words) == literal
    return not may_hide_command(words, max(literal, 1))


def is_about(pattern: CommandPattern, line: str, *, depth: int = 0) -> Match:
    """Return whether a denial or a question with this pattern covers a line."""
    if pattern.line is not None:
        return "yes" if line == pattern.line else "no"
    parts = parts_of(line)
    if parts is None:
        return "maybe"
    return _strongest(_is_about_one(pattern, words, depth) for words in parts)


def _is_about_one(pattern: CommandPattern, words: Words, depth: int) -> Match:
    spellings = {words, _of_git(words)}
    if any(_begins(pattern, each) for each in spellings):
        return "yes"
    if any(_may_begin(pattern, each) for each in spellings):
        return "maybe"
    inner = _line_of_shell(words)
    if inner is not None:
        return is_about(pattern, inner, depth=depth + 1) if depth < _SHELLS_DEEP else "maybe"
    is_transparent = program_of(words) in TRANSPARENT
    if runs_others(words) and not is_transparent:
        return "maybe"
    if not may_hide_command(words):
        return "no"
    if reads_line(words) or _is_named(pattern, words):
        return "maybe"
    started = find_wrapped_commands(words) if is_transparent else _find_started_commands(words)
    return "maybe" if _is_about_any(pattern, started, depth + 1) else "no"


def _is_about_any(pattern: CommandPattern, commands: Iterable[Words], depth: int) -> bool:
    """Return whether a denial or a question may cover one of the commands, or too many to examine."""
    for count, words in enumerate(commands):
        too_many = depth > _SHELLS_DEEP or count == _STARTED_MAX
        if too_many or _is_about_one(pattern, words, depth) != "no":
            return True
    return False


def _find_started_commands(words: Words) -> Iterator[Words]:
    """Yield the commands that a program which starts others may start (``find . -exec sh -c LINE``)."""
    return (words[index:] for index, word in enumerate(words) if index and starts_others(word))


def _is_named(pattern: CommandPattern, words: Words) -> bool:
    """Return whether an argument contains a name from the pattern or a setting that renames commands, or
    may contain one after a shell expands it.
    """
    names = {pattern.words[0].rpartition("/")[2].lower()}
    if program_of(words) == program_of(pattern.words):
        names |= _RENAMING.union(
            word.lower() for word in pattern.words[1:] if not word.startswith("-")
        )
    texts = _arguments(words)
    may_reach_shell = not (takes_script(words) or program_of(words) in TRANSPARENT)
    is_computed = may_reach_shell and any("$" in text or "`" in text for text in texts)
    return is_computed or any(name in text for text in texts for name in names)


@lru_cache(maxsize=256)
def _arguments(words: Words) -> tuple[str, ...]:
    """Return the arguments as a shell that parses them once more would read them."""
    return tuple(word.translate(_QUOTES).lower() for word in words[1:])


def _of_git(words: Words) -> Words:
    """Return ``git push`` for ``/usr/lib/git-core/git-push``."""
    git, dash, command = words[0].rpartition("/")[2].partition("-")
    return ("git", command, *words[1:]) if git == "git" and dash else words


def _begins(pattern: CommandPattern, words: Words) -> bool:
    wanted = pattern.words
    if not wanted:
        return True
    follows = words[1 : len(wanted)] == wanted[1:]
    return (
        _same_program(wanted, words) and follows and (pattern.goes_on or len(words) == len(wanted))
    )


def _same_program(wanted: Words, words: Words) -> bool:
    """Return whether a command runs the wanted program; a bare name covers every directory."""
    return words[0] == wanted[0] or words[0].rpartition("/")[2] == wanted[0]


def _may_begin(pattern: CommandPattern, words: Words) -> bool:
    """Return whether the wanted words come in order, with options between them (``git -C x push``)."""
    if not _same_program(pattern.words, words):
        return False
    ahead = list(words[1:])
    for wanted in pattern.words[1:]:
        if wanted.startswith("-") and wanted in ahead:
            continue
        ahead = _behind(wanted, ahead)
        if not ahead:
            return False
        del ahead[0]
    return True


def _behind(wanted: str, ahead: list[str]) -> list[str]:
    """Return the words from the wanted one on, if only options and their values precede it."""
    may_be_value = False
    for index, word in enumerate(ahead):
        if word == wanted:
            return ahead[index:]
        is_option = word.startswith("-")
        if not is_option and not may_be_value:
            return []
        may_be_value = is_option
    return []


def _line_of_shell(words: Words) -> str | None:
    """Return the line that ``bash -c LINE`` runs."""
    if program_of(words) in SHELLS:
        for option, line in pairwise(words[1:]):
            if option.endswith("c") and _SHELL_OPTION.fullmatch(option[:-1]):
                # More options may follow -c before the line.
                return None if line.startswith(("-", "+")) else line
            if not _SHELL_OPTION.fullmatch(option):
                return None
    return None


def _strongest(matches: Iterable[Match]) -> Match:
    found = set(matches)
    return "yes" if "yes" in found else "maybe" if "maybe" in found else "no"
