"""Lists of sessions, on every store: filters, counts and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import trio

from nousd.store.interface import Store
from nousd.store.session_list import EVERY_SESSION, SessionFilter, fold_text
from nousd.store.sqlite import session_queries as _queries
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.database import open_for_reading
from nousd.wire.objects.entries import Sampling
from nousd.wire.objects.session_values import SessionRules
from tests.store.helpers import append, created, deleted, updated


async def ids(store: Store, **wanted: Any) -> tuple[list[str], int]:
    """Return the session ids of a list, newest first, and its count."""
    page = await store.sessions(SessionFilter(**wanted), limit=9, before=None)
    return [row.session_id for row in page.rows], page.count


async def test_a_listed_session_matches_every_filter(store: Store) -> None:
    await append(store, created("s1", source="chat", workspace="/w"), created("s2", source="chat"))
    await append(store, created("s3", workspace="/w"), created("s4", parent_id="s1", source="chat"))
    await append(store, updated("s2", archived=True), updated("s3", archived=True))
    assert await ids(store) == (["s3", "s2", "s4", "s1"], 4)
    assert await ids(store, source="chat") == (["s2", "s4", "s1"], 3)
    assert await ids(store, archived=True) == (["s3", "s2"], 2)
    assert await ids(store, archived=False) == (["s4", "s1"], 2)
    assert await ids(store, workspace="/w") == (["s3", "s1"], 2)
    assert await ids(store, workspace="/w", archived=True) == (["s3"], 1)
    assert await ids(store, workspace="/w", source="chat", archived=True) == ([], 0)
    assert await ids(store, parent_id="s1") == (["s4"], 1)


async def test_a_session_without_a_workspace_is_listed_in_the_unnamed_workspace(
    store: Store,
) -> None:
    await append(store, created("s1"), created("s2", workspace="/other"))
    assert await ids(store, workspace="/w", unnamed_workspace="/w") == (["s1"], 1)
    assert await ids(store, workspace="/other", unnamed_workspace="/w") == (["s2"], 1)
    assert await ids(store, text="/w", unnamed_workspace="/w") == (["s1"], 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Fix the PARSER", "the parser"),
        ("Straße", "STRASSE"),
        ("caf\u00e9", "CAFE\u0301"),
        ("cafe\u0301", "Caf\u00c9"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("100%_done", "0%_D"),
        ("a\\b", "\\B"),
        ("x'); DROP TABLE sessions; --", "'); drop"),
        ("one\x00two", "TWO"),
    ],
)
async def test_text_search_ignores_case_and_unicode_normalization(
    store: Store, name: str, text: str
) -> None:
    await append(store, created("s1", name=name), created("s2", name="something else"))
    assert await ids(store, text=text) == (["s1"], 1)


async def test_text_search_has_no_wildcards(store: Store) -> None:
    await append(store, created("s1", name="plain"), created("s2", workspace="/plain"))
    assert [await ids(store, text=text) for text in ("%", "_", "*", "p_ain", "p*n")] == [
        ([], 0)
    ] * 5
    assert await ids(store, text="PLAIN") == (["s2", "s1"], 2)


async def test_pages_by_offset_are_consecutive_and_count_all_sessions(store: Store) -> None:
    await append(store, *(created(f"s{number}", source="chat") for number in range(5)))
    await append(store, created("other"))
    chats = SessionFilter(source="chat")
    pages = [await store.sessions(chats, limit=2, before=None, offset=at) for at in (0, 2, 4, 6)]
    assert [[row.session_id for row in page.rows] for page in pages] == [
        ["s4", "s3"],
        ["s2", "s1"],
        ["s0"],
        [],
    ]
    assert {page.count for page in pages} == {5}
    behind = await store.sessions(chats, limit=2, before="s3", offset=1)
    assert ([row.session_id for row in behind.rows], behind.count) == (["s1", "s0"], 5)


async def test_an_updated_value_replaces_the_old_one_and_null_unsets_it(store: Store) -> None:
    await append(
        store,
        created(
            source="chat",
            source_metadata={"a": 1, "deep": {"b": 2}},
            sampling=Sampling(temperature=0.5, top_p=0.9),
            rules=SessionRules(deny=("bash",)),
        ),
    )
    await append(
        store,
        updated(
            source_metadata={"deep": {"c": None}, "big": 2**60},
            sampling=Sampling(max_tokens=5),
            rules=None,
        ),
    )
    row = await store.session("s1")
    assert row is not None
    assert (row.source, row.source_metadata) == ("chat", {"deep": {"c": None}, "big": 2**60})
    assert (row.sampling, row.rules) == (Sampling(max_tokens=5), None)


async def test_settings_of_one_session_do_not_become_defaults(store: Store) -> None:
    before = await store.defaults()
    await append(store, created("s1"))
    await append(
        store,
        updated(
            archived=True,
            source_metadata={},
            sampling=Sampling(top_p=1),
            rules=SessionRules(ask=("*",)),
        ),
    )
    assert await store.defaults() == before


async def test_a_deleted_session_is_in_no_list_and_in_no_count(store: Store) -> None:
    await append(store, created("s1", source="chat", workspace="/w"), created("s2"))
    await append(store, deleted("s1"))
    assert await ids(store, source="chat") == ([], 0)
    assert await ids(store) == (["s2"], 1)


MANY = 10_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 10,000 sessions, each with settings of more than a page."""
    path = tmp_path_factory.mktemp("many") / "log.db"

    async def fill() -> None:
        async with sqlite.open_store(path) as store:
            for start in range(0, MANY, 1000):
                await append(
                    store,
                    *(
                        created(
                            f"s{number}",
                            name=f"Session {number}",
                            workspace=f"/w/{number % 100}",
                            source="chat",
                            rules=SessionRules(deny=("write(" + "x" * 1000 + ")",) * 5),
                        )
                        for number in range(start, start + 1000)
                    ),
                )

    trio.run(fill)
    return path


