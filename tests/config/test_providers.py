"""Resolution of provider, model and base URL from three sources and a model's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nousd.config.models_file import AUTO
from nousd.config.report import report
from nousd.config.resolve import ResolvedSettings, resolve, with_provider
from nousd.errors import ConfigError
from tests.config.conftest import write

KEYS = {"ANTHROPIC_API_KEY": "sk-anthropic", "OPENAI_API_KEY": "sk-openai"}
LOCAL = "http://127.0.0.1:8080/v1"
WORK = """
[providers.work]
dialect = "openai"
api_base = "http://work/v1"
model = "large"
[aliases]
fast = "anthropic/small"
"""


def resolve_with_keys(
    flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None, **more: bool
) -> ResolvedSettings:
    return resolve(flags, {**KEYS, **environ}, file, **more)


def default_provider(settings: ResolvedSettings) -> tuple[str, str | None, str | None]:
    """Return provider, model and base of the default."""
    if settings.settings.provider == AUTO:
        return AUTO, settings.settings.model, settings.settings.api_base
    chosen = settings.settings.providers[settings.settings.provider]
    assert settings.settings.model in (None, chosen.model)
    assert settings.settings.api_base in (None, chosen.api_base)
    return chosen.name, chosen.model, chosen.api_base


# --- a model's name chooses its provider ---------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({}, {}, ("auto", None, None)),
        ({"model": "m"}, {}, ("auto", "m", None)),
        ({"model": "anthropic/claude"}, {}, ("anthropic", "claude", None)),
        ({"model": "gemini/flash"}, {"GEMINI_API_KEY": "k-gemini"}, ("gemini", "flash", None)),
        ({"model": "meta/llama"}, {}, ("auto", "meta/llama", None)),
        ({"model": "openai/meta/llama"}, {}, ("openai", "meta/llama", None)),
        ({"provider": "openai", "model": "meta/llama"}, {}, ("openai", "meta/llama", None)),
        ({"provider": "openai", "model": "openai/gpt"}, {}, ("openai", "gpt", None)),
        ({"provider": "openai", "model": "openai/openai/x"}, {}, ("openai", "openai/x", None)),
        ({"provider": "auto", "model": "openai/gpt"}, {}, ("openai", "gpt", None)),
        ({"model": "openai-responses/gpt"}, {}, ("openai-responses", "gpt", None)),
        ({"model": "openai/gpt"}, {"NOUSD_PROVIDER": "anthropic"}, ("openai", "gpt", None)),
        ({"provider": "openai", "api_base": LOCAL}, {}, ("openai", None, LOCAL)),
        ({"model": "openai/gpt", "api_base": LOCAL}, {}, ("openai", "gpt", LOCAL)),
    ],
)
def test_a_models_name_can_choose_its_provider(
    flags: dict[str, str], environ: dict[str, str], expected: tuple[str, str | None, str | None]
) -> None:
    assert default_provider(resolve_with_keys(flags, environ)) == expected


def test_an_alias_chooses_its_provider_and_model(home: Path) -> None:
    file = write(home / "c.toml", WORK)
    chosen = resolve_with_keys({"model": "fast"}, {}, file)
    assert default_provider(chosen) == ("anthropic", "small", None)
    assert chosen.origins["provider"] == chosen.origins["model"] == "flag --model"


def test_a_vendors_model_is_requested_from_a_gateway_if_the_vendor_is_not_configured() -> None:
    flags = {"provider": "openai", "api_base": LOCAL, "model": "gemini/flash"}
    assert default_provider(resolve_with_keys(flags, {})) == ("openai", "gemini/flash", LOCAL)


def test_a_model_of_another_provider_than_the_chosen_one_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_with_keys({"provider": "openai", "model": "anthropic/claude"}, {})
    assert str(caught.value) == (
        "model claude is one of the provider anthropic, not of openai; a model of openai that is "
        "called so is openai/anthropic/claude (flag --model)"
    )


# --- settings of another provider with lower precedence ------------------------------------------


def test_a_base_and_a_model_stay_with_the_provider_they_were_set_for(home: Path) -> None:
    toml = f'provider = "openai"\napi_base = "{LOCAL}"\nmodel = "llama"'
    file = write(home / "c.toml", toml)
    assert default_provider(resolve_with_keys({}, {}, file)) == ("openai", "llama", LOCAL)
    for flags in ({"provider": "anthropic"}, {"model": "anthropic/claude"}):
        other = resolve_with_keys(flags, {}, file)
        name, _, base = default_provider(other)
        assert (name, base) == ("anthropic", None)
        assert other.settings.providers["openai"].api_base is None
    assert default_provider(resolve_with_keys({"provider": "openai"}, {}, file)) == (
        "openai",
        "llama",
        LOCAL,
    )
    assert default_provider(resolve_with_keys({"model": "m"}, {}, file)) == ("openai", "m", LOCAL)


def test_a_base_without_a_provider_belongs_to_the_chosen_provider() -> None:
    environ = {"NOUSD_API_BASE": LOCAL, "NOUSD_MODEL": "m"}
    assert default_provider(resolve_with_keys({"provider": "openai"}, environ)) == (
        "openai",
        "m",
        LOCAL,
    )


def test_flags_override_the_providers_table(home: Path) -> None:
    file = write(home / "c.toml", WORK)
    assert default_provider(resolve_with_keys({"model": "work/small"}, {}, file)) == (
        "work",
        "small",
        "http://work/v1",
    )
    flags = {"provider": "work", "api_base": LOCAL}
    decided = resolve_with_keys(flags, {}, file).settings.providers["work"]
    assert (decided.model, decided.api_base) == ("large", LOCAL)


# --- available providers -------------------------------------------------------------------------


def test_providers_come_from_the_file_and_from_keys_with_the_chosen_one_first(
    home: Path,
) -> None:
    file = write(home / "c.toml", WORK)
    names = ["anthropic", "openai"]
    assert list(resolve_with_keys({}, {}, file).settings.providers) == ["work", *names]
    assert list(resolve_with_keys({"provider": "openai"}, {}, file).settings.providers) == [
        "openai",
        "work",
        "anthropic",
    ]
    assert list(resolve({}, {}).settings.providers) == []
    assert list(resolve({"provider": "mock"}, {}).settings.providers) == ["mock"]


def test_a_key_that_may_belong_to_a_gateway_is_sent_nowhere_else() -> None:
    """One key serves both dialects of OpenAI, but a gateway's key must not be sent to the vendor."""
    environ = {"OPENAI_API_KEY": "sk-for-the-gateway"}
    providers = resolve({"provider": "openai", "api_base": LOCAL}, environ).settings.providers
    assert [(name, each.api_base) for name, each in providers.items()] == [("openai", LOCAL)]


