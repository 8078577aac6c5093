"""The verbs of ``nousctl`` as people type them: groups, flat names and wrong guesses."""

from __future__ import annotations

import re

import pytest

from nousd import __version__
from nousd.cli.nousctl.command_tree import SYNONYMS, TREE, Group
from nousd.cli.nousctl.main import ROWS
from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok

GROUPS = {name: each for name, each in TREE.items() if isinstance(each, Group)}


def listed(help: str) -> list[str]:
    """Return the names of the commands in a help text."""
    return re.findall(r"^  ([a-z][a-z-]*)  ", help.partition("Commands:")[2], re.MULTILINE)


@pytest.mark.parametrize("argv", [["--help"], []])
def test_the_first_help_lists_at_most_twenty_names(nousctl: Nousctl, argv: list[str]) -> None:
    shown = nousctl(*argv)
    assert listed(shown.out + shown.err) == list(TREE)
    assert len(TREE) <= 20


@pytest.mark.parametrize("name", GROUPS)
def test_the_help_of_a_group_lists_its_verbs(nousctl: Nousctl, name: str) -> None:
    assert listed(nousctl(name, "--help").out) == list(GROUPS[name].verbs)


def test_every_name_leads_to_a_verb_and_all_but_one_verb_are_listed() -> None:
    paths = {row for row in TREE.values() if isinstance(row, str)}
    paths |= {row for group in GROUPS.values() for row in group.verbs.values()}
    assert paths | set(SYNONYMS.values()) <= set(ROWS)
    # One moves the daemon's active session, which is for other clients; the other is what prompt does.
    assert set(ROWS) - paths == {"switch", "prompt_stream"}


SAME: list[tuple[str, str, str]] = [
    ("session", "sessions", "list_sessions"),
    ("session list --limit 3", "session --limit 3", "list_sessions"),
    ("ls", "sessions", "list_sessions"),
    ("session show s", "session s", "get_session"),
    ("session show docs", "session docs", "get_session"),
    ("session --json show s", "session --json s", "get_session"),
    ("run", "runs", "list_runs"),
    ("run show r", "run r", "get_run"),
    ("queue list", "queue", "get_queue"),
    ("queue clear --kind steer", "clear-queue --kind steer", "clear_queue"),
    ("queue steering-mode all", "set-steering-mode all", "set_steering_mode"),
    ("model", "models", "list_models"),
    ("model set p/m", "model p/m", "set_model"),
    ("model --session s set p/m", "model --session s p/m", "set_model"),
    ("runtime list", "runtimes", "get_runtimes"),
    ("runtime set native", "runtime native", "set_runtime"),
    ("runtime status native", "auth-status native", "get_auth_status"),
    ("tool set read", "set-active-tools read", "set_active_tools"),
    ("permission", "permissions", "list_permissions"),
    ("question", "questions", "list_questions"),
    ("mcp list", "mcp", "list_mcp"),
    ("follow-up hi", "follow_up hi", "follow_up"),
    ("session messages", "get-messages", "get_messages"),
    ("run start hi", "prompt-async hi", "prompt"),
    ("session ls", "sessions", "list_sessions"),
    ("session rm s", "delete s", "delete_session"),
    ("queue rm in-1", "queue-remove in-1", "remove_queued"),
]


@pytest.mark.slow(keep=9)
@pytest.mark.parametrize(("new", "old", "command"), SAME, ids=[row[0] for row in SAME])
def test_a_listed_name_does_what_the_flat_name_does(
    daemon: FakeDaemon, nousctl: Nousctl, new: str, old: str, command: str
) -> None:
    assert nousctl(*new.split()).code == nousctl(*old.split()).code == 0
    sent = [(request["type"], request["payload"]) for request in daemon.heard]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert sent[0][0] == command


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("pnig", "did you mean: nousctl ping"),
        ("sesion list", "nousctl session"),
        ("propmt hi", "nousctl prompt"),
        ("session lisst", "did you mean: nousctl session list, or nousctl session show lisst"),
        ("queue nothing", "nousctl queue list"),
        ("session switch s", "there is no verb 'switch'"),
        ("list", "nousctl session list"),
        ("start", "it is: nousctl restart"),
        ("config", "it is: nousd config"),
        ("init", "it is: nousd init"),
        ("extension", "it is: nousctl daemon ext"),
        ("cost", "it is: nousctl session usage"),
        ("qqqqqq", "list the verbs with: nousctl --help"),
    ],
)
def test_an_unknown_verb_is_refused_with_the_nearest(
    daemon: FakeDaemon, nousctl: Nousctl, typed: str, hint: str
) -> None:
    outcome = nousctl(*typed.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert hint in " ".join(outcome.err.split())
    assert daemon.heard == []


@pytest.mark.parametrize("words", [[], ["session"], ["session", "export"]])
def test_help_has_a_short_flag(daemon: FakeDaemon, nousctl: Nousctl, words: list[str]) -> None:
    short, long = nousctl(*words, "-h"), nousctl(*words, "--help")
    assert short == long
    assert (short.code, daemon.heard) == (0, [])


def test_version_is_printed_without_a_daemon(nousctl: Nousctl) -> None:
    assert nousctl("--version", at="/nowhere") == (0, f"nousctl {__version__}\n", "")


# --- tools ---------------------------------------------------------------------------------------


TOOLS = [
    {"name": name, "active": active, "source": source, "description": ""}
    for name, active, source in (
        ("read", True, "builtin"),
        ("bash", False, "builtin"),
        ("mine", True, "extension"),
    )
]


@pytest.mark.parametrize(
    ("typed", "tools"),
    [
        ("enable bash", ["read", "bash"]),
        ("enable read", ["read"]),
        ("disable read", []),
        ("disable bash", ["read"]),
    ],
)
def test_tools_are_enabled_and_disabled_one_by_one(
    daemon: FakeDaemon, nousctl: Nousctl, typed: str, tools: list[str]
) -> None:
    daemon.on["list_tools"] = ok("tools", {"tools": TOOLS})
    assert nousctl("tool", *typed.split(), "--session", "s").code == 0
    assert daemon.heard[-1]["payload"] == {"tools": tools, "session_id": "s"}


def test_an_unknown_tool_is_refused_with_the_nearest(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    daemon.on["list_tools"] = ok("tools", {"tools": TOOLS})
    outcome = nousctl("tool", "enable", "raed")
    assert outcome.code == 1
    assert 'there is no built-in tool "raed"; the nearest is read' in outcome.err
    assert [request["type"] for request in daemon.heard] == ["list_tools"]
