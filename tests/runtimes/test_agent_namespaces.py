"""Agent programs of a real daemon in several namespaces: their files, their ends, and their secrets."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.admin.bundle.bundle import write_bundle
from nousd.admin.doctor import paths as examine_places
from tests.admin.test_bundle import unpack, wanted_of
from tests.daemon.process_harness import Place, Process, running
from tests.harness.daemon import Client, Event, Events
from tests.runtimes.bench import WAIT_SECONDS, said
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program
from tests.runtimes.test_agent_processes import resumed

RUNTIME = "it"
OTHERS = ("user:ann", "user:Ann")

KEEPS = {
    "claude": ".claude/.credentials.json",
    "codex": ".codex/auth.json",
    "acp": ".acp/key",
}
"""Where a program of each kind keeps a log-in, in its HOME."""

OWN_KEY = {"claude": "ANTHROPIC_API_KEY", "codex": "OPENAI_API_KEY", "acp": ""}
"""The variable with a key that a program of each kind receives for ``default``."""

PLANTED = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-planted-anthropic-0123456789abcdef",
    "OPENAI_API_KEY": "sk-proj-planted-openai-0123456789abcdef0123",
    "GEMINI_API_KEY": "planted-gemini-0123456789abcdef",
    "NOUSD_API_KEY": "planted-of-the-daemon-0123456789abcdef",
    "SOMETHING_ELSE": "planted-else-0123456789abcdef",
}
"""Secrets in the daemon's environment."""

WORDS = {
    "claude": scripted_program("fake_claude"),
    "codex": scripted_program("fake_codex"),
    "acp": [*scripted_program("fake_acp"), "~/.acp", "{}"],
}


class NamespacePlace(Place):
    """The folder of a daemon that has one runtime, of a scripted program."""

    kind = ""

    def configure(self, kind: str, **more: Any) -> None:
        """Choose the kind of the program, and further settings of the runtime."""
        self.kind = kind
        settings = {"kind": kind, "command": WORDS[kind], "env": ["PYTHONPATH"], **more}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (self.folder / "nousd").mkdir(exist_ok=True)
        text = "\n".join([f"[runtimes.{RUNTIME}]", *lines])
        (self.folder / "nousd" / "config.toml").write_text(text)

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**ENVIRONMENT, **PLANTED, **more)

    @property
    def ephemeral(self) -> list[Path]:
        """The HOMEs that are kept for one life."""
        folder = self.state / "runtimes" / "ephemeral"
        return list(folder.iterdir()) if folder.is_dir() else []

    def environments(self) -> list[dict[str, str]]:
        """Return the environments of the program's processes that live, and their command lines as the
        variable ``""``.
        """
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes()
                    pairs = (folder / "environ").read_bytes().decode().split("\0")
                except OSError:
                    continue
                variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                is_ours = variables.get("HOME", "").startswith(str(self.folder))
                if f"fake_{self.kind}".encode() in words and is_ours:
                    found.append({**variables, "": words.decode()})
        return found


class Talk:
    """A started daemon, a client of it, and a subscriber."""

    def __init__(self, process: Process, client: Client, events: Events) -> None:
        self.process, self.client, self.events = process, client, events

    async def session(self, namespace: str) -> str:
        created = await self.client.request(
            "new_session", runtime=RUNTIME, runtime_namespace=namespace
        )
        session_id: str = created["session_id"]
        return session_id

    async def run(self, session_id: str, *acts: Any) -> list[Event]:
        with trio.fail_after(WAIT_SECONDS):
            accepted = await self.client.request(
                "prompt", session_id=session_id, text=json.dumps(acts), wait=False
            )
            return await self.events.run(accepted["run_id"])

    async def home(self, namespace: str) -> Path:
        status = await self.client.request("get_auth_status", runtime=RUNTIME, namespace=namespace)
        return Path(status["auth"]["home"])


@pytest.fixture
def place() -> Iterator[NamespacePlace]:
    # Unix sockets need short paths.
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield NamespacePlace(folder)
    shutil.rmtree(folder)


@asynccontextmanager
async def talking(place: NamespacePlace) -> AsyncIterator[Talk]:
    async with running(place) as process:
        yield Talk(process, await place.connect(), await place.watch(types="all"))


async def until_gone(place: NamespacePlace, *, but: int = 0) -> None:
    with trio.fail_after(WAIT_SECONDS):
        while len(place.ephemeral) > but:
            await trio.lowlevel.checkpoint()


def files_in(home: Path) -> dict[int, Path]:
    """Return what is in a folder, by inode."""
    return {path.lstat().st_ino: path for path in home.rglob("*")}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KEEPS)
async def test_namespaces_share_neither_programs_nor_files(
    place: NamespacePlace, kind: str
) -> None:
    place.configure(kind)
    async with talking(place) as talk:
        for namespace in ("default", *OTHERS):
            run = await talk.run(await talk.session(namespace), {"say": namespace})
            assert said(run) == [namespace]
        homes = [await talk.home(namespace) for namespace in OTHERS]
        used = {variables["HOME"] for variables in place.environments()}
        assert used == {str(place.folder), *map(str, homes)}
        one, other = map(files_in, homes)
        assert one.keys().isdisjoint(other)
        for files in (one, other):
            modes = {stat.S_IMODE(path.lstat().st_mode) for path in files.values()}
            assert modes == {0o600, 0o700}
            assert any(KEEPS[kind].split("/")[0] in path.parts for path in files.values())


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KEEPS)
async def test_a_namespaces_program_goes_on_with_its_own_session_and_an_ephemeral_one_is_told(
    place: NamespacePlace, kind: str
) -> None:
    for isolation, resume in (("namespaced", "native"), ("ephemeral", "reconstruct")):
        place.configure(kind, isolation=isolation)
        async with talking(place) as talk:
            session_id = await talk.session("user:ann")
            await talk.run(session_id, {"say": "one"})
            await talk.process.kill()
        async with talking(place) as talk:
            run = await talk.run(session_id, {"say": "two"})
        assert (resumed(run), said(run)) == ([resume], ["two"])


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KEEPS)
async def test_an_ephemeral_home_is_gone_after_the_life_and_after_a_kill(
    place: NamespacePlace, kind: str
) -> None:
    place.configure(kind, isolation="ephemeral")
    async with talking(place) as talk:
        for namespace in ("default", "user:ann"):
            await talk.run(await talk.session(namespace), {"say": "a"})
        assert len(place.ephemeral) == 2
        session_id = await talk.session("user:ann")
        await talk.run(session_id, {"say": "a"})
        assert len(place.ephemeral) == 3
        await talk.client.request("delete_session", session_id=session_id)
        await until_gone(place, but=2)
        await talk.process.kill()
    assert len(place.ephemeral) == 2
    async with talking(place):
        await until_gone(place)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
