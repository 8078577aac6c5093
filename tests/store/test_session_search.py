"""The search through titles and messages, on every store: what it finds, its pages and its bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nousd.store import session_search
from nousd.store.interface import Store
from nousd.store.session_list import SessionFilter
from nousd.store.session_search import SearchPage, SearchPlace
from nousd.wire import events
from tests.store.helpers import append, appended, created, deleted, message, updated

Found = list[tuple[str, str | None]]


async def search(
    store: Store, text: str, after: SearchPlace | None = None, **more: Any
) -> SearchPage:
    limit = more.pop("limit", 9)
    return await store.search(SessionFilter(**more), text, limit=limit, after=after)


def found(page: SearchPage) -> Found:
    """Return (session, entry) of each match."""
    return [
        (match.row.session_id, None if match.message is None else match.message.entry_id)
        for match in page.matches
    ]


async def test_a_session_is_found_once_by_its_title_or_its_newest_message(store: Store) -> None:
    await append(store, created("s1", title="the Parser"), created("s2"), created("s3", name="x"))
    await append(store, appended("e1", session_id="s1", text="a parser"))
    await append(store, appended("e2", session_id="s2", text="no PARSER here"))
    await append(store, appended("e3", "e2", session_id="s2", text="parsers"))
    page = await search(store, "parser")
    assert found(page) == [("s2", "e3"), ("s1", None)]
    assert (page.place, page.is_partial) == (None, False)
    assert [match.snippet for match in page.matches] == ["parsers", "the Parser"]


async def test_a_name_takes_the_place_of_the_title(store: Store) -> None:
    await append(store, created("s1", title="old"), updated("s1", name="new"))
    assert found(await search(store, "old")) == []
    assert found(await search(store, "NEW")) == [("s1", None)]


async def test_results_of_tools_and_deleted_sessions_are_not_searched(store: Store) -> None:
    await append(store, created("s1"), created("s2"))
    await append(store, appended("e1", session_id="s1", text="gone word"), deleted("s1"))
    result = msgspec.structs.replace(message("e2", text="tool word"), role="tool")
    await append(store, events.EntryAppended(session_id="s2", entry=result))
    assert found(await search(store, "word")) == []


async def test_a_search_has_the_filters_of_a_list(store: Store) -> None:
    await append(
        store, created("s1", title="a word"), created("s2", title="a word", workspace="/w")
    )
    await append(store, updated("s1", archived=True))
    assert found(await search(store, "word", archived=False)) == [("s2", None)]
    assert found(await search(store, "word", archived=True)) == [("s1", None)]
    assert found(await search(store, "word", workspace="/w")) == [("s2", None)]


@pytest.mark.parametrize(
    ("text", "wanted", "snippet"),
    [
        (
            "x" * 99 + " the word " + "y" * 999,
            "THE",
            "…" + "x" * 39 + " the word " + "y" * 111 + "…",
        ),
        ("one\n\ttwo\x1b[0m three", "two", "one two[0m three"),
        ("ß" * 99 + "Straße", "STRASSE", "…" + "ß" * 40 + "Straße"),
        ("cafe\u0301 " * 30, "CAFÉ", None),
        ("100% _done_", "0% _D", "100% _done_"),
    ],
)
async def test_a_snippet_shows_what_surrounds_the_text(
    store: Store, text: str, wanted: str, snippet: str | None
) -> None:
    await append(store, created("s1"), appended("e1", session_id="s1", text=text))
    (match,) = (await search(store, wanted)).matches
    assert snippet is None or match.snippet == snippet
    assert len(match.snippet) <= 162


async def test_the_text_of_a_long_message_is_searched_up_to_its_bound(store: Store) -> None:
    bound = session_search.SEARCHED_CHARS_MAX
    text = "x" * (bound - 4) + "word" + "far"
    await append(store, created("s1"), appended("e1", session_id="s1", text=text))
    assert found(await search(store, "word")) == [("s1", "e1")]
    assert found(await search(store, "far")) == []


async def _many(store: Store) -> None:
    """Fill three sessions with five messages each, of which the oldest has the word."""
    for session in ("s1", "s2", "s3"):
        await append(store, created(session))
        for number in range(5):
            text = f"{'word' if number == 0 else 'other'} {number}"
            await append(store, appended(f"{session}.{number}", session_id=session, text=text))


async def test_pages_follow_each_other_without_a_gap_or_a_repetition(store: Store) -> None:
    await _many(store)
    first = await search(store, "word", limit=2)
    assert found(first) == [("s3", "s3.0"), ("s2", "s2.0")]
    assert first.place == SearchPlace("s2")
    assert not first.is_partial
    rest = await search(store, "word", first.place, limit=2)
    assert (found(rest), rest.place) == ([("s1", "s1.0")], None)


@pytest.mark.parametrize("bound", [1, 2, 3, 4, 5, 7, 14, 15])
async def test_a_search_that_was_cut_short_goes_on_where_it_ended(
    store: Store, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _many(store)
    monkeypatch.setattr(session_search, "SEARCHED_MESSAGES_MAX", bound)
    page = await search(store, "word")
    pages = 1
    everything = found(page)
    while page.place is not None:
        assert page.is_partial
        page = await search(store, "word", page.place)
        everything += found(page)
        pages += 1
    assert everything == [("s3", "s3.0"), ("s2", "s2.0"), ("s1", "s1.0")]
    assert pages >= 15 / bound


async def test_a_search_ends_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await _many(store)
    monkeypatch.setattr(session_search, "SEARCH_SECONDS", 0)
    page = await search(store, "nowhere")
    assert (page.is_partial, page.place is not None) == (True, True)


async def test_a_session_that_was_used_meanwhile_is_searched_from_its_new_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _many(store)
    monkeypatch.setattr(session_search, "SEARCHED_MESSAGES_MAX", 2)
    page = await search(store, "word")
    assert page.place is not None
    await append(store, updated("s3", archived=True))
    monkeypatch.setattr(session_search, "SEARCHED_MESSAGES_MAX", 99)
    assert found(await search(store, "word", page.place)) == [
        ("s3", "s3.0"),
        ("s2", "s2.0"),
        ("s1", "s1.0"),
    ]
