"""Rules by which a user or a project allows, asks about or denies tool calls.

A rule is ``TOOL`` or ``TOOL(PATTERN)``. A call is judged by everything in its footprint: paths, hosts,
and the commands of its line. It is denied or needs approval if a rule says so about any of them, and is
allowed if rules allow all of them. If a command line cannot be judged by its words, a denial or question
that may apply counts as a question. Source: protocol/semantics/permissions.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args
from unicodedata import normalize

from nousd.errors import RuleInvalid
from nousd.machine.policy import command_rules
from nousd.machine.policy.command_lines import Words
from nousd.machine.policy.command_rules import CommandPattern, Match
from nousd.machine.policy.owned_names import names_of
from nousd.machine.policy.path_globs import (
    ALTERNATIVES_MAX,
    deep_glob_regex,
    glob_regex,
    literal_glob,
)
from nousd.wire.limits import RULE_CHARS_MAX
from nousd.wire.objects.tool_footprint import Access, ToolClass

RuleDecision = Literal["allow", "ask", "deny"]

_CLASSES: Final[tuple[str, ...]] = get_args(ToolClass)

_COMMAND_TOOLS: Final = frozenset({"bash", "exec"})
"""Tools whose patterns are command lines only, so that any other pattern is a mistake."""

_REMEMBERED: Final = 256
"""Number of lookups that are cached for one set of rules; the rules in force are usually those of the
previous call."""

_TOOL: Final = re.compile(r"[A-Za-z0-9_.*-]+")

_HOST: Final = re.compile(r"[^\s/]{1,255}")
"""A host pattern; a longer one matches no host, and takes long to translate."""


class Rule(NamedTuple):
    """A rule and its origin, for people.

    Args:
        is_grant: whether the user granted it in answer to an approval request.
    """

    decision: RuleDecision
    text: str
    origin: str
    is_grant: bool = False

    @property
    def tool(self) -> str:
        """The pattern for tool names, with ``*`` for any characters."""
        return self.text.partition("(")[0]

    @property
    def pattern(self) -> str | None:
        """The pattern for the call; None matches any."""
        _, bracket, rest = self.text.partition("(")
        return rest.removesuffix(")") if bracket else None

    @property
    def meaning(self) -> Meaning:
        """The parsed rule, ready to match."""
        return meaning_of(self.text)


class Meaning(NamedTuple):
    """The parsed text of a rule.

    Args:
        tool: matches the names of tools.
        tool_class: the effect that a question or denial with this name covers in every tool.
        is_any: whether the rule has no pattern.
        place, host, command: match what a permission covers; None with ``is_any``, or if the pattern
            cannot match such a thing.
        area: matches the paths that a question or denial covers: ``place`` with everything in it, at any
            depth if the pattern has no slash, in any case, because the file system may ignore case.
        definition: the definition of a tool that another program provides (``Access.definition``).
    """

    tool: re.Pattern[str]
    tool_class: str | None
    is_any: bool
    place: re.Pattern[str] | None = None
    area: re.Pattern[str] | None = None
    host: re.Pattern[str] | None = None
    command: CommandPattern | None = None
    definition: str | None = None

    def is_about_tool(self, tool: str) -> bool:
        """Return whether it names a tool, or nousd's tool behind an agent's name for it."""
        return any(self.tool.match(name) for name in names_of(tool))

    @property
    def cost(self) -> int:
        """The cost to compile and match a pattern, in characters."""
        return 0 if self.area is None else len(self.area.pattern)


class Finding(NamedTuple):
    """The match of one decision's rules with a call.

    Args:
        rule: the rule that decides; None if none applies.
        is_certain: whether it certainly applies. If not, it may apply to the call.
    """

    rule: Rule | None = None
    is_certain: bool = True


NO_FINDING: Final = Finding()


def rules_of(
    decision: RuleDecision, texts: Iterable[str], origin: str, *, is_grant: bool = False
) -> tuple[Rule, ...]:
    """Return the rules of one list.

    Raises:
        RuleInvalid: a rule is invalid; the error names it and its origin.
    """
    rules = tuple(Rule(decision, text, origin, is_grant) for text in texts)
    for rule in rules:
        check_rule(rule.text, rule.decision, origin)
    return rules


def rules_in(
    origin: str,
    *,
    deny: Iterable[str] = (),
    ask: Iterable[str] = (),
    allow: Iterable[str] = (),
) -> tuple[Rule, ...]:
    """Return the rules of the three lists of one origin.

    Raises:
        RuleInvalid: as ``rules_of``.
    """
    return (
        *rules_of("deny", deny, origin),
        *rules_of("ask", ask, origin),
        *rules_of("allow", allow, origin),
    )


def check_rule(text: str, decision: RuleDecision, origin: str = "") -> None:
    """Raise if a rule is invalid.

    Raises:
        RuleInvalid: the message repeats the rule and its origin, and gives the reason.
    """
    try:
        command = meaning_of(text).command
        if decision == "allow" and command is not None:
            command_rules.check_allows(command)
    except RuleInvalid as error:
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        suffix = f" ({origin})" if origin else ""
        raise RuleInvalid(f"{decision} rule {shown!r}: {error}{suffix}") from None


@lru_cache(maxsize=4096)
def meaning_of(text: str) -> Meaning:
    """Parse a rule.

    Raises:
        RuleInvalid: it is not a valid rule.
    """
    if len(text) > RULE_CHARS_MAX:
        raise RuleInvalid(f"a rule has at most {RULE_CHARS_MAX} characters")
    tool, bracket, rest = text.partition("(")
    if not _TOOL.fullmatch(tool) or (bracket and not rest.endswith(")")):
        raise RuleInvalid("a rule is TOOL or TOOL(PATTERN)")
    names = re.compile(translate(tool))
    tool_class = tool if tool in _CLASSES else None
    if not bracket:
        return Meaning(names, tool_class, is_any=True)
    pattern = rest[:-1]
    if not pattern:
        raise RuleInvalid("nothing stands between the brackets; a rule about any call has none")
    return Meaning(names, tool_class, is_any=False, **_things_of(tool, pattern))


def _things_of(tool: str, pattern: str) -> dict[str, Any]:
    if pattern.startswith("#"):
        return {"definition": pattern[1:]}
    if tool in _COMMAND_TOOLS or pattern.startswith("="):
        return {"command": command_rules.command_pattern(pattern)}
    return {
        "place": re.compile(glob_regex(pattern)),
        "area": re.compile(rf"(?i:{deep_glob_regex(pattern)})(?s:/.*)?"),
        "host": re.compile(translate(_host(pattern))) if _HOST.fullmatch(pattern) else None,
        "command": _command_or_none(pattern),
    }


def _command_or_none(pattern: str) -> CommandPattern | None:
    try:
        return command_rules.command_pattern(pattern)
    except RuleInvalid:
        return None


# --- rules and the footprint of a call ---------------------------------------------------------


def find_covering_rule(rules: Sequence[Rule], tool: str, access: Access) -> Finding:
    """Return the first of the rules, all denials or all questions, that covers a call; a certain match
    precedes a possible one.
    """
    doubtful = NO_FINDING
    for rule in _of_tool_or_class(tuple(rules), tool, access.classes):
        match = _is_about(rule.meaning, access)
        if match == "yes":
            return Finding(rule)
        if match == "maybe" and doubtful.rule is None:
            doubtful = Finding(rule, is_certain=False)
    return doubtful


def find_permission(rules: Sequence[Rule], tool: str, access: Access) -> Rule | None:
    """Return the first of the permissions that together allow everything in a call's footprint; None if
    a part of it is not allowed.
    """
    named = [rule for rule in rules if rule.meaning.is_about_tool(tool)]
    for rule in named:
        if rule.meaning.is_any or _is_definition(rule.meaning, access):
            return rule
    parts = () if access.command is None else command_rules.parts_of(access.command)
    if parts is None or _is_line_alone(access):
        line = allows_line(named, tool, access)
        if line is not None or parts is None:
            return line
    touched = [
        *([rule for rule in named if _fits(rule.meaning.place, path)] for path in access.paths),
        *([rule for rule in named if _fits(rule.meaning.host, _host(h))] for h in access.hosts),
        *([rule for rule in named if _allows_part(rule.meaning, part)] for part in parts),
    ]
    return touched[0][0] if touched and all(touched) else None


def allows_line(rules: Sequence[Rule], tool: str, access: Access) -> Rule | None:
    """Return the first permission for exactly this whole command line."""
    if not _is_line_alone(access):
        return None
    pattern = command_rules.CommandPattern(access.command)
    same = (rule for rule in rules if rule.meaning.command == pattern)
    return next((rule for rule in same if rule.meaning.is_about_tool(tool)), None)


@lru_cache(maxsize=_REMEMBERED)
def of_decision(rules: tuple[Rule, ...], decision: RuleDecision) -> tuple[Rule, ...]:
    """Return the rules of one kind."""
    return tuple(rule for rule in rules if rule.decision == decision)


def _is_line_alone(access: Access) -> bool:
    """Return whether a call's footprint is only a command line."""
    return access.command is not None and not (access.paths or access.hosts)


