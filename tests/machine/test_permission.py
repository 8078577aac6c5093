"""The effect of rules, protected paths and modes on a call, and the paths denied to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from nousd.machine.policy.permission import Case, Judgement, judge
from nousd.machine.policy.protected_paths import OBEYED, PROTECTED_PLACES
from nousd.machine.policy.rules import check_rule, rule_for, rules_of
from nousd.wire.limits import RULE_CHARS_MAX
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access, ToolClass

MODES: tuple[PermissionMode, ...] = get_args(PermissionMode)


def judged(
    tool: str,
    access: Access,
    mode: PermissionMode = "auto",
    *,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    granted: Sequence[str] = (),
) -> Judgement:
    rules = (
        *rules_of("allow", allow, "a test"),
        *rules_of("ask", ask, "a test"),
        *rules_of("deny", deny, "a test"),
        *rules_of("allow", granted, "the user", is_grant=True),
    )
    return judge(Case(tool, access, mode, rules))


def reads(*paths: str) -> Access:
    return Access(classes=frozenset({"read"}), paths=paths)


def writes(*paths: str) -> Access:
    return Access(classes=frozenset({"write"}), paths=paths)


def fetches(*hosts: str) -> Access:
    return Access(classes=frozenset({"network"}), hosts=hosts)


def runs(line: str, *, network: bool = False, confined: bool = True) -> Access:
    classes: set[ToolClass] = {"exec", "network"} if network else {"exec"}
    return Access(classes=frozenset(classes), command=line, is_confined=confined)


# --- modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "verdicts"),
    [
        (Access(), "allow allow allow"),
        (reads("a"), "ask allow allow"),
        (writes("a"), "ask allow allow"),
        (runs("ls"), "ask allow allow"),
        (runs("ls", confined=False), "ask ask allow"),
        (runs("ls", network=True), "ask ask allow"),
        (fetches("a.example"), "ask ask allow"),
        (writes("AGENTS.md"), "ask ask allow"),
        (Access(classes=frozenset({"read"}), paths=("/x",), is_inside=False), "ask ask allow"),
    ],
)
def test_where_no_rule_decides_the_mode_does(access: Access, verdicts: str) -> None:
    assert " ".join(judged("t", access, mode).verdict for mode in MODES) == verdicts


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (Access(), "it touches nothing"),
        (reads("a"), "it stays inside of the workdir"),
        (runs("ls"), "it stays inside of the workdir"),
        (fetches("a.example"), "it reaches a network"),
    ],
)
def test_the_mode_auto_says_what_it_found(access: Access, reason: str) -> None:
    assert judged("t", access).sources[-1].reason == reason


def test_what_is_kept_of_rules_is_not_taken_for_others() -> None:
    for _ in range(2):
        assert judged("read", reads("a"), deny=["read(a)"]).verdict == "deny"
        assert judged("read", reads("a"), ask=["read(a)"]).verdict == "ask"
        assert judged("read", reads("a"), allow=["read(a)"]).verdict == "allow"
        assert judged("write", writes("a"), deny=["read(a)"]).verdict == "allow"
        assert judged("read", reads("b", "a"), "ask", allow=["read(b)"]).verdict == "ask"


def test_each_source_says_what_it_thinks_in_turn() -> None:
    judgement = judged("write", writes("a"), "ask", ask=["write(a)"])
    assert [(said.source, said.decision) for said in judgement.sources] == [
        ("rules", "ask"),
        ("mode", "ask"),
    ]
    assert judgement.reason == "the rule write(a) of a test"


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (runs("ls", network=True, confined=False), "it runs a program without a sandbox"),
        (runs("ls", confined=False), "it runs a program without a sandbox"),
        (runs("ls", network=True), "it reaches a network"),
        (fetches("a.example"), "it reaches a network"),
    ],
)
def test_auto_says_the_weightiest_reason_for_its_question(access: Access, reason: str) -> None:
    assert judged("tool", access).reason == reason
    abstaining = judged("write", writes("a"), "ask")
    assert [said.decision for said in abstaining.sources] == ["abstain", "ask"]
    denied = judged("write", writes("a"), "yolo", deny=["write"])
    assert [said.source for said in denied.sources] == ["rules"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "rules", [{}, {"allow": ["read"]}, {"granted": ["read"]}, {"ask": ["read"]}]
)
def test_what_leads_out_and_may_be_asked_about_is_asked_about_whatever_else_is_said(
    mode: PermissionMode, rules: dict[str, list[str]]
) -> None:
    access = Access(
        classes=frozenset({"read"}), paths=("link", "../../etc/hosts"), outside=("/etc/hosts",)
    )
    judgement = judged("read", access, mode, **rules)
    assert judgement.verdict == "ask"
    assert judgement.reason == "it leads out of the workspace, to /etc/hosts"
    assert judgement.sources[-1].source == "override"
    # No rule can say it, so none is offered.
    assert judgement.rule == ""


@pytest.mark.parametrize("denial", ["read", "read(link)", "read(**/hosts)", "read(**)"])
def test_a_denial_of_either_spelling_wins_over_an_override(denial: str) -> None:
    access = Access(
        classes=frozenset({"read"}), paths=("link", "../../etc/hosts"), outside=("/etc/hosts",)
    )
    assert judged("read", access, "yolo", deny=[denial]).verdict == "deny"
    # A rule about a place of the workspace is not about one outside of the same name.
    assert judged("read", access, "yolo", deny=["read(etc/hosts)"]).verdict == "ask"


def test_a_reason_names_some_of_many_places() -> None:
    access = Access(outside=tuple(f"/{number}" for number in range(5)))
    assert (
        judged("patch", access).reason == "it leads out of the workspace, to /0, /1, /2 and 2 more"
    )


# --- rules ---------------------------------------------------------------------------------------


def test_a_denial_wins_over_a_question_and_that_over_a_permission() -> None:
    both = ["write(a)"]
    assert judged("write", writes("a"), "ask", allow=["write(a)"]).verdict == "allow"
    assert judged("write", writes("a"), allow=both, ask=both).verdict == "ask"
    assert judged("write", writes("a"), "yolo", allow=both, ask=both, deny=both).verdict == "deny"


def test_everything_that_a_call_touches_has_to_be_allowed() -> None:
    assert judged("patch", writes("a", "b"), "ask", allow=["patch(a)"]).verdict == "ask"
    assert (
        judged("patch", writes("a", "b"), "ask", allow=["patch(a)", "patch(b)"]).verdict == "allow"
    )
    assert judged("patch", writes("a", "b"), "ask", allow=["patch(*)"]).verdict == "allow"
    two = Access(classes=frozenset({"read", "network"}), paths=("a",), hosts=("h.example",))
    assert judged("t", two, "ask", allow=["t(a)"]).verdict == "ask"
    assert judged("t", two, "ask", allow=["t(a)", "t(h.example)"]).verdict == "allow"


def test_one_thing_that_is_denied_denies_the_call() -> None:
    assert judged("patch", writes("a", "b"), allow=["patch"], deny=["patch(b)"]).verdict == "deny"


@pytest.mark.parametrize(
    ("rule", "tool", "is_meant"),
    [
        ("read", "read", True),
        ("read", "readers", False),
        ("mcp__files__*", "mcp__files__get", True),
        ("mcp__files__*", "mcp__file", False),
        ("*", "anything", True),
        ("Read", "read", False),
    ],
)
def test_a_rule_names_tools(rule: str, tool: str, is_meant: bool) -> None:
    # Of no class, so that nothing but the name can be meant.
    assert (judged(tool, Access(), deny=[rule]).verdict == "deny") == is_meant
    assert (judged(tool, reads("a"), "ask", allow=[rule]).verdict == "allow") == is_meant


def test_in_denials_and_questions_a_class_means_every_tool_that_does_it() -> None:
    assert judged("grep", reads("secret/a"), deny=["read(secret/**)"]).verdict == "deny"
    assert judged("edit", writes("a"), ask=["write"]).verdict == "ask"
    assert judged("anything", runs("curl x"), deny=["exec(curl *)"]).verdict == "deny"
    assert judged("t", fetches("a.example"), "yolo", deny=["network"]).verdict == "deny"
    assert judged("edit", writes("secret/a"), deny=["read(secret/**)"]).verdict == "allow"
    assert judged("grep", reads("a"), "ask", allow=["read"]).verdict == "ask"


def test_who_may_not_write_may_run_no_program_that_could() -> None:
    for name in ("read", "write"):
        assert judged("bash", runs("make"), "yolo", deny=[name]).verdict == "deny"
        assert judged("bash", runs("make"), ask=[name]).verdict == "ask"
        # About certain places the sandbox has the last word.
        assert judged("bash", runs("make > a"), "yolo", deny=[f"{name}(a)"]).verdict == "allow"


def test_a_denial_of_a_folder_is_about_all_in_it_in_any_case() -> None:
    for path in ("secret", "secret/a", "SECRET/a/b", "Secret"):
        assert judged("read", reads(path), deny=["read(secret)"]).verdict == "deny"
    assert judged("read", reads("secrets"), deny=["read(secret)"]).verdict == "allow"


def test_a_permission_for_a_folder_is_about_nothing_in_it() -> None:
    assert judged("read", reads("src/a"), "ask", allow=["read(src)"]).verdict == "ask"
    assert judged("read", reads("src/a/b"), "ask", allow=["read(src/*)"]).verdict == "ask"
    assert judged("read", reads("SRC/a"), "ask", allow=["read(src/*)"]).verdict == "ask"
    assert judged("read", reads("src/a/b"), "ask", allow=["read(src/**)"]).verdict == "allow"


@pytest.mark.parametrize(
    ("pattern", "host", "is_meant"),
    [
        ("a.example", "a.example", True),
        ("a.example", "A.Example.", True),
        ("a.example", "b.a.example", False),
        ("*.example", "b.a.example", True),
        ("*.example", "example", False),
        ("a.example", "a.example.evil", False),
    ],
)
def test_a_rule_names_hosts(pattern: str, host: str, is_meant: bool) -> None:
    rule = f"web_fetch({pattern})"
    assert (judged("web_fetch", fetches(host), "yolo", deny=[rule]).verdict == "deny") == is_meant
    assert (judged("web_fetch", fetches(host), allow=[rule]).verdict == "allow") == is_meant


def test_a_rule_about_a_definition_holds_for_that_alone() -> None:
    access = Access(classes=frozenset({"exec"}), definition="abc")
    assert judged("mcp__f__get", access, "ask", allow=["mcp__f__get(#abc)"]).verdict == "allow"
    assert judged("mcp__f__get", access, "ask", allow=["mcp__f__get(#abd)"]).verdict == "ask"
    assert judged("mcp__f__get", access, "yolo", deny=["mcp__f__*"]).verdict == "deny"


# --- protected places ----------------------------------------------------------------------------


@pytest.mark.behaviour("protected_places_are_asked_about")
@pytest.mark.parametrize(
    "path",
    [
        *(place.replace("*", "rc") for place in PROTECTED_PLACES),
        *("a/b/.git/hooks/x", ".GIT/config", "sub/agents.MD", ".nousd/agents/x.md", ".git"),
    ],
)
def test_writes_to_protected_places_are_asked_about_whatever_is_allowed(path: str) -> None:
    allow = ["*", f"write({path})", "write(**)"]
    assert judged("write", writes(path), "ask", allow=allow).verdict == "ask"
    assert judged("write", writes(path), "auto", allow=allow).verdict == "ask"
    assert judged("write", writes(path), "yolo").verdict == "allow"
    assert judged("read", reads(path), "auto").verdict == "allow"


def test_the_documented_table_names_every_protected_path_beside_its_program() -> None:
    page = Path(__file__).parents[2] / "protocol" / "semantics" / "permissions.md"
    section = page.read_text(encoding="utf-8").partition("## Protected paths")[2]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    documented = {row[0].removeprefix("| "): set(re.findall("`([^`]+)`", row[1])) for row in rows}
    obeyed: dict[str, set[str]] = {}
    for files in OBEYED:
        obeyed.setdefault(files.program, set()).update(files.places)
    assert documented == obeyed


@pytest.mark.parametrize(
    "path", ["a.git", "git", "AGENTS.mdx", "MY-AGENTS.md", "nousd/x", "x.nousd"]
)
def test_what_only_looks_like_one_is_not_protected(path: str) -> None:
    assert judged("write", writes(path), "auto").verdict == "allow"


def test_a_grant_of_exactly_that_write_holds_and_no_other_does() -> None:
    access = writes("AGENTS.md")
    rule = rule_for("write", access)
    assert judged("write", access, granted=[rule]).verdict == "allow"
    assert judged("edit", access, granted=[rule]).verdict == "ask"
    assert judged("write", access, granted=["write(AGENTS.*)"]).verdict == "ask"
    assert judged("write", access, granted=["write"]).verdict == "ask"
    assert judged("write", access, allow=[rule]).verdict == "ask"
    assert judged("write", access, granted=[rule], deny=["write(AGENTS.md)"]).verdict == "deny"


# --- the narrowest rule --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "access", "rule"),
    [
        ("write", writes("a/b"), "write(a/b)"),
        ("write", writes("a*[b]"), "write(a[*][[]b[]])"),
        ("write", writes("=x"), "write([=]x)"),
        ("write", writes("#x"), "write([#]x)"),
        ("patch", writes("a", "b,c"), "patch({a,b[,]c})"),
        ("bash", runs("ls > x"), "bash(=ls > x)"),
        ("web_fetch", fetches("a.example"), "web_fetch(a.example)"),
        ("mcp__f__get", Access(classes=frozenset({"exec"}), definition="ab"), "mcp__f__get(#ab)"),
        ("other", Access(classes=frozenset({"exec"})), "other"),
        ("web_fetch", fetches("a.example", "b.example"), ""),
        ("write", writes("/etc/x"), ""),
        ("bash", runs("x" * RULE_CHARS_MAX), ""),
        ("two", Access(paths=("a",), command="ls"), ""),
    ],
)
def test_the_narrowest_rule_allows_such_a_call(tool: str, access: Access, rule: str) -> None:
    assert rule_for(tool, access) == rule
    assert judged(tool, access, "ask").rule == rule
    if rule:
        check_rule(rule, "allow")
        assert judged(tool, access, "ask", granted=[rule]).verdict == "allow"
        assert judged(tool, access, "ask", allow=[rule]).verdict == "allow"


# --- what is closed ------------------------------------------------------------------------------


def closed(judgement: Judgement, kind: str, place: str) -> bool:
    patterns = getattr(judgement.closed, kind)
    parts = place.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(pattern.fullmatch(each) for pattern in patterns for each in above)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["read(secret/**)", "grep(secret)", "g*(**/SECRET)"])
def test_what_is_denied_is_closed_to_a_search_of_everything(
    mode: PermissionMode, rule: str
) -> None:
    judgement = judged("grep", reads("."), mode, deny=[rule])
    assert judgement.verdict != "deny"
    assert closed(judgement, "reading", "secret/key")
    assert not closed(judgement, "reading", "public/key")


def test_a_denial_of_writing_closes_nothing_to_reading() -> None:
    judgement = judged("grep", reads("."), deny=["write(a)"])
    assert closed(judgement, "writing", "a/b")
    assert not closed(judgement, "reading", "a/b")


def test_what_is_asked_about_is_closed_unless_the_call_named_it() -> None:
    ask = ["read(private/**)"]
    assert closed(judged("grep", reads("."), ask=ask), "reading", "private/x")
    assert not closed(judged("grep", reads("."), "yolo", ask=ask), "reading", "private/x")
    named = judged("grep", reads("private/x"), ask=ask)
    assert named.verdict == "ask"
    assert not closed(named, "reading", "private/x")
    assert not closed(named, "reading", "private/x/y")
    assert closed(named, "reading", "private/xy")
    assert closed(named, "reading", "private/z")


def test_a_write_that_was_approved_opens_that_place_and_no_other() -> None:
    judgement = judged("write", writes("sub/.nousd/agents/a.md"))
    assert not closed(judgement, "writing", "sub/.nousd/agents/a.md")
    for place in (
        "sub/.nousd/agents/b.md",
        "sub/.nousd/agents/A.md",
        ".nousd/x",
        "AGENTS.md",
        ".git/x",
    ):
        assert closed(judgement, "writing", place)
    assert not closed(judgement, "writing", "sub/x")
    ordinary = judged("write", writes("a"))
    assert closed(ordinary, "writing", "x/.git/hooks/post-commit")


def test_no_question_opens_what_is_denied() -> None:
    judgement = judged(
        "write", writes("AGENTS.md"), deny=["write(.git)"], granted=["write(AGENTS.md)"]
    )
    assert judgement.verdict == "allow"
    assert closed(judgement, "writing", ".git/config")
    assert not closed(judgement, "writing", "AGENTS.md")


@pytest.mark.parametrize(
    ("pattern", "host"),
    [
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.EXAMPLE.", "xn--bcher-kva.example"),
        ("*.example", "xn--bcher-kva.example"),
        ("2606:4700::1111", "2606:4700:0:0:0:0:0:1111"),
        ("2606:4700:0::1111", "2606:4700::1111"),
        ("[2606:4700::1111]", "2606:4700::1111"),
        ("192.0.2.1", "::ffff:192.0.2.1"),
    ],
)
def test_a_host_is_the_same_however_it_is_written(pattern: str, host: str) -> None:
    assert judged("fetch", fetches(host), "yolo", deny=[f"network({pattern})"]).verdict == "deny"


def test_a_command_that_may_reach_any_host_may_reach_one_that_is_denied() -> None:
    anywhere = Access(classes=frozenset({"exec", "network"}), command="curl x", hosts=("*",))
    deny = ["network(example.org)"]
    assert judged("bash", anywhere, "yolo", deny=deny).verdict == "deny"
    assert judged("bash", anywhere, "auto", deny=deny, allow=["bash"]).verdict == "ask"
    assert judged("bash", anywhere, "yolo", deny=["*(secret/**)", "*(rm *)"]).verdict == "allow"
    assert judged("bash", anywhere, "yolo", deny=["read(example.org)"]).verdict == "allow"
    assert judged("bash", runs("curl x"), "yolo", deny=deny).verdict == "allow"
