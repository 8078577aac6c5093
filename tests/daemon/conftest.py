from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from nousd.providers.interface import Provider
from nousd.providers.setup.registry import ProviderSettings, make_provider
from tests.daemon.workspaces_bench import Folders, folders_in
from tests.harness.daemon import Client, Daemon, Events, socket_daemon
from tests.harness.stub_model import StubModel, stub_model


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A private folder with a path short enough for Unix sockets, which ``tmp_path`` may not be."""
    folder = Path(tempfile.mkdtemp(prefix="nousd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A workdir, two folders that sessions may work in, and one outside of them."""
    return folders_in(tmp_path)


@pytest.fixture
def socket_path(short_folder: Path) -> Path:
    return short_folder / "nous.sock"


@pytest.fixture
async def stub() -> AsyncIterator[StubModel]:
    """A model server that the test scripts."""
    async with stub_model() as stub:
        yield stub


@pytest.fixture
async def provider(stub: StubModel) -> AsyncIterator[Provider]:
    """The provider that talks to ``stub``; it waits as long as servers ask for, and no longer."""
    provider = make_provider("openai", ProviderSettings(api_base=stub.api_base, model="stub-model"))
    yield provider
    await provider.aclose()


@pytest.fixture
async def daemon(short_folder: Path, provider: Provider) -> AsyncIterator[Daemon]:
    """A daemon on real sockets and SQLite whose model is ``stub``; for five minutes at most."""
    async with socket_daemon(short_folder, provider=provider) as daemon, trio.open_nursery() as n:
        n.start_soon(_watchdog)
        yield daemon
        n.cancel_scope.cancel()


async def _watchdog() -> None:
    await trio.sleep(300)
    raise AssertionError("the test took longer than five minutes")


@pytest.fixture
async def client(daemon: Daemon) -> Client:
    """A connection to the command socket."""
    return await daemon.connect()


@pytest.fixture
async def events(daemon: Daemon) -> Events:
    """A subscriber of the frozen event types, from the start on."""
    return await daemon.watch()
