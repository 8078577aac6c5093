"""Check sessions against a plain model of their list. They are created, changed, branched, moved and
deleted in any order, with restarts in between; after each step every list and every session must match
the model.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nousd.providers.mock.provider import MockProvider
from nousd.store.interface import Store
from nousd.store.session_list import fold_text
from nousd.store.sqlite import store as sqlite
from tests.harness.daemon import Client, Daemon, FakeClock, Payload, memory_daemon
from tests.suites import examples

Step = tuple[str, Payload]

SETTINGS: Final = ("name", "archived", "source", "source_metadata", "sampling", "rules")
AUDIT: Final = ("origin_workspace", "attached_from", "attach_reason")

positions = st.integers(0, 5)
names = st.sampled_from(["Straße", "STRASSE 2", "café", "100%", "plain"])
sources = st.sampled_from(["chat", "cron"])
folders = st.sampled_from([".", "one", "two/deeper"])
metadata = st.sampled_from([{}, {"a": {"b": 1}}, {"a": {"c": None}}, {"é": [1, 2.5]}])
samplings = st.sampled_from([{}, {"temperature": 0.5}, {"top_p": 1.0, "max_tokens": 5}])
rules = st.sampled_from([{}, {"deny": ["bash"]}, {"allow": ["read"], "ask": ["write(a)"]}])


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Payload]:
    return st.fixed_dictionaries({}, optional=values)


steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(
        st.just("new"),
        some(
            name=names,
            source=sources,
            source_metadata=metadata,
            sampling=samplings,
            rules=rules,
            workspace=folders,
            activate=st.booleans(),
        ),
    ),
    st.tuples(
        st.just("update"),
        st.builds(
            lambda position, values: {"position": position, **values},
            positions,
            some(
                name=names,
                archived=st.booleans(),
                source_metadata=st.none() | metadata,
                sampling=st.none() | samplings,
                rules=st.none() | rules,
            ),
        ),
    ),
    st.tuples(st.just("rename"), st.fixed_dictionaries({"position": positions, "name": names})),
    st.tuples(st.just("switch"), st.fixed_dictionaries({"position": positions})),
    st.tuples(
        st.just("branch"),
        st.fixed_dictionaries({"position": positions, "activate": st.booleans()}),
    ),
    st.tuples(
        st.just("attach"), st.fixed_dictionaries({"position": positions, "workspace": folders})
    ),
    st.tuples(st.just("delete"), st.fixed_dictionaries({"position": positions})),
    st.tuples(st.just("restart"), st.just({})),
)
lists = some(
    q=st.sampled_from(["strasse", "CAFE", "%", "deeper", "nowhere"]),
    archived=st.booleans(),
    source=sources,
    workspace=folders,
    offset=st.integers(0, 3),
    limit=st.integers(1, 3),
)


class Model:
    """The expected list of sessions; the most recently used one is last."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.sessions: list[Payload] = []
        self.active: str | None = None

    def folder(self, name: str) -> str:
        return str((self.workdir / name).resolve())

    def at(self, position: int) -> Payload | None:
        return self.sessions[position % len(self.sessions)] if self.sessions else None

    def mark_used(self, session: Payload) -> None:
        self.sessions = [each for each in self.sessions if each is not session] + [session]

    def select(self, wanted: Payload) -> list[Payload]:
        return [session for session in reversed(self.sessions) if self._fits(session, wanted)]

    def _fits(self, session: Payload, wanted: Payload) -> bool:
        if "q" in wanted:
            texts = (session.get("name") or "", session["workspace"])
            if not any(fold_text(wanted["q"]) in fold_text(text) for text in texts):
                return False
        if "workspace" in wanted and self.folder(wanted["workspace"]) != session["workspace"]:
            return False
        return all(
            session.get(key) == wanted[key] for key in ("archived", "source") if key in wanted
        )


