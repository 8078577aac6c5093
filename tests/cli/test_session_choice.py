"""Which session a verb means: named, or that of the current folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nousd.cli.nousctl.command_tree import TREE, Group
from nousd.cli.session_choice import folders_of, matching
from tests.cli.conftest import Nousctl, without_own_name
from tests.harness.fake_daemon import FakeDaemon, ok, refused

# --- without a daemon ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cwd", "repositories", "folders"),
    [
        ("/home/me/a/b", ["/home/me/a"], ["/home/me/a/b", "/home/me/a"]),
        ("/home/me/a/b", ["/home/me/a/b"], ["/home/me/a/b"]),
        ("/home/me/a/b", [], ["/home/me/a/b", "/home/me/a"]),
        ("/home/me/a/b", ["/home/me"], ["/home/me/a/b", "/home/me/a"]),
        ("/home/me", [], ["/home/me"]),
        ("/home", [], ["/home"]),
        ("/srv/x/y", [], ["/srv/x/y", "/srv/x", "/srv"]),
        ("/", [], ["/"]),
    ],
)
def test_the_folders_of_a_session_end_at_the_repository_and_below_home(
    cwd: str, repositories: list[str], folders: list[str]
) -> None:
    found = folders_of(Path(cwd), Path("/home/me"), lambda path: str(path) in repositories)
    assert [str(folder) for folder in found] == folders


ROWS = [
    {"session_id": "sess-0001aa", "name": "docs", "workspace": "/w"},
    {"session_id": "sess-0001ab", "name": "Docs", "title": "Write the docs", "workspace": "/w"},
    {"session_id": "sess-0002", "name": "sess-0001", "workspace": "/w"},
    {"session_id": "sess-0003", "workspace": "/w"},
]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("sess-0001aa", ["sess-0001aa"]),
        ("docs", ["sess-0001aa"]),
        ("DOCS", ["sess-0001aa", "sess-0001ab"]),
        ("write the docs", ["sess-0001ab"]),
        ("sess-0001", ["sess-0002"]),
        ("sess-0001a", ["sess-0001aa", "sess-0001ab"]),
        ("0001a", ["sess-0001aa", "sess-0001ab"]),
        ("0003", ["sess-0003"]),
        ("000", []),
        ("doc", []),
    ],
)
def test_a_text_means_an_id_else_a_name_else_a_prefix(text: str, ids: list[str]) -> None:
    assert [row["session_id"] for row in matching(ROWS, text)] == ids


# --- with a daemon -------------------------------------------------------------------------------


def known_sessions(daemon: FakeDaemon, *rows: dict[str, Any]) -> None:
    """Let the daemon have these sessions."""

    def list_sessions(request: dict[str, Any]) -> bytes | None:
        wanted = request["payload"]
        found = [
            row for row in rows if wanted.get("workspace", row["workspace"]) == row["workspace"]
        ]
        answer = {"sessions": found, "has_more": False, "count": len(found)}
        return ok("sessions", answer)(request)

    def by_id(type_: str) -> Callable[[dict[str, Any]], bytes | None]:
        def reply(request: dict[str, Any]) -> bytes | None:
            if request["payload"]["session_id"] in {row["session_id"] for row in rows}:
                return ok(type_)(request)
            return refused("session_not_found", "no such session")(request)

        return reply

    daemon.on["list_sessions"] = list_sessions
    daemon.on["get_session"] = by_id("session_record")
    daemon.on["abort"] = by_id("pong")
    daemon.on["new_session"] = ok("session", {"session_id": "sess-new", "active": False})
    daemon.on["prompt"] = ok("result", {"output": "said"})


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository with a folder below, in which the verbs run; no session is named."""
    monkeypatch.delenv("NOUSD_SESSION")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    return folder


def sent(daemon: FakeDaemon, type_: str) -> list[dict[str, Any]]:
    return [
        without_own_name(request["payload"]) for request in daemon.heard if request["type"] == type_
    ]