async def test_a_program_sees_no_log_in_of_another_namespace(place: NamespacePlace) -> None:
    place.configure("claude")
    async with talking(place) as talk:
        homes = [await talk.home(namespace) for namespace in OTHERS]
        for namespace, home in zip(("default", *OTHERS), (place.folder, *homes), strict=True):
            plant(home, "claude", namespace)
        looks = [place.folder / KEEPS["claude"], *(home / KEEPS["claude"] for home in homes)]
        acts = [{"look": str(path)} for path in looks]
        seen = [
            [text.startswith("file") for text in said(await talk.run(session_id, *acts))]
            for session_id in [await talk.session(each) for each in ("default", *OTHERS)]
        ]
    assert seen == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["claude", "codex"])
async def test_a_program_on_a_server_is_given_neither_keys_nor_folders_of_the_user(
    place: NamespacePlace, kind: str
) -> None:
    server = place.folder / "server"
    server.mkdir()
    # What is started here reaches the server, where the program has an environment of its own.
    reach = [
        "env",
        "-i",
        f"HOME={server}",
        *(f"{key}={value}" for key, value in ENVIRONMENT.items()),
    ]
    there = place.folder / "given"
    script = place.folder / "reach"
    script.write_text(f'#!/bin/sh\nenv > {there}\nexec {shlex.join([*reach, *WORDS[kind]])} "$@"\n')
    script.chmod(0o700)
    place.configure(kind, mode="server_side", command=[str(script)])
    async with talking(place) as talk:
        status = await talk.client.request("get_auth_status", runtime=RUNTIME)
        assert status["auth"]["instructions"] == "the server that runs the program keeps the log-in"
        session_id = await talk.session("user:ann")
        run = await talk.run(
            session_id,
            {"call": ["workspace.write", {"path": "made", "content": "x"}]},
            {"say": "a"},
        )
    assert said(run) == ["a"]
    assert (place.work / "made").exists()
    given = there.read_text()
    assert "runtimes/namespaces/user-ann/it" in given
    assert [name for name, value in PLANTED.items() if value in given] == []


def secret_of(namespace: str) -> str:
    return f"planted-in-{namespace.replace(':', '-')}-0123456789abcdef"


def plant(home: Path, kind: str, namespace: str) -> None:
    """Log in to a program, as its vendor's would be."""
    file = home / KEEPS[kind]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"token": secret_of(namespace)}))


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KEEPS)
async def test_planted_secrets_come_out_nowhere(
    place: NamespacePlace, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.configure(kind)
    namespaces = ("default", *OTHERS)
    answers: list[Any] = []
    async with talking(place) as talk:
        for namespace in namespaces:
            status = await talk.client.request(
                "get_auth_status", runtime=RUNTIME, namespace=namespace
            )
            plant(Path(status["auth"].get("home", place.folder)), kind, namespace)
            session_id = await talk.session(namespace)
            answers.append(await talk.run(session_id, {"say": "a"}, {"die": 3}))
            answers.append(await talk.run(session_id, {"say": "b"}))
            for command, more in (
                ("get_auth_status", {"runtime": RUNTIME, "namespace": namespace}),
                ("get_session", {"session_id": session_id, "messages": 100}),
                ("get_state", {"session_id": session_id}),
            ):
                answers.append(await talk.client.request(command, **more))
        asked = ("get_runtimes", "get_capabilities", "list_sessions")
        answers += [await talk.client.request(command) for command in asked]
        environments = place.environments()
        assert len({variables["HOME"] for variables in environments}) == len(namespaces)
        await talk.process.stop()
    secrets = [*PLANTED.values(), *map(secret_of, namespaces)]
    for variables in environments:
        is_own = variables["HOME"] == str(place.folder)
        own = {PLANTED[OWN_KEY[kind]]} if is_own and OWN_KEY[kind] else set()
        told = {secret for secret in secrets for value in variables.values() if secret in value}
        assert told == own
        assert not any(secret in variables[""] for secret in secrets)
    monkeypatch.setattr(
        "nousd.admin.doctor.doctor.EXAMINATIONS", {"both": (examine_places.state_folder,)}
    )
    output = io.BytesIO()
    write_bundle(wanted_of(place.state, tmp_path, environ=place.environment()), output, "out")
    said_by_us = {
        "answers": json.dumps(answers).encode(),
        "log": (place.folder / "daemon.log").read_bytes(),
        **{path.name: path.read_bytes() for path in place.state.iterdir() if path.is_file()},
        **unpack(output.getvalue()),
    }
    found = [
        (name, secret)
        for name, content in said_by_us.items()
        for secret in secrets
        if secret.encode() in content
    ]
    assert found == []
