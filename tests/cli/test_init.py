"""``nousd init``: what it asks for, what it tests, and the file that it writes."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import trio

from nousd.config.resolve import resolve
from nousd.config.settings import Settings
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.fake_daemon import FakeDaemon
from tests.harness.stub_model import StubModel, error_reply, models_reply, stub_model


class Init:
    """Runs ``nousd init`` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / "config/nousd/config.toml"

    async def answer(self, *answers: str, code: int = 0, environ: Mapping[str, str] = {}) -> str:
        """Return what it printed, given these answers, one a line."""
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
        with trio.fail_after(WAIT_SECONDS):
            done = await trio.run_process(
                [sys.executable, "-m", "nousd", "init"],
                stdin="".join(f"{answer}\n" for answer in answers).encode(),
                env={
                    **kept,
                    "HOME": str(self.home),
                    "XDG_CONFIG_HOME": str(self.home / "config"),
                    **environ,
                },
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode() + done.stderr.decode()

    @property
    def settings(self) -> Settings:
        assert stat.S_IMODE(self.file.stat().st_mode) == 0o600
        assert [path.name for path in self.file.parent.iterdir()] == ["config.toml"]
        return resolve({}, {}, self.file).settings


@pytest.fixture
def init(tmp_path: Path) -> Init:
    return Init(tmp_path)


@pytest.fixture
async def stub() -> AsyncIterator[StubModel]:
    async with stub_model() as model:
        yield model


@pytest.mark.slow
async def test_the_built_in_model_needs_no_key_and_commands_stay_off(init: Init) -> None:
    told = await init.answer("mock", "n", "ask")
    assert str(init.file) in told
    settings = init.settings
    assert (settings.provider, settings.allow_exec) == ("mock", False)
    assert settings.permission_mode == "ask"


@pytest.mark.slow
async def test_an_answer_that_is_neither_yes_nor_no_is_asked_for_again(init: Init) -> None:
    told = await init.answer("mock", "1", "Yes", "ask")
    assert told.count("write y for yes, or n for no") == 1
    assert init.settings.allow_exec


@pytest.mark.slow
async def test_a_daemon_that_runs_with_other_settings_is_to_be_restarted(
    init: Init, daemon: FakeDaemon
) -> None:
    told = await init.answer("mock", "n", "ask", environ={"NOUSD_SOCKET": str(daemon.socket_path)})
    assert "next: nousctl restart, because a daemon runs with other settings, then nousctl" in told
    init.file.unlink()
    nowhere = {"NOUSD_SOCKET": str(init.home / "nowhere")}
    assert "next: nousctl prompt" in await init.answer("mock", "n", "ask", environ=nowhere)


@pytest.mark.slow
async def test_a_key_that_is_missing_is_told_without_a_file_that_nobody_has_seen(
    init: Init,
) -> None:
    told = await init.answer("anthropic", "variable", "n", "mock", "n", "ask")
    assert "provider anthropic needs ANTHROPIC_API_KEY" in told
    assert ".toml" not in told.partition("written: ")[0]


@pytest.mark.slow
async def test_a_server_is_asked_once_for_its_models_with_the_key_and_one_is_chosen(
    init: Init, stub: StubModel
) -> None:
    stub.script(models_reply("small", "large"))
    told = await init.answer(
        "other", stub.api_base, "file", "sk-secret", "largee", "large", "y", ""
    )
    assert "the nearest is large" in told
    assert "sk-secret" not in told
    [request] = stub.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/models", "Bearer sk-secret")
    settings = init.settings
    provider = settings.providers[settings.provider]
    assert (provider.dialect, provider.api_base, provider.model) == (
        "openai",
        stub.api_base,
        "large",
    )
    assert provider.api_key is not None
    assert provider.api_key.reveal() == "sk-secret"
    assert settings.allow_exec


@pytest.mark.slow
async def test_a_key_that_a_program_prints_is_tried_and_not_written(
    init: Init, stub: StubModel
) -> None:
    stub.script(models_reply("m"))
    answers = ("other", stub.api_base, "command", "printenv PRINTED", "", "n", "")
    await init.answer(*answers, environ={"PRINTED": "sk-printed"})
    assert stub.requests[0].headers["authorization"] == "Bearer sk-printed"
    assert "sk-printed" not in init.file.read_text()
    assert init.settings.providers["local"].api_key_command[1:] == ("PRINTED",)


@pytest.mark.slow
async def test_a_refused_key_is_told_and_the_questions_begin_anew(
    init: Init, stub: StubModel
) -> None:
    stub.script(error_reply(401, "bad key"))
    told = await init.answer("other", stub.api_base, "file", "wrong", "n", "mock", "n", "")
    assert "that did not work" in told
    assert "bad key" in told
    assert init.settings.provider == "mock"


@pytest.mark.slow
async def test_a_variable_that_is_set_is_named_and_used(init: Init, stub: StubModel) -> None:
    stub.script(models_reply("m"))
    environ = {"NOUSD_LOCAL_API_KEY": "sk-variable", "ANTHROPIC_API_KEY": "k"}
    told = await init.answer("other", stub.api_base, "variable", "", "n", "", environ=environ)
    assert "ANTHROPIC_API_KEY is set" in told
    assert stub.requests[0].headers["authorization"] == "Bearer sk-variable"
    assert "sk-variable" not in init.file.read_text()


async def test_toolchains_below_the_home_can_be_shown_to_commands(init: Init) -> None:
    for name in (".cargo/bin", ".rustup/toolchains"):
        (init.home / name).mkdir(parents=True)
    (init.home / ".cargo/bin/cargo").write_text("#!/bin/sh\n")
    (init.home / ".cargo/bin/cargo").chmod(0o755)
    told = await init.answer("mock", "y", "y", "auto")
    assert "rust" in told
    assert '"~/.cargo/bin"' in init.file.read_text()


async def test_an_existing_settings_file_is_not_touched(init: Init) -> None:
    init.file.parent.mkdir(parents=True)
    init.file.write_text("verbose = true\n")
    told = await init.answer("mock", code=2)
    assert "exists already" in told
    assert init.file.read_text() == "verbose = true\n"


@pytest.mark.slow
async def test_an_end_of_the_answers_writes_nothing(init: Init) -> None:
    await init.answer("mock", "y", code=1)
    assert not init.file.exists()
