"""``nousctl trust`` shows what a project adds, asks, and trusts exactly that."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from nousd.wire.codec.canonical_json import digest
from nousd.wire.limits import PROJECT_FILE_BYTES_MAX
from tests.cli.conftest import Nousctl
from tests.harness.fake_daemon import FakeDaemon, ok, refused

OWN = {
    "path": "/app/.nousd/config.toml",
    "hash": "sha256:1",
    "trusted": False,
    "restricts": ["deny read(a)"],
    "adds": ["allow bash(npm test *)\x1b[2J"],
    "problems": ["sandbox: a project cannot set this"],
}


@pytest.fixture(autouse=True)
def project(daemon: FakeDaemon) -> None:
    listed = {"root": "/app", "files": [OWN], "cursor": "evt-1"}
    daemon.on["list_trust"] = ok("project_files", listed)
    for command in ("trust", "untrust"):
        daemon.on[command] = ok("accepted", {"command": command, "path": OWN["path"]})


HERE = {"workspace": str(Path.cwd())}
"""The project is that of the current folder."""


def sent(daemon: FakeDaemon, command: str) -> list[object]:
    return [request["payload"] for request in daemon.heard if request["type"] == command]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_trust_shows_what_a_project_adds_and_trusts_exactly_that_hash(
    nousctl: Nousctl, daemon: FakeDaemon
) -> None:
    outcome = nousctl("trust", "--yes")
    assert (outcome.code, outcome.out) == (0, "trusted: /app/.nousd/config.toml\n")
    for line in (
        "/app/.nousd/config.toml: not trusted",
        "counts in any case: deny read(a)",
        "counts if trusted: allow bash(npm test *)",
        "never counts: sandbox: a project cannot set this",
    ):
        assert line in outcome.err
    assert "\x1b" not in outcome.err
    assert sent(daemon, "trust") == [{"path": OWN["path"], "hash": "sha256:1", **HERE}]


def test_the_workspace_option_selects_the_project(nousctl: Nousctl, daemon: FakeDaemon) -> None:
    where = {"workspace": "/app"}
    assert nousctl("trust", "--yes", "--workspace", "/app").code == 0
    assert nousctl("trust", "--list", "--workspace", "/app").code == 0
    assert nousctl("untrust", "--workspace", "/app").code == 0
    assert sent(daemon, "list_trust") == [where, where]
    assert sent(daemon, "trust") == [{"path": OWN["path"], "hash": "sha256:1", **where}]
    assert sent(daemon, "untrust") == [where]


@pytest.mark.parametrize(("typed", "is_sent"), [("y\n", True), ("YES\n", True), ("n\n", False)])
def test_at_a_terminal_the_user_is_asked_for_confirmation(
    nousctl: Nousctl,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    is_sent: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(typed))
    outcome = nousctl("trust")
    assert outcome.code == (0 if is_sent else 1)
    assert "[y/N]" in outcome.err
    assert bool(sent(daemon, "trust")) == is_sent


@pytest.mark.parametrize("typed", ["", "\n"])
def test_an_empty_answer_trusts_nothing(
    nousctl: Nousctl, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(typed))
    assert nousctl("trust").code == 1
    assert sent(daemon, "trust") == []


def test_without_a_terminal_nothing_is_trusted(nousctl: Nousctl, daemon: FakeDaemon) -> None:
    outcome = nousctl("trust", input="y\n")
    assert outcome.code == 1
    assert "--yes" in outcome.err
    assert sent(daemon, "trust") == []


def test_a_project_without_settings_has_nothing_to_trust(
    nousctl: Nousctl, daemon: FakeDaemon
) -> None:
    daemon.on["list_trust"] = ok("project_files", {"root": "/app", "files": [], "cursor": "evt-1"})
    outcome = nousctl("trust", "--yes")
    assert (outcome.code, sent(daemon, "trust")) == (1, [])
    assert "/app" in outcome.err
    assert "no settings" in nousctl("trust", "--list").out


def test_a_named_file_is_shown_and_trusted_by_its_hash(
    nousctl: Nousctl, daemon: FakeDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "agent.md"
    file.write_text("You are kind.\n")
    outcome = nousctl("trust", str(file), "--yes")
    assert outcome.code == 0
    assert "  You are kind." in outcome.err
    named = {"path": str(file), "hash": digest(b"You are kind.\n")}
    assert sent(daemon, "trust") == [{**named, **HERE}]


def test_a_file_that_cannot_be_shown_is_not_trusted(
    nousctl: Nousctl, daemon: FakeDaemon, tmp_path: Path
) -> None:
    assert "cannot be read" in nousctl("trust", str(tmp_path / "none"), "--yes").err
    (tmp_path / "long").write_bytes(b"x" * (PROJECT_FILE_BYTES_MAX + 1))
    assert "longer than" in nousctl("trust", str(tmp_path / "long"), "--yes").err
    assert sent(daemon, "trust") == []


def test_list_shows_project_files_as_text_or_json_and_trusts_nothing(
    nousctl: Nousctl, daemon: FakeDaemon
) -> None:
    assert "not trusted" in nousctl("trust", "--list").out
    assert '"root": "/app"' in nousctl("trust", "--list", "--json").out
    assert sent(daemon, "trust") == []


def test_untrust_revokes_trust(nousctl: Nousctl, daemon: FakeDaemon, tmp_path: Path) -> None:
    assert nousctl("untrust").out == "not trusted any more: /app/.nousd/config.toml\n"
    assert nousctl("untrust", str(tmp_path / "a")).code == 0
    assert sent(daemon, "untrust") == [HERE, {"path": str(tmp_path / "a"), **HERE}]
    daemon.on["untrust"] = refused("command_rejected", "not_trusted")
    assert nousctl("untrust").code == 1


def test_only_the_settings_file_of_the_project_itself_is_trusted(
    nousctl: Nousctl, daemon: FakeDaemon
) -> None:
    others = [OWN | {"path": path} for path in ("/app2/.nousd/config.toml", "/app/.nousd/x.md")]
    listed = {"root": "/app", "files": others, "cursor": "evt-1"}
    daemon.on["list_trust"] = ok("project_files", listed)
    outcome = nousctl("trust", "--yes")
    assert (outcome.code, sent(daemon, "trust")) == (1, [])
    assert "the project at /app has no settings of its own" in outcome.err
