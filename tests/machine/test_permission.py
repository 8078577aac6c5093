"""The effect of rules, protected paths and modes on a call, and the paths denied to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from nousd.machine.policy.path_globs import ALTERNATIVES_MAX
from nousd.machine.policy.permission import Case, Judgement, judge
from nousd.machine.policy.protected_paths import OBEYED, PROTECTED_PLACES
from nousd.machine.policy.rules import check_rule, rule_for, rules_of
from nousd.wire.limits import RULE_CHARS_MAX
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access, ToolClass

MODES: tuple[PermissionMode, ...] = get_args(PermissionMode)


def judgement_of(
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
def test_the_mode_decides_if_no_rule_does(access: Access, verdicts: str) -> None:
    assert " ".join(judgement_of("t", access, mode).verdict for mode in MODES) == verdicts


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (Access(), "it touches nothing"),
        (reads("a"), "it stays inside of the workdir"),
        (runs("ls"), "it stays inside of the workdir"),
        (fetches("a.example"), "it reaches a network"),
    ],
)
def test_the_reason_of_mode_auto_says_what_the_call_touches(access: Access, reason: str) -> None:
    assert judgement_of("t", access).sources[-1].reason == reason


def test_a_rule_parsed_before_is_not_confused_with_one_of_another_kind_or_tool() -> None:
    for _ in range(2):
        assert judgement_of("read", reads("a"), deny=["read(a)"]).verdict == "deny"
        assert judgement_of("read", reads("a"), ask=["read(a)"]).verdict == "ask"
        assert judgement_of("read", reads("a"), allow=["read(a)"]).verdict == "allow"
        assert judgement_of("write", writes("a"), deny=["read(a)"]).verdict == "allow"
        assert judgement_of("read", reads("b", "a"), "ask", allow=["read(b)"]).verdict == "ask"


def test_a_judgement_lists_the_decision_of_each_source_in_order() -> None:
    judgement = judgement_of("write", writes("a"), "ask", ask=["write(a)"])
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
def test_mode_auto_gives_the_most_serious_reason(access: Access, reason: str) -> None:
    assert judgement_of("tool", access).reason == reason
    abstaining = judgement_of("write", writes("a"), "ask")
    assert [said.decision for said in abstaining.sources] == ["abstain", "ask"]
    denied = judgement_of("write", writes("a"), "yolo", deny=["write"])
    assert [said.source for said in denied.sources] == ["rules"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "rules", [{}, {"allow": ["read"]}, {"granted": ["read"]}, {"ask": ["read"]}]
)
def test_a_path_outside_the_workspace_needs_approval_in_every_mode_and_despite_rules(
    mode: PermissionMode, rules: dict[str, list[str]]
) -> None:
    access = Access(
        classes=frozenset({"read"}), paths=("link", "../../etc/hosts"), outside=("/etc/hosts",)
    )
    judgement = judgement_of("read", access, mode, **rules)
    assert judgement.verdict == "ask"
    assert judgement.reason == "it leads out of the workspace, to /etc/hosts"
    assert judgement.sources[-1].source == "override"
    # No rule can express it, so none is suggested.
    assert judgement.rule == ""


@pytest.mark.parametrize("denial", ["read", "read(link)", "read(**/hosts)", "read(**)"])
def test_a_deny_rule_for_a_link_or_its_target_wins_over_an_override(denial: str) -> None:
    access = Access(
        classes=frozenset({"read"}), paths=("link", "../../etc/hosts"), outside=("/etc/hosts",)
    )
    assert judgement_of("read", access, "yolo", deny=[denial]).verdict == "deny"
    # A rule for a path in the workspace does not apply to one outside with the same name.
    assert judgement_of("read", access, "yolo", deny=["read(etc/hosts)"]).verdict == "ask"


def test_a_reason_names_three_of_many_paths() -> None:
    access = Access(outside=tuple(f"/{number}" for number in range(5)))
    assert (
        judgement_of("patch", access).reason
        == "it leads out of the workspace, to /0, /1, /2 and 2 more"
    )


# --- rules ---------------------------------------------------------------------------------------


def test_deny_rules_win_over_ask_rules_and_those_over_allow_rules() -> None:
    both = ["write(a)"]
    assert judgement_of("write", writes("a"), "ask", allow=["write(a)"]).verdict == "allow"
    assert judgement_of("write", writes("a"), allow=both, ask=both).verdict == "ask"
    assert (
        judgement_of("write", writes("a"), "yolo", allow=both, ask=both, deny=both).verdict
        == "deny"
    )


def test_every_path_and_host_of_a_call_must_be_allowed() -> None:
    assert judgement_of("patch", writes("a", "b"), "ask", allow=["patch(a)"]).verdict == "ask"
    assert (
        judgement_of("patch", writes("a", "b"), "ask", allow=["patch(a)", "patch(b)"]).verdict
        == "allow"
    )
    assert judgement_of("patch", writes("a", "b"), "ask", allow=["patch(*)"]).verdict == "allow"
    two = Access(classes=frozenset({"read", "network"}), paths=("a",), hosts=("h.example",))
    assert judgement_of("t", two, "ask", allow=["t(a)"]).verdict == "ask"
    assert judgement_of("t", two, "ask", allow=["t(a)", "t(h.example)"]).verdict == "allow"


def test_one_denied_path_denies_the_call() -> None:
    assert (
        judgement_of("patch", writes("a", "b"), allow=["patch"], deny=["patch(b)"]).verdict
        == "deny"
    )


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
def test_a_rule_matches_tools_by_name_or_glob(rule: str, tool: str, is_meant: bool) -> None:
    # The call has no class, so that only the name can match.
    assert (judgement_of(tool, Access(), deny=[rule]).verdict == "deny") == is_meant
    assert (judgement_of(tool, reads("a"), "ask", allow=[rule]).verdict == "allow") == is_meant


def test_a_class_covers_its_tools_in_deny_and_ask_rules_but_not_in_allow_rules() -> None:
    assert judgement_of("grep", reads("secret/a"), deny=["read(secret/**)"]).verdict == "deny"
    assert judgement_of("edit", writes("a"), ask=["write"]).verdict == "ask"
    assert judgement_of("anything", runs("curl x"), deny=["exec(curl *)"]).verdict == "deny"
    assert judgement_of("t", fetches("a.example"), "yolo", deny=["network"]).verdict == "deny"
    assert judgement_of("edit", writes("secret/a"), deny=["read(secret/**)"]).verdict == "allow"
    assert judgement_of("grep", reads("a"), "ask", allow=["read"]).verdict == "ask"


def test_deny_and_ask_rules_for_all_reads_or_writes_apply_to_programs() -> None:
    for name in ("read", "write"):
        assert judgement_of("bash", runs("make"), "yolo", deny=[name]).verdict == "deny"
        assert judgement_of("bash", runs("make"), ask=[name]).verdict == "ask"
        # The sandbox enforces rules for single paths.
        assert (
            judgement_of("bash", runs("make > a"), "yolo", deny=[f"{name}(a)"]).verdict == "allow"
        )


def test_a_deny_rule_for_a_directory_covers_its_contents_and_ignores_case() -> None:
    for path in ("secret", "secret/a", "SECRET/a/b", "Secret"):
        assert judgement_of("read", reads(path), deny=["read(secret)"]).verdict == "deny"
    assert judgement_of("read", reads("secrets"), deny=["read(secret)"]).verdict == "allow"


@pytest.mark.parametrize("pattern", [".env", ".env*", ".env/", "{x,.env}"])
@pytest.mark.parametrize("path", [".env", "sub/.env", "a/b/.ENV", "sub/.env/in"])
def test_patterns_without_a_slash_match_at_any_depth_in_ask_and_deny_only(
    pattern: str, path: str
) -> None:
    rule = f"read({pattern})"
    assert judgement_of("read", reads(path), "yolo", deny=[rule]).verdict == "deny"
    assert judgement_of("read", reads(path), ask=[rule]).verdict == "ask"
    is_at_the_top = path == ".env"
    for permission in ({"allow": [rule]}, {"granted": [rule]}):
        verdict = judgement_of("read", reads(path), "ask", **permission).verdict
        assert verdict == ("allow" if is_at_the_top else "ask")


@pytest.mark.parametrize("pattern", ["./.env", "sub/.env"])
def test_patterns_with_a_slash_start_at_the_top_of_the_workspace(pattern: str) -> None:
    path = pattern.removeprefix("./")
    assert judgement_of("read", reads(path), deny=[f"read({pattern})"]).verdict == "deny"
    assert judgement_of("read", reads(f"a/{path}"), deny=[f"read({pattern})"]).verdict == "allow"


def test_an_allow_rule_for_a_directory_does_not_cover_its_contents() -> None:
    assert judgement_of("read", reads("src/a"), "ask", allow=["read(src)"]).verdict == "ask"
    assert judgement_of("read", reads("src/a/b"), "ask", allow=["read(src/*)"]).verdict == "ask"
    assert judgement_of("read", reads("SRC/a"), "ask", allow=["read(src/*)"]).verdict == "ask"
    assert judgement_of("read", reads("src/a/b"), "ask", allow=["read(src/**)"]).verdict == "allow"


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
def test_a_rule_matches_hosts_by_name_or_glob(pattern: str, host: str, is_meant: bool) -> None:
    rule = f"web_fetch({pattern})"
    assert (
        judgement_of("web_fetch", fetches(host), "yolo", deny=[rule]).verdict == "deny"
    ) == is_meant
    assert (judgement_of("web_fetch", fetches(host), allow=[rule]).verdict == "allow") == is_meant


def test_a_rule_with_a_definition_hash_applies_to_that_definition_only() -> None:
    access = Access(classes=frozenset({"exec"}), definition="abc")
    assert (
        judgement_of("mcp__f__get", access, "ask", allow=["mcp__f__get(#abc)"]).verdict == "allow"
    )
    assert judgement_of("mcp__f__get", access, "ask", allow=["mcp__f__get(#abd)"]).verdict == "ask"
    assert judgement_of("mcp__f__get", access, "yolo", deny=["mcp__f__*"]).verdict == "deny"


# --- protected paths -----------------------------------------------------------------------------


@pytest.mark.behaviour("protected_places_are_asked_about")
@pytest.mark.parametrize(
    "path",
    [
        *(place.replace("*", "rc") for place in PROTECTED_PLACES),
        *("a/b/.git/hooks/x", ".GIT/config", "sub/agents.MD", ".nousd/agents/x.md", ".git"),
    ],
)
def test_writes_to_protected_paths_need_approval_despite_allow_rules(path: str) -> None:
    allow = ["*", f"write({path})", "write(**)"]
    assert judgement_of("write", writes(path), "ask", allow=allow).verdict == "ask"
    assert judgement_of("write", writes(path), "auto", allow=allow).verdict == "ask"
    assert judgement_of("write", writes(path), "yolo").verdict == "allow"
    assert judgement_of("read", reads(path), "auto").verdict == "allow"


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
def test_names_similar_to_protected_paths_are_not_protected(path: str) -> None:
    assert judgement_of("write", writes(path), "auto").verdict == "allow"


def test_only_a_grant_for_exactly_that_write_opens_a_protected_path() -> None:
    access = writes("AGENTS.md")
    rule = rule_for("write", access)
    assert judgement_of("write", access, granted=[rule]).verdict == "allow"
    assert judgement_of("edit", access, granted=[rule]).verdict == "ask"
    assert judgement_of("write", access, granted=["write(AGENTS.*)"]).verdict == "ask"
    assert judgement_of("write", access, granted=["write"]).verdict == "ask"
    assert judgement_of("write", access, allow=[rule]).verdict == "ask"
    assert (
        judgement_of("write", access, granted=[rule], deny=["write(AGENTS.md)"]).verdict == "deny"
    )


# --- suggested rules -----------------------------------------------------------------------------


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
def test_the_suggested_rule_allows_its_call(tool: str, access: Access, rule: str) -> None:
    assert rule_for(tool, access) == rule
    assert judgement_of(tool, access, "ask").rule == rule
    if rule:
        check_rule(rule, "allow")
        assert judgement_of(tool, access, "ask", granted=[rule]).verdict == "allow"
        assert judgement_of(tool, access, "ask", allow=[rule]).verdict == "allow"


def test_as_many_paths_as_a_rule_may_name_are_named_and_no_more() -> None:
    most = tuple(map(str, range(ALTERNATIVES_MAX)))
    rule = rule_for("write", writes(*most))
    assert rule == f"write({{{','.join(most)}}})"
    assert judgement_of("write", writes(*most), "ask", granted=[rule]).verdict == "allow"
    assert rule_for("write", writes(*most, "one more")) == ""


# --- closed paths --------------------------------------------------------------------------------


def is_closed(judgement: Judgement, kind: str, place: str) -> bool:
    patterns = getattr(judgement.closed, kind)
    parts = place.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(pattern.fullmatch(each) for pattern in patterns for each in above)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["read(secret/**)", "grep(secret)", "g*(**/SECRET)"])
def test_denied_paths_are_closed_to_a_search_of_the_workspace(
    mode: PermissionMode, rule: str
) -> None:
    judgement = judgement_of("grep", reads("."), mode, deny=[rule])
    assert judgement.verdict != "deny"
    assert is_closed(judgement, "reading", "secret/key")
    assert not is_closed(judgement, "reading", "public/key")


def test_a_denied_pattern_without_a_slash_closes_such_files_at_any_depth() -> None:
    judgement = judgement_of("grep", reads("."), deny=["read(.env*)"])
    for place in (".env", "a/.env.local", "a/b/.env/c"):
        assert is_closed(judgement, "reading", place)
    assert not is_closed(judgement, "reading", "a/x.env")


def test_a_deny_rule_for_writing_does_not_close_reading() -> None:
    judgement = judgement_of("grep", reads("."), deny=["write(a)"])
    assert is_closed(judgement, "writing", "a/b")
    assert not is_closed(judgement, "reading", "a/b")


def test_paths_that_need_approval_are_closed_unless_the_call_names_them() -> None:
    ask = ["read(private/**)"]
    assert is_closed(judgement_of("grep", reads("."), ask=ask), "reading", "private/x")
    assert not is_closed(judgement_of("grep", reads("."), "yolo", ask=ask), "reading", "private/x")
    named = judgement_of("grep", reads("private/x"), ask=ask)
    assert named.verdict == "ask"
    assert not is_closed(named, "reading", "private/x")
    assert not is_closed(named, "reading", "private/x/y")
    assert is_closed(named, "reading", "private/xy")
    assert is_closed(named, "reading", "private/z")


def test_a_write_to_a_protected_path_opens_only_that_path() -> None:
    judgement = judgement_of("write", writes("sub/.nousd/agents/a.md"))
    assert not is_closed(judgement, "writing", "sub/.nousd/agents/a.md")
    for place in (
        "sub/.nousd/agents/b.md",
        "sub/.nousd/agents/A.md",
        ".nousd/x",
        "AGENTS.md",
        ".git/x",
    ):
        assert is_closed(judgement, "writing", place)
    assert not is_closed(judgement, "writing", "sub/x")
    ordinary = judgement_of("write", writes("a"))
    assert is_closed(ordinary, "writing", "x/.git/hooks/post-commit")


@pytest.mark.parametrize("mode", MODES)
def test_a_call_may_complete_a_repository_only_once_the_user_or_the_mode_allows_it(
    mode: PermissionMode,
) -> None:
    plain, obeyed = writes("x/HEAD"), msgspec.structs.replace(writes("x/HEAD"), obeyed="by git")
    assert judgement_of("write", plain, mode).closed.repositories == (mode != "yolo")
    assert not judgement_of("write", obeyed, mode).closed.repositories


def test_a_grant_for_one_path_leaves_denied_paths_closed() -> None:
    judgement = judgement_of(
        "write", writes("AGENTS.md"), deny=["write(.git)"], granted=["write(AGENTS.md)"]
    )
    assert judgement.verdict == "allow"
    assert is_closed(judgement, "writing", ".git/config")
    assert not is_closed(judgement, "writing", "AGENTS.md")


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
def test_a_deny_rule_matches_every_spelling_of_a_host(pattern: str, host: str) -> None:
    assert (
        judgement_of("fetch", fetches(host), "yolo", deny=[f"network({pattern})"]).verdict == "deny"
    )


def test_a_host_deny_rule_applies_to_commands_that_may_reach_any_host() -> None:
    anywhere = Access(classes=frozenset({"exec", "network"}), command="curl x", hosts=("*",))
    deny = ["network(example.org)"]
    assert judgement_of("bash", anywhere, "yolo", deny=deny).verdict == "deny"
    assert judgement_of("bash", anywhere, "auto", deny=deny, allow=["bash"]).verdict == "ask"
    assert (
        judgement_of("bash", anywhere, "yolo", deny=["*(secret/**)", "*(rm *)"]).verdict == "allow"
    )
    assert judgement_of("bash", anywhere, "yolo", deny=["read(example.org)"]).verdict == "allow"
    assert judgement_of("bash", runs("curl x"), "yolo", deny=deny).verdict == "allow"
