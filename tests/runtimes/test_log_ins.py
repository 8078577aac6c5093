"""What is said of log-ins: where they are, whether there is one, and with which words it is made."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nousd.runtimes.agents.acp import agent as acp
from nousd.runtimes.agents.claude import agent as claude
from nousd.runtimes.agents.codex import agent as codex
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.programs import Programs
from nousd.runtimes.agents.spaces import Spaces
from nousd.wire.objects.runtimes import AuthFacts

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-planted", "OPENAI_API_KEY": "sk-planted"}
KINDS: dict[str, Any] = {"claude": claude, "codex": codex, "acp": acp}
FILES = {"claude": ".claude/.credentials.json", "codex": ".codex/auth.json"}


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's HOME."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user"


def programs(
    kind: str, folder: Path, *, passed_on: dict[str, str] | None = None, **more: Any
) -> Programs:
    module = KINDS[kind]
    agent = module.AGENT("it", ["program", "--flag"], KEYS if passed_on is None else passed_on)
    mode = more.pop("mode", "subprocess")
    spaces = Spaces(folder / "runtimes", "it", own=module.OWN_VARIABLES, **more)
    return Programs(agent, Guest(lambda: None, ()), spaces, mode)


def log_in(home: Path, kind: str) -> None:
    (home / FILES[kind]).parent.mkdir(parents=True)
    (home / FILES[kind]).write_text('{"token": "planted"}')


@pytest.mark.behaviour("each_namespace_has_a_log_in")
@pytest.mark.parametrize("kind", FILES)
def test_each_namespace_is_logged_in_by_its_own_file(kind: str, tmp_path: Path) -> None:
    of = programs(kind, tmp_path, passed_on={}).auth_facts
    facts = of("user:a")
    assert (facts.is_logged_in, facts.isolation) == (False, "namespaced")
    assert "nousctl runtime login it --namespace user:a" in facts.instructions
    log_in(Path(str(facts.home)), kind)
    logged_in = [of(namespace).is_logged_in for namespace in ("default", "user:a", "user:b")]
    assert logged_in == [False, True, False]


@pytest.mark.parametrize("kind", FILES)
def test_the_keys_of_the_daemons_environment_log_in_the_user_alone(
    kind: str, tmp_path: Path
) -> None:
    of = programs(kind, tmp_path).auth_facts
    assert [of(namespace).is_logged_in for namespace in ("default", "user:a")] == [True, False]


@pytest.mark.parametrize("kind", FILES)
def test_the_words_of_a_log_in_run_with_the_files_of_the_namespace(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = programs(kind, tmp_path).auth_facts
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/of/the/user")
    monkeypatch.setenv("CODEX_HOME", "/of/the/user")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-user")
    facts = of("user:a")
    for words in (facts.login, facts.logout):
        place = words.index("program")
        assert words[place : place + 2] == ("program", "--flag")
        shown = subprocess.run([*words[:place], "env"], capture_output=True, text=True, check=True)
        variables = dict(line.split("=", 1) for line in shown.stdout.splitlines())
        assert variables["HOME"] == facts.home
        assert {f"{kind.upper()}_CONFIG_DIR", f"{kind.upper()}_HOME"}.isdisjoint(variables)
        assert kind != "claude" or "ANTHROPIC_API_KEY" not in variables
    assert of("default").login[:2] == ("program", "--flag")


def test_a_folder_that_the_daemon_was_told_of_is_that_of_a_log_in_too(tmp_path: Path) -> None:
    chosen = {"CODEX_HOME": str(tmp_path / "chosen")}
    facts = programs("codex", tmp_path, passed_on=chosen).auth_facts("default")
    assert facts.login == ("env", f"CODEX_HOME={tmp_path / 'chosen'}", "program", "--flag", "login")


def test_the_account_is_told_where_no_keys_are(tmp_path: Path, user: Path) -> None:
    of = programs("claude", tmp_path, passed_on={}).auth_facts
    user.mkdir()
    for text, account in (
        (json.dumps({"oauthAccount": {"emailAddress": "anna@example.org"}}), "anna@example.org"),
        (json.dumps({"oauthAccount": {"emailAddress": "sk-ant-planted"}}), None),
        (json.dumps({"oauthAccount": 7}), None),
        ("{", None),
    ):
        (user / ".claude.json").write_text(text)
        assert (of("default").account or None) == account


def test_no_log_in_can_be_made_where_none_is_kept(tmp_path: Path, user: Path) -> None:
    log_in(user, "claude")
    for passed_on, logged_in in (({}, False), (KEYS, True)):
        of = programs("claude", tmp_path, passed_on=passed_on, level="ephemeral").auth_facts
        facts = of("default")
        assert (facts.is_logged_in, facts.login, facts.logout) == (logged_in, (), ())
        assert "not kept" in facts.instructions


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_secret_is_said_of_a_log_in(kind: str, tmp_path: Path, user: Path) -> None:
    for home in (user, tmp_path / "runtimes" / "namespaces" / "user-a" / "it"):
        for file in FILES.values():
            (home / file).parent.mkdir(parents=True)
            (home / file).write_text('{"token": "planted"}')
    for namespace in ("default", "user:a"):
        facts = programs(kind, tmp_path).auth_facts(namespace)
        assert "planted" not in repr(facts)
        assert isinstance(facts, AuthFacts)


def test_a_server_keeps_its_log_in(tmp_path: Path, user: Path) -> None:
    log_in(user, "claude")
    facts = programs("claude", tmp_path, mode="server_side").auth_facts("default")
    assert facts == AuthFacts(
        instructions="the server that runs the program keeps the log-in", isolation="shared"
    )