def test_an_unknown_provider_is_refused_with_the_known_ones(home: Path) -> None:
    file = write(home / "c.toml", WORK)
    with pytest.raises(ConfigError) as caught:
        resolve_with_keys({"provider": "wrok"}, {}, file)
    assert str(caught.value) == (
        "provider must be anthropic or auto or gemini or mock or openai or openai-responses or work, "
        "not 'wrok'; the nearest is work (flag --provider)"
    )


@pytest.mark.parametrize(
    ("name", "environ", "key", "origin"),
    [
        ("openai", {"OPENAI_API_KEY": "k1"}, "k1", "environment OPENAI_API_KEY"),
        ("openai-responses", {"OPENAI_API_KEY": "k1"}, "k1", "environment OPENAI_API_KEY"),
        ("anthropic", {"ANTHROPIC_API_KEY": "k2\n"}, "k2", "environment ANTHROPIC_API_KEY"),
        (
            "gemini",
            {"GEMINI_API_KEY": "k3", "GOOGLE_API_KEY": "k4"},
            "k3",
            "environment GEMINI_API_KEY",
        ),
        ("gemini", {"GOOGLE_API_KEY": "k4"}, "k4", "environment GOOGLE_API_KEY"),
        ("my-work", {"NOUSD_MY_WORK_API_KEY": "k5"}, "k5", "environment NOUSD_MY_WORK_API_KEY"),
    ],
)
def test_a_key_is_taken_from_the_environment_before_the_file(
    home: Path, name: str, environ: dict[str, str], key: str, origin: str
) -> None:
    dialect = "dialect = 'openai'\n" if name == "my-work" else ""
    file = write(home / "c.toml", f"[providers.{name}]\n{dialect}api_key = 'of the file'")
    for variables, expected in ((environ, (key, origin)), ({}, ("of the file", f"file {file}"))):
        provider = resolve({"provider": name}, variables, file).settings.providers[name]
        assert provider.api_key is not None
        assert (provider.api_key.reveal(), provider.key_origin) == expected


def test_a_vendors_key_is_not_used_for_a_provider_with_another_name(home: Path) -> None:
    provider = resolve_with_keys({}, {}, write(home / "c.toml", WORK)).settings.providers["work"]
    assert (provider.api_key, provider.key_origin) == (None, "")