@lru_cache(maxsize=_REMEMBERED)
def _of_tool_or_class(
    rules: tuple[Rule, ...], tool: str, classes: frozenset[ToolClass]
) -> tuple[Rule, ...]:
    """Return the denials or questions that may cover calls of a tool with such effects: a few of those
    in force, and the same for each call.
    """
    meanings = ((rule, rule.meaning) for rule in rules)
    return tuple(
        rule
        for rule, meaning in meanings
        if meaning.is_about_tool(tool) or _is_of_class(meaning, classes)
    )


def _is_about(meaning: Meaning, access: Access) -> Match:
    if meaning.is_any or _is_definition(meaning, access):
        return "yes"
    if any(_fits(meaning.area, path) for path in (*access.paths, *access.links)):
        return "yes"
    if any(_fits(meaning.host, _host(host)) for host in access.hosts):
        return "yes"
    # A command that may reach any host may reach this one.
    otherwise: Match = "maybe" if meaning.host is not None and "*" in access.hosts else "no"
    if meaning.command is None or access.command is None:
        return otherwise
    match = command_rules.is_about(meaning.command, access.command)
    return otherwise if match == "no" else match


def _is_of_class(meaning: Meaning, classes: frozenset[ToolClass]) -> bool:
    """Return whether a call has the effect that a rule names by class. A program may read and write
    anything that it can reach, so a rule about certain paths cannot be applied to it.
    """
    if meaning.tool_class in classes:
        return True
    return meaning.tool_class in ("read", "write") and meaning.is_any and "exec" in classes