def test_a_verb_means_the_session_of_the_nearest_folder(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path
) -> None:
    known_sessions(
        daemon,
        {"session_id": "sess-1", "workspace": str(project)},
        {"session_id": "sess-2", "workspace": "/elsewhere"},
    )
    assert nousctl("abort").code == 0
    assert sent(daemon, "abort") == [{"session_id": "sess-1"}]
    assert [request.get("archived") for request in sent(daemon, "list_sessions")] == [False, False]
    assert all("children" not in request for request in sent(daemon, "list_sessions"))


def test_a_verb_that_acts_is_refused_in_a_folder_without_a_session(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path
) -> None:
    known_sessions(daemon)
    outcome = nousctl("abort")
    assert outcome.code == 1
    assert outcome.err == (
        "no session in ~/project/deep; start one with: nousctl prompt TEXT, or name one with --session;"
        " list them with: nousctl session list\n"
    )
    assert sent(daemon, "abort") == []


def test_a_prompt_makes_a_session_in_this_folder_and_leaves_the_active_one_alone(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path
) -> None:
    known_sessions(daemon)
    outcome = nousctl("prompt", "hi")
    assert (outcome.code, outcome.out) == (0, "said\n")
    assert sent(daemon, "new_session") == [{"workspace": str(project / "deep"), "activate": False}]
    assert sent(daemon, "prompt") == [{"text": "hi", "wait": True, "session_id": "sess-new"}]