def test_a_key_command_counts_as_a_key_and_runs_in_the_folder_of_the_file(home: Path) -> None:
    toml = "[providers.openai]\napi_key_command = ['{}', 'x']"
    for program, expected in (("pass", "pass"), ("./key", str(home / "key")), ("/k", "/k")):
        file = write(home / "c.toml", toml.format(program))
        provider = resolve({"provider": "openai"}, {}, file).settings.providers["openai"]
        assert provider.api_key_command == (expected, "x")
        assert (provider.api_key, provider.folder) == (None, home)
        assert provider.key_origin == f"file {file}, api_key_command"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai", "OPENAI_API_KEY"),
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("gemini", "GEMINI_API_KEY"),
    ],
)
def test_a_provider_needs_a_key_or_an_api_base(name: str, variable: str) -> None:
    for flags in ({"provider": name}, {"model": f"{name}/m"}):
        with pytest.raises(ConfigError, match=f"provider {name} needs {variable}"):
            resolve(flags, {})
        assert resolve(flags, {}, asks_models=False).settings.provider == name
        base = {**flags, "api_base": LOCAL}
        assert resolve(base, {}).settings.providers[name].api_key is None


def test_a_provider_that_is_not_the_default_needs_no_key(home: Path) -> None:
    resolve({}, {}, write(home / "c.toml", "[providers.gemini]\nmodel = 'flash'"))


# --- keys are not shown --------------------------------------------------------------------------


def test_no_representation_of_the_settings_shows_a_key(home: Path) -> None:
    toml = "[providers.work]\ndialect = 'openai'\napi_key = 'sk-hush-file'"
    settings = resolve(
        {"provider": "openai"}, {"OPENAI_API_KEY": "sk-hush"}, write(home / "c.toml", toml)
    )
    keys = [provider.api_key for provider in settings.settings.providers.values()]
    shown = f"{settings!r} {settings} {keys} " + "\n".join(map(str, report(settings)))
    assert "hush" not in shown
    assert "providers.openai.api_key = set  (environment OPENAI_API_KEY)" in shown
    assert f"providers.work.api_key = set  (file {home / 'c.toml'})" in shown


# --- auto ----------------------------------------------------------------------------------------


def usable(settings: ResolvedSettings) -> list[str]:
    return [name for name, each in settings.settings.providers.items() if each.is_usable]


def test_auto_is_not_resolved_and_keeps_the_candidates_in_order(home: Path) -> None:
    decided = resolve_with_keys({"provider": "auto"}, {"GOOGLE_API_KEY": "k"})
    assert decided.settings.provider == "auto"
    assert usable(decided) == ["anthropic", "openai", "gemini"]
    file = write(home / "c.toml", f"provider = 'openai'\n{WORK}\n[providers.gemini]")
    decided = resolve_with_keys({"provider": "auto"}, {}, file)
    assert usable(decided) == ["openai", "work", "anthropic"]
    assert decided.origins["provider"] == "flag --provider"


def test_auto_keeps_settings_of_a_provider_for_that_provider(home: Path) -> None:
    toml = f'provider = "openai"\napi_base = "{LOCAL}"\nmodel = "llama"'
    settings = resolve_with_keys({"provider": "auto"}, {}, write(home / "c.toml", toml)).settings
    openai = with_provider(settings, "openai").providers["openai"]
    assert (openai.model, openai.api_base) == ("llama", LOCAL)
    anthropic = with_provider(settings, "anthropic")
    assert (anthropic.provider, anthropic.model, anthropic.api_base) == ("anthropic", None, None)


def test_a_model_without_a_provider_belongs_to_the_provider_that_auto_finds() -> None:
    settings = resolve_with_keys({"provider": "auto", "model": "m"}, {}).settings
    assert with_provider(settings, "openai").providers["openai"].model == "m"
    local = with_provider(settings, "ollama", api_base=LOCAL, model="first")
    assert (local.providers["ollama"].model, local.providers["ollama"].api_base) == ("m", LOCAL)
    mock = with_provider(settings, "mock")
    assert (mock.model, mock.providers["mock"].is_fallback) == (None, True)


def test_a_mock_that_was_chosen_is_no_stand_in() -> None:
    chosen = resolve({"provider": "mock"}, {}).settings
    assert not chosen.providers["mock"].is_fallback


def test_a_server_found_by_auto_has_the_openai_dialect_and_its_own_model() -> None:
    settings = resolve({"provider": "auto"}, {}).settings
    found = with_provider(settings, "ollama", api_base=LOCAL, model="first")
    provider = found.providers[found.provider]
    assert (provider.dialect, provider.model, provider.api_key) == ("openai", "first", None)


def test_an_api_base_is_refused_for_auto(home: Path) -> None:
    file = write(home / "c.toml", 'provider = "openai"')
    for environ, path in (({}, None), ({"NOUSD_PROVIDER": "openai"}, None), ({}, file)):
        with pytest.raises(ConfigError, match=r"not for auto \(flag --api-base\)"):
            resolve_with_keys({"provider": "auto", "api_base": LOCAL}, environ, path)
    with pytest.raises(ConfigError, match=r"not for auto \(environment NOUSD_API_BASE\)"):
        resolve_with_keys({"provider": "auto"}, {"NOUSD_API_BASE": LOCAL})