def _is_definition(meaning: Meaning, access: Access) -> bool:
    return meaning.definition is not None and meaning.definition == access.definition


def _allows_part(meaning: Meaning, words: Words) -> bool:
    return meaning.command is not None and command_rules.allows(meaning.command, words)


def _fits(pattern: re.Pattern[str] | None, text: str) -> bool:
    return pattern is not None and pattern.fullmatch(text) is not None


def _host(host: str) -> str:
    """Return a host, or a pattern of hosts, in its normal form."""
    from ipaddress import ip_address

    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return ".".join(map(_label, host.lower().rstrip(".").split(".")))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _label(label: str) -> str:
    if label.isascii() or any(char in label for char in "*?["):
        return label
    return f"xn--{normalize('NFKC', label).encode('punycode').decode()}"


# --- the narrowest rule --------------------------------------------------------------------------


def rule_for(tool: str, access: Access) -> str:
    """Return the narrowest rule that allows such a call; "" if no rule can."""
    touched = [bool(access.paths), access.command is not None, bool(access.hosts)]
    if sum(touched) > 1:
        return ""
    rule = tool
    if access.command is not None:
        rule = f"{tool}(={access.command})"
    elif access.paths:
        rule = f"{tool}({literal_glob(access.paths)})" if _can_be_named(access.paths) else ""
    elif access.hosts:
        rule = f"{tool}({access.hosts[0]})" if len(access.hosts) == 1 else ""
    elif access.definition is not None:
        rule = f"{tool}(#{access.definition})"
    return rule if len(rule) <= RULE_CHARS_MAX and _TOOL.fullmatch(tool) else ""


def _can_be_named(paths: Sequence[str]) -> bool:
    """Return whether paths are inside the workspace, and few enough for one rule."""
    inside = (not path.startswith(("/", "~")) and ".." not in path.split("/") for path in paths)
    return len(paths) <= ALTERNATIVES_MAX and all(inside)