class Game:
    """A model and the daemon that must match it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.client: Client

    async def new(self, **fields: Any) -> None:
        model = self.model
        folder = model.folder(fields.pop("workspace", "."))
        answer = await self.client.request("new_session", workspace=folder, **fields)
        is_active = fields.pop("activate", True)
        session = {"archived": False, "workspace": folder, **_expected_fields(fields)}
        self._add(session, answer, is_active=is_active)

    async def branch(self, position: int, *, activate: bool) -> None:
        parent = self.model.at(position)
        if parent is None:
            return
        answer = await self.client.request(
            "branch_session", session_id=parent["session_id"], activate=activate
        )
        inherited = ("source", "source_metadata", "sampling", "rules", "workspace")
        session = {key: parent[key] for key in inherited if key in parent}
        session |= {"archived": False, "parent_id": parent["session_id"]}
        self._add(session, answer, is_active=activate)

    def _add(self, session: Payload, answer: Payload, *, is_active: bool) -> None:
        session["session_id"] = answer["session_id"]
        self.model.sessions.append(session)
        if is_active:
            self.model.active = session["session_id"]

    async def update(self, position: int, **values: Any) -> None:
        session = self.model.at(position)
        if session is None:
            return
        await self.client.request("update_session", session_id=session["session_id"], **values)
        before = dict(session)
        for key, value in values.items():
            session[key] = value
            if _expected_fields({key: value}) == {}:
                session.pop(key)
        if session != before:
            self.model.mark_used(session)

    async def rename(self, position: int, name: str) -> None:
        session = self.model.at(position)
        if session is None:
            return
        await self.client.request("rename_session", session_id=session["session_id"], name=name)
        if session.get("name") != name:
            session["name"] = name
            self.model.mark_used(session)

    async def switch(self, position: int) -> None:
        session = self.model.at(position)
        if session is None:
            return
        await self.client.request("switch_session", session_id=session["session_id"])
        self.model.active = session["session_id"]
        self.model.mark_used(session)

    async def attach(self, position: int, workspace: str) -> None:
        session = self.model.at(position)
        if session is None:
            return
        folder = self.model.folder(workspace)
        await self.client.request(
            "attach_session",
            session_id=session["session_id"],
            workspace=folder,
            reason="a test",
        )
        before = session["workspace"]
        session.setdefault("origin_workspace", before)
        session |= {"workspace": folder, "attached_from": before, "attach_reason": "a test"}
        # The allow rules were meant for another workspace.
        if "rules" in session:
            left = {key: texts for key, texts in session["rules"].items() if key != "allow"}
            session["rules"] = left
        self.model.mark_used(session)

    async def delete(self, position: int) -> None:
        session = self.model.at(position)
        if session is None:
            return
        await self.client.request("delete_session", session_id=session["session_id"])
        self.model.sessions.remove(session)
        if self.model.active == session["session_id"]:
            self.model.active = None

    async def check(self, wanted: Payload) -> None:
        """Check a list, and each of its sessions alone."""
        payload = dict(wanted)
        if "workspace" in payload:
            payload["workspace"] = self.model.folder(payload["workspace"])
        answer = await self.client.request("list_sessions", **payload)
        right = self.model.select(wanted)
        start = wanted.get("offset", 0)
        shown = right[start : start + wanted.get("limit", 100)]
        assert [row["session_id"] for row in answer["sessions"]] == [
            session["session_id"] for session in shown
        ]
        assert answer["count"] == len(right)
        assert answer["has_more"] == (start + len(shown) < len(right) and bool(shown))
        for row, session in zip(answer["sessions"], shown, strict=True):
            alone = await self.client.request("get_session", session_id=row["session_id"])
            self._compare(row, alone["session"], session)

    def _compare(self, row: Payload, alone: Payload, session: Payload) -> None:
        assert {key: alone[key] for key in row} == row
        assert row["active"] == (row["session_id"] == self.model.active)
        for key in (*SETTINGS, *AUDIT, "workspace", "parent_id"):
            assert alone.get(key) == session.get(key), key
        assert "rules" not in row
        assert "sampling" not in row


def _expected_fields(fields: Payload) -> Payload:
    """Return the expected fields, without empty rules and samplings."""
    return {
        key: msgspec.to_builtins(value)
        for key, value in fields.items()
        if value is not None and not (key in ("sampling", "rules") and not value)
    }


@asynccontextmanager
async def running(store: Store, clock: FakeClock, workdir: Path) -> AsyncIterator[Daemon]:
    async with memory_daemon(
        workdir=workdir, provider=MockProvider(), store=store, clock=clock
    ) as daemon:
        yield daemon


async def play(folder: Path, given_steps: list[tuple[Step, Payload]]) -> None:
    workdir = folder / "work"
    (workdir / "one").mkdir(parents=True)
    (workdir / "two" / "deeper").mkdir(parents=True)
    game, left, clock = Game(Model(workdir)), list(given_steps), FakeClock()
    async with sqlite.open_store(folder / "log.db") as store:
        while left:
            async with running(store, clock, workdir) as daemon:
                game.client = await daemon.connect()
                await game.check({})
                while left:
                    (name, payload), wanted = left.pop(0)
                    if name == "restart":
                        break
                    await getattr(game, name)(**payload)
                    await game.check(wanted)
                    await game.check({})


@given(given_steps=st.lists(st.tuples(steps, lists), min_size=1, max_size=12))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_list_matches_the_model_after_each_step(
    given_steps: list[tuple[Step, Payload]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(play, Path(folder), given_steps)
