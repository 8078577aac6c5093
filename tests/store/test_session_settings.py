"""Every declared session setting: in events, the fold, the rows of every store, and lists.

The values are derived from the declared types, so that a new setting is tested automatically.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from nousd.machine.session.settings import (
    SHARED,
    DefaultSettings,
    InheritedSettings,
    SessionSettings,
    settings_among,
)
from nousd.machine.session.state import SessionState, apply
from nousd.store.interface import Store
from nousd.store.rows import SessionRow
from nousd.store.session_list import EXACT_FILTERS, SessionFilter
from nousd.wire import commands, events
from nousd.wire.responses.sessions import SessionRecord
from tests.store.helpers import NO_BOUND, TS, append, created, updated

SETTINGS = SessionSettings.__struct_fields__
UNSETTABLE = [
    field.name
    for field in msgspec.structs.fields(events.SessionUpdated)
    if field.name in SETTINGS and type(None) in getattr(field.type, "__args__", ())
]


def example(of: inspect.Type) -> Any:
    """Return a value of the type that is not the default of any setting."""
    match of:
        case inspect.UnionType(types=types):
            return example(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType(values=values):
            return next(value for value in values if value != "one-at-a-time")
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 60
        case inspect.VarTupleType(item_type=item):
            return (example(item),)
        case inspect.DictType():
            return {"key": {"inner": None}}
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: example(field.type) for field in fields if field.required})
    assert isinstance(of, inspect.StrType), of
    return "word"


def examples(struct: type[msgspec.Struct]) -> dict[str, Any]:
    info = inspect.type_info(SessionSettings)
    assert isinstance(info, inspect.StructType)
    types = {field.name: field.type for field in info.fields}
    return {name: example(types[name]) for name in settings_among(struct)}


EVERYTHING_SET: tuple[events.Event, ...] = (
    created("s1", **examples(events.SessionCreated)),
    updated("s1", **examples(events.SessionUpdated)),
    events.TodoUpdated(session_id="s1", **examples(events.TodoUpdated)),
    events.SessionAttached(
        session_id="s1", workspace="/b", attached_from="/a", origin_workspace="/o", reason="why"
    ),
    events.WorkspaceOverrideGranted(session_id="s1", ttl_seconds=60, expires_at="soon"),
    events.AgentSession(session_id="s1", runtime="r", agent_session_id="own", leaf_id="leaf"),
)


SCHEDULED = events.SessionDeletionScheduled(session_id="s1", delete_at="then")
"""Afterwards lists leave the session out."""


def folded(happened: tuple[events.Event, ...]) -> SessionState:
    return reduce(
        lambda state, event: apply(state, event, TS), happened, SessionState(session_id="s1")
    )


def settings_of(holder: SessionSettings) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in SETTINGS}


async def test_events_set_every_setting_alike_in_the_fold_and_in_rows(store: Store) -> None:
    await append(store, *EVERYTHING_SET, SCHEDULED)
    row = await store.session("s1")
    assert isinstance(row, SessionRow)
    state = folded((*EVERYTHING_SET, SCHEDULED))
    assert settings_of(row) == settings_of(state)
    never_set = SessionSettings()
    assert [name for name in SETTINGS if getattr(row, name) == getattr(never_set, name)] == []


@pytest.mark.parametrize("name", UNSETTABLE)
async def test_null_resets_a_setting_to_its_default(name: str, store: Store) -> None:
    happened = (*EVERYTHING_SET, updated("s1", **{name: None}))
    await append(store, *happened)
    row = await store.session("s1")
    assert row is not None
    default = getattr(SessionSettings(), name)
    assert (getattr(row, name), getattr(folded(happened), name)) == (default, default)


@pytest.mark.parametrize("name", EXACT_FILTERS)
async def test_sessions_can_be_listed_by_each_exact_filter(name: str, store: Store) -> None:
    await append(store, *EVERYTHING_SET, created("s2"))
    value = examples(SessionFilter)[name]
    page = await store.sessions(
        SessionFilter(**{name: value}), limit=NO_BOUND, before=None, offset=0
    )
    assert [row.session_id for row in page.rows] == ["s1"]


async def test_every_store_keeps_the_settings_that_new_sessions_inherit(store: Store) -> None:
    await append(store, *EVERYTHING_SET)
    defaults = await store.defaults()
    lasting = set(settings_among(DefaultSettings)) - {"granted", *SHARED}
    assert {name: getattr(defaults, name) for name in lasting} == {
        name: value for name, value in examples(events.SessionUpdated).items() if name in lasting
    }


def test_events_can_set_every_setting() -> None:
    """A setting without an event field could never be set."""
    in_events = {
        *settings_among(events.SessionCreated),
        *settings_among(events.SessionUpdated),
        *settings_among(events.SessionDeletionScheduled),
        *(name for name in SETTINGS if name.startswith(("attach", "origin_", "override_"))),
        "agent_session",
    }
    assert in_events == set(SETTINGS)


def test_session_created_has_every_inherited_setting() -> None:
    assert set(InheritedSettings.__struct_fields__) <= set(settings_among(events.SessionCreated))


def test_every_updatable_setting_is_in_the_event_and_in_the_session_record() -> None:
    given = set(settings_among(commands.UpdateSession))
    assert given <= set(settings_among(events.SessionUpdated))
    assert given <= set(settings_among(SessionRecord))
    assert set(EXACT_FILTERS) <= set(settings_among(commands.ListSessions))