def test_no_session_is_made_in_the_home_folder_unless_it_is_named(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_sessions(daemon)
    monkeypatch.chdir(project.parent)
    outcome = nousctl("prompt", "hi")
    assert outcome.code == 1
    assert "nousctl session new --workspace ~" in outcome.err
    assert sent(daemon, "new_session") == []


def test_a_session_is_named_by_its_id_prefix_or_name_or_by_the_environment(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_sessions(
        daemon,
        {"session_id": "sess-1111a", "workspace": "/w", "name": "docs"},
        {"session_id": "sess-2222b", "workspace": "/w"},
    )
    for named in ("sess-1111a", "docs", "1111", "sess-1111"):
        daemon.heard.clear()
        assert nousctl("abort", "--session", named).code == 0
        assert sent(daemon, "abort")[-1] == {"session_id": "sess-1111a"}
    assert nousctl("session", "show", "2222b").code == 0
    assert sent(daemon, "get_session")[-1] == {"session_id": "sess-2222b"}
    monkeypatch.setenv("NOUSD_SESSION", "2222b")
    assert nousctl("abort").code == 0
    assert sent(daemon, "abort")[-1] == {"session_id": "sess-2222b"}


def test_a_name_of_several_sessions_is_refused_with_the_candidates(
    daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    known_sessions(
        daemon,
        {"session_id": "sess-1111a", "workspace": "/w", "name": "docs"},
        {"session_id": "sess-1111b", "workspace": "/w", "title": "A plan"},
    )
    outcome = nousctl("abort", "--session", "sess-1111")
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        'session "sess-1111" can be one of:',
        '  sess-1111a "docs" in /w',
        '  sess-1111b "A plan" in /w',
    ]


def test_an_unknown_name_is_refused_with_the_nearest(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    known_sessions(daemon, {"session_id": "sess-1111a", "workspace": "/w", "name": "docs"})
    for typed in ("abort", "events"):
        outcome = nousctl(typed, "--session", "dosc")
        assert outcome.code == 1
        assert outcome.err == (
            'no session "dosc"; the nearest is "docs"; list them with: nousctl session list\n'
        )


def test_a_deleted_session_is_restored_by_its_name(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    def restore(request: dict[str, Any]) -> bytes | None:
        if request["payload"]["session_id"] == "sess-gone":
            return ok("session", {"session_id": "sess-gone", "active": False})(request)
        return refused("session_not_found", "no such session")(request)

    gone = [{"session_id": "sess-gone", "title": "first work", "workspace": "/w"}]
    daemon.on["restore_session"] = restore
    daemon.on["list_sessions"] = ok("sessions", {"sessions": gone, "has_more": False, "count": 1})
    assert nousctl("restore", "first work").code == 0
    [asked] = [each["payload"] for each in daemon.heard if each["type"] == "list_sessions"]
    assert asked["deletion_scheduled"] is True
    lost = nousctl("restore", "other")
    assert "list them with: nousctl session list --deletion-scheduled" in lost.err


# --- the session as a word -----------------------------------------------------------------------

OF_NO_SESSION = {"list", "search", "new", "append"}
"""Verbs of the group that act on no session, and the one whose text takes all words."""

MORE_WORDS = {
    "rename": ["New name"],
    "move": ["/elsewhere"],
    "override": ["15m"],
    "leaf": ["entry-1"],
    "update": ["--name", "other"],
}


def session_verbs() -> list[str]:
    group = TREE["session"]
    assert isinstance(group, Group)
    return [verb for verb in group.verbs if verb not in OF_NO_SESSION]


@pytest.mark.parametrize("verb", session_verbs())
def test_each_verb_takes_the_session_as_its_first_word_or_by_a_flag(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path, verb: str
) -> None:
    named: list[Any] = []

    def note(request: dict[str, Any]) -> bytes | None:
        session_id = request["payload"].get("session_id")
        if session_id == "the docs":
            return refused("session_not_found", "no such session")(request)
        named.append((request["type"], session_id))
        return refused("internal_error", "noted")(request)

    known_sessions(daemon, {"session_id": "sess-1111", "workspace": "/w", "name": "the docs"})
    daemon.on["subscribe"] = note
    daemon.otherwise = note
    del daemon.on["get_session"]
    more = MORE_WORDS.get(verb, [])
    nousctl("session", verb, "the docs", *more)
    as_a_word = named.copy()
    named.clear()
    nousctl("session", verb, *more, "--session", "the docs")
    assert as_a_word
    assert as_a_word == named
    assert {session_id for _, session_id in named} == {"sess-1111"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["export", "docs", "--session", "plan"], 'name one session: "docs", or --session "plan"'),
        (["export", "my", "docs"], "a name of several words is quoted: 'my docs'"),
        (["delete"], "name the session; list them with: nousctl session list"),
        (
            ["restore"],
            "name the session; list them with: nousctl session list --deletion-scheduled",
        ),
    ],
)
def test_no_session_is_guessed_from_several_or_where_one_has_to_be_named(
    daemon: FakeDaemon, nousctl: Nousctl, project: Path, argv: list[str], said: str
) -> None:
    outcome = nousctl("session", *argv)
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())
    assert daemon.heard == []


# --- a session that a run names ------------------------------------------------------------------


def runs_of_one_session(daemon: FakeDaemon, *, last: str) -> None:
    """Let the daemon know a run r of session s, whose last run is ``last``."""
    daemon.on["get_run"] = ok("run", {"run": {"run_id": "r", "session_id": "s"}})
    daemon.on["list_runs"] = ok("runs", {"runs": [{"run_id": last, "session_id": "s"}]})


@pytest.mark.parametrize(
    ("verb", "sent"),
    [("resume", {"session_id": "s"}), ("abort", {"session_id": "s", "expected_run_id": "r"})],
)
@pytest.mark.parametrize("group", [[], ["run"]])
def test_a_run_names_its_session(
    verb: str, sent: dict[str, str], group: list[str], daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    runs_of_one_session(daemon, last="r")
    assert nousctl(*group, verb, "r").code == 0
    assert without_own_name(daemon.heard[-1]["payload"]) == sent


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_run_that_another_followed_is_neither_resumed_nor_aborted(
    verb: str, daemon: FakeDaemon, nousctl: Nousctl
) -> None:
    runs_of_one_session(daemon, last="later")
    result = nousctl("run", verb, "r")
    assert (result.code, "the last run of its session is later" in result.err) == (2, True)
    assert daemon.heard[-1]["type"] == "list_runs"


def test_a_run_and_a_session_are_not_named_both(daemon: FakeDaemon, nousctl: Nousctl) -> None:
    result = nousctl("run", "abort", "r", "--session", "s")
    assert (result.code, "not both" in result.err) == (2, True)
    assert daemon.heard == []
