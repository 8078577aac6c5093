from __future__ import annotations

import subprocess
import sys

import pytest

from nousd.errors import ConfigError, ProviderError
from nousd.providers.interface import Retrying
from nousd.providers.setup.registry import ProviderSettings, make_provider
from tests.providers.helpers import Collector, ask

KEY = "sk-very-secret"


@pytest.mark.parametrize(
    "api_base",
    [
        "http://localhost:8080/v1",
        "http://127.0.0.1:8080/v1",
        "http://127.1.2.3/v1/",
        "http://[::1]:8080/v1",
        "https://model.localhost",
    ],
)
def test_a_server_on_this_machine_needs_no_key(api_base: str) -> None:
    assert make_provider("openai", ProviderSettings(api_base=api_base)).name == "openai"


@pytest.mark.parametrize("api_key", [None, "", "  "])
@pytest.mark.parametrize(
    "api_base", [None, "https://api.openai.com/v1", "http://10.0.0.5:8000/v1", "http://gpu/v1"]
)
def test_any_other_server_needs_a_key(api_base: str | None, api_key: str | None) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        make_provider("openai", ProviderSettings(api_base=api_base, api_key=api_key))


def test_with_a_key_any_server_is_accepted() -> None:
    assert make_provider("openai", ProviderSettings(api_key=KEY)).default_model == "gpt-5-mini"
    elsewhere = make_provider(
        "openai", ProviderSettings(api_key=f"{KEY}\n", api_base="https://gpu/v1", model="m")
    )
    assert elsewhere.default_model == "m"


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"one of: .*mock, openai"):
        make_provider("gpt")


@pytest.mark.parametrize(
    "api_base",
    [
        "localhost:8080",
        "ftp://localhost/v1",
        "http://",
        "http://[::1/v1",
        "http://localhost:port/v1",
        "http://user:hunter2@localhost/v1",
        "http://localhost/v1?key=hunter2",
        "http://localhost/v1#hunter2",
    ],
)
def test_an_unusable_base_is_an_error_that_does_not_show_it(api_base: str) -> None:
    with pytest.raises(ConfigError, match=r"^api_base ") as caught:
        make_provider("openai", ProviderSettings(api_base=api_base, api_key=KEY))
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("api_key", ["sk\nx", "schlüssel", "sk\x7f"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(api_key: str) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds characters") as caught:
        make_provider("openai", ProviderSettings(api_key=api_key))
    assert api_key not in str(caught.value)


def test_settings_do_not_show_the_key() -> None:
    assert KEY not in repr(ProviderSettings(api_key=KEY))
    assert KEY not in repr(make_provider("openai", ProviderSettings(api_key=KEY)))


def test_the_context_window_is_the_known_one_unless_set() -> None:
    assert (
        make_provider("openai", ProviderSettings(api_key=KEY)).context_window("gpt-4o-mini")
        == 128_000
    )
    assert (
        make_provider("openai", ProviderSettings(api_key=KEY, context_window=9)).context_window(
            "gpt-4o"
        )
        == 9
    )
    assert make_provider("mock", ProviderSettings(context_window=9)).context_window("any") == 9


@pytest.mark.parametrize("attempts_max", [1, 2])
async def test_every_provider_retries(attempts_max: int, autojump_clock: object) -> None:
    provider = make_provider("mock", attempts_max=attempts_max, random=lambda: 0.0)
    received = Collector()
    with pytest.raises(ProviderError, match="mock error 503"):
        await provider.generate(ask("[[error 503]]"), received)
    assert len(received.pieces) == attempts_max - 1
    assert all(isinstance(piece, Retrying) for piece in received.pieces)


def test_the_built_in_model_needs_no_http_client() -> None:
    code = (
        "import sys; from nousd.providers.setup.registry import make_provider; make_provider('mock');"
        "sys.exit('httpx2' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