LISTS = [
    EVERY_SESSION,
    SessionFilter(children=False, archived=False),
    SessionFilter(workspace="/w/7", unnamed_workspace="/w"),
    SessionFilter(text="SESSION 99"),
    SessionFilter(text="nowhere"),
    SessionFilter(parent_id="nobody"),
]


@pytest.mark.slow
@pytest.mark.parametrize("wanted", LISTS)
def test_a_list_and_its_count_use_one_index_without_sorting(
    many: Path, wanted: SessionFilter
) -> None:
    connection = open_for_reading(many)
    values = {
        **{name: getattr(wanted, name) for name in wanted.__struct_fields__},
        "text": None if wanted.text is None else fold_text(wanted.text),
        "bound": 2**63 - 1,
        "limit": 100,
        "offset": 0,
    }
    for query in (_queries._SESSIONS, _queries._SESSION_COUNT):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
        assert len(plan) == 1
        assert "INDEX sessions_listed" in plan[0]
    connection.close()


@pytest.mark.parametrize("query", [_queries._SESSIONS_OF_PARENT, _queries._SESSION_COUNT_OF_PARENT])
def test_a_list_of_one_parent_uses_indices_without_sorting(many: Path, query: str) -> None:
    connection = open_for_reading(many)
    values = msgspec.structs.asdict(SessionFilter(parent_id="s7"))
    values |= {"bound": 2**63 - 1, "limit": 100, "offset": 0}
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert not [step for step in plan if "SCAN" in step or "TEMP B-TREE" in step]
    searched = [step for step in plan if "SEARCH" in step]
    assert ["INDEX sessions_listed" in searched[0], "INDEX sessions_of_tasks" in searched[1]] == [
        True,
        True,
    ]
    connection.close()


@pytest.mark.parametrize("wanted", LISTS)
def test_a_list_reads_few_pages(many: Path, wanted: SessionFilter) -> None:
    """Of some 20,000 pages only those of the index and of the listed rows are read."""
    connection = open_for_reading(many)
    connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, True)
    _queries.sessions(connection, wanted, limit=50, before=None, offset=0)
    pages_read, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert pages_read < 500
    connection.close()
