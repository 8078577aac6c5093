"""Folders, times and durations as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nousd.cli.render.answers import as_text
from nousd.cli.render.people import age, duration, format_folder, local_time
from nousd.client.answers import Answer


def test_the_home_folder_is_shown_as_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    shown = [format_folder(each) for each in ("/home/me", Path("/home/me/a/b"), "/home/men", "/")]
    assert shown == ["~", "~/a/b", "/home/men", "/"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h"),
        (200_000, "2d"),
        (-5, "0s"),
    ],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_are_shown_in_local_time_and_ages_from_now() -> None:
    assert local_time("2026-01-02T03:04:05.678Z") == "2026-01-02 03:04:05"
    assert local_time("then") == age("then") == "then"
    assert age("2026-01-02T03:04:05Z", "2026-01-02T03:09:05Z") == "5m"
    now = datetime.now(UTC)
    assert age((now - timedelta(hours=3)).isoformat()) == "3h"


def test_a_list_shows_age_state_title_and_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    row: dict[str, Any] = {
        "session_id": "s1",
        "updated_at": "2000-01-01T00:00:00Z",
        "run_state": "idle",
    }
    row |= {"active": True, "archived": False, "workspace": "/home/me/a", "name": "n", "title": "T"}
    answer = Answer("1", "sessions", {"sessions": [row], "has_more": False, "count": 1}, None)
    [line] = as_text(answer)
    head, _, rest = line.partition("d  ")
    assert head.startswith("* s1  ")
    assert rest == 'idle "T"  ~/a'
