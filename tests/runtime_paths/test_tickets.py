"""Tickets of browsers: valid for a while, for one token, in a bounded number."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from threading import Thread

import pytest

from nousd.errors import ConfigError
from nousd.runtime_paths.tickets import TicketFolder, browser_sessions, hash_token, login_links

NOW = 1_000_000.0
HASH = hash_token("a token")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("nousd.runtime_paths.tickets.time", clock)
    return clock


def folder_in(tmp_path: Path, most: int = 3) -> TicketFolder:
    return TicketFolder(tmp_path / "tickets", most=most, seconds=100)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "tickets").iterdir())


def test_a_ticket_is_a_private_file_without_its_secret(tmp_path: Path) -> None:
    secret, ticket = folder_in(tmp_path).issue(HASH, "http://a")
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert secret not in file.name + file.read_text()
    assert "a token" not in file.read_text()
    assert len(secret) == 43
    assert folder_in(tmp_path).find(secret, HASH) == ticket, "another process sees it, too"
    assert ticket.origin == "http://a"


def test_a_ticket_of_another_token_is_void_for_good(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    secret, _ = folder.issue(HASH)
    assert folder.find(secret, hash_token("another")) is None
    assert folder.find(secret, HASH) is None


def test_a_ticket_is_valid_for_its_time(tmp_path: Path, clock: Clock) -> None:
    folder = folder_in(tmp_path)
    secret, _ = folder.issue(HASH)
    clock.now += 99
    assert folder.find(secret, HASH)
    clock.now += 1
    assert folder.find(secret, HASH) is None
    assert files(tmp_path) == []


def test_a_clock_that_is_set_back_makes_no_ticket_last_longer(tmp_path: Path, clock: Clock) -> None:
    folder = folder_in(tmp_path)
    secret, _ = folder.issue(HASH)
    clock.now -= 1
    assert folder.find(secret, HASH) is None


def test_the_ticket_that_was_unused_for_longest_makes_room(tmp_path: Path, clock: Clock) -> None:
    folder = folder_in(tmp_path)
    tickets = [folder.issue(HASH)[0] for _ in range(3)]
    for file in files(tmp_path):
        os.utime(file, (NOW - 90, NOW - 90))
    for used in (tickets[0], tickets[2]):
        assert folder.find(used, HASH)
    for file in files(tmp_path):
        if file.stat().st_mtime > NOW - 90:
            os.utime(file, (NOW, NOW))
    tickets.append(folder.issue(HASH)[0])
    assert len(files(tmp_path)) == 3
    valid = [folder.find(secret, HASH) is not None for secret in tickets]
    assert valid == [True, False, True, True]


def test_void_tickets_and_leftovers_make_room_first(tmp_path: Path, clock: Clock) -> None:
    folder = folder_in(tmp_path)
    folder.issue(hash_token("another"))
    kept, _ = folder.issue(HASH)
    half, fresh = (tmp_path / "tickets" / name for name in ("half", "fresh"))
    for file in (half, fresh):
        file.write_text('{"origin":')
    os.utime(half, (NOW - 61, NOW - 61))
    os.utime(fresh, (NOW - 59, NOW - 59))
    added, _ = folder.issue(HASH)
    assert len(files(tmp_path)) == 3
    assert not half.exists()
    assert fresh.exists(), "another process may be writing it"
    assert folder.find(kept, HASH)
    assert folder.find(added, HASH)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"origin": "x"}',
        '{"origin": "", "expires_at": "x", "token_hash": ""}',
    ],
)
def test_a_damaged_ticket_admits_nobody(tmp_path: Path, text: str) -> None:
    folder = folder_in(tmp_path)
    secret, _ = folder.issue(HASH)
    files(tmp_path)[0].write_text(text)
    assert folder.find(secret, HASH) is None


@pytest.mark.parametrize("secret", ["", ".", "..", "x" * 43 + "\n", "../http-token", "é" * 43])
def test_what_is_no_secret_is_not_looked_for(tmp_path: Path, secret: str) -> None:
    folder = folder_in(tmp_path)
    folder.issue(HASH)
    assert folder.find(secret, HASH) is None
    assert folder.take(secret, HASH) is None
    assert not folder.remove(secret)


def test_a_link_to_a_ticket_is_none(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    secret, _ = folder.issue(HASH)
    (file,) = files(tmp_path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert folder.find(secret, HASH) is None


def test_of_several_takers_one_gets_the_ticket(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    secret, ticket = folder.issue(HASH)
    taken: list[object] = []
    takers = [Thread(target=lambda: taken.append(folder.take(secret, HASH))) for _ in range(8)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert [each for each in taken if each] == [ticket]
    assert folder.find(secret, HASH) is None


def test_a_ticket_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tickets").write_text("in the way")
    with pytest.raises(ConfigError, match="is not a directory"):
        folder_in(tmp_path).issue(HASH)


def test_the_folders_of_a_state_directory_hold_sessions_for_hours_and_links_for_minutes(
    tmp_path: Path,
) -> None:
    for folder, name, most, seconds in (
        (browser_sessions(tmp_path), "http-sessions", 64, 12 * 3600),
        (login_links(tmp_path), "http-links", 16, 5 * 60),
    ):
        for _ in range(most + 1):
            _, ticket = folder.issue(HASH)
        there = list((tmp_path / name).iterdir())
        assert len(there) == most
        until = json.loads(there[0].read_text())["expires_at"]
        assert until - time.time() == pytest.approx(seconds, abs=60)
        assert ticket.origin == ""
