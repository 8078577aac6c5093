"""``nousd init``: asks what a first settings file needs, tests the key by one call, and writes the file.

Nothing is written before the last question is answered.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import typer

from nousd.errors import ConfigError

_OTHER: Final = "other"


class Option(NamedTuple):
    """One of several answers: its word, and what it means."""

    word: str
    meaning: str


class _Source(NamedTuple):
    """Where models come from.

    Args:
        name: of the provider.
        dialect: None if that is its name.
        variable: of its key; "" if it needs none.
    """

    name: str
    dialect: str | None = None
    api_base: str | None = None
    variable: str = ""


Table = dict[str, Any]
"""Keys of the settings file with their values."""


def init() -> None:
    """Ask, test and write.

    Raises:
        ConfigError: there is a settings file already, or it cannot be written.
    """
    from nousd.runtime_paths import locations

    file = locations.default_config_file()
    if file.exists():
        raise ConfigError(f"{file} exists already: edit it, or move it away first")
    settings, provider = _models()
    settings |= _tools()
    text = _toml(settings, provider)
    _write(file, text)
    print(f"\nwritten: {file} (only you can read it)")
    print('next: nousctl prompt "hello", or nousd service install; nousd doctor checks the rest')


# --- models ----------------------------------------------------------------------------------


def _models() -> tuple[Table, dict[str, Table]]:
    """Ask about the provider until its key works, or the user wants it as it is."""
    sources = {option.word: source for option, source in _sources()}
    options = [option for option, _ in _sources()]
    while True:
        source = sources[_choice("Where do the models come from?", options)]
        if source.name == "mock":
            return {"provider": "mock"}, {}
        if source.name == _OTHER:
            base = _text("Its address, as in http://127.0.0.1:8000/v1")
            source = _Source("local", "openai", base, "NOUSD_LOCAL_API_KEY")
        table = _table(source)
        settings: Table = {"provider": source.name}
        models = _asked_for_models(settings, {source.name: table})
        if models is not None or typer.confirm("Keep it all the same?", default=False):
            if models:
                table["model"] = _model(source, models)
            return settings, {source.name: table}


def _sources() -> list[tuple[Option, _Source]]:
    import trio

    from nousd.config.providers import KEY_VARIABLES
    from nousd.providers.setup import auto

    sources = []
    for name, variables in KEY_VARIABLES.items():
        if variables:
            is_set = next((each for each in variables if os.environ.get(each)), None)
            meaning = f"{is_set} is set" if is_set else f"needs a key ({variables[0]})"
            sources.append((Option(name, meaning), _Source(name, variable=is_set or variables[0])))
    found = trio.run(auto.find_provider, {})
    if found.api_base is not None:
        local = _Source(found.provider, auto.LOCAL_DIALECT, found.api_base)
        sources.append((Option(found.provider, f"{found.api_base} answers"), local))
    sources += [
        (Option(_OTHER, "another server that speaks OpenAI's Chat Completions"), _Source(_OTHER)),
        (Option("mock", "the built-in model, which only repeats what it is told"), _Source("mock")),
    ]
    return sources


def _table(source: _Source) -> Table:
    said = {"dialect": source.dialect, "api_base": source.api_base}
    table: Table = {key: value for key, value in said.items() if value is not None}
    if not source.variable:
        return table
    options = [
        Option("variable", f"{source.variable} in the environment of the daemon"),
        Option("command", "a program that prints it, as in: pass show anthropic"),
        Option("file", "written into the settings file, which only you can read"),
    ]
    if source.api_base is not None:
        options.append(Option("none", "the server asks for none"))
    match _choice("Where does the key come from?", options):
        case "command":
            table["api_key_command"] = shlex.split(_text("Command"))
        case "file":
            table["api_key"] = _text("Key", is_secret=True)
        case "variable":
            print(
                "note: a daemon that systemd or nousctl starts does not have the variables of your shell"
            )
    return table


def _asked_for_models(settings: Table, providers: dict[str, Table]) -> Sequence[str] | None:
    """Ask the server for its models, with the key; return None, and say why, if it refuses."""
    import trio

    from nousd.config.resolve import resolve
    from nousd.errors import ProviderError
    from nousd.providers.setup.configured import make_configured
    from nousd.redaction.redactor import Redactor

    # What the shell says of settings is not the daemon's; its keys are tried.
    environ = {k: v for k, v in os.environ.items() if k.endswith("_API_KEY") or k[:6] != "NOUSD_"}

    async def ask() -> Sequence[str]:
        with _temporary(_toml(settings, providers)) as file:
            resolved = resolve({}, environ, file).settings
        chosen = resolved.providers[resolved.provider]
        provider = make_configured(chosen, resolved, Redactor(()))
        try:
            with trio.fail_after(_SERVER_SECONDS):
                return await provider.models()
        finally:
            await provider.aclose()

    print("asking the server for its models ...")
    try:
        models = trio.run(ask)
    except (ConfigError, ProviderError) as error:
        print(f"that did not work: {error}")
    except trio.TooSlowError:
        print(f"that did not work: no answer within {_SERVER_SECONDS:g} seconds")
    else:
        print(f"it works: {len(models)} models")
        return models
    return None


_SERVER_SECONDS: Final = 20.0
"""How long a server, and a program that prints a key, may take together."""

_MODELS_SHOWN: Final = 30


def _model(source: _Source, models: Sequence[str]) -> str:
    from nousd.config.values import nearest

    for listed in models[:_MODELS_SHOWN]:
        print(f"  {listed}")
    if len(models) > _MODELS_SHOWN:
        print(f"  and {len(models) - _MODELS_SHOWN} more")
    usual = _usual_model(source)
    while True:
        name = _text("Model", usual if usual in models else models[0])
        if name in models:
            return name
        print(f"{name} is not among them; the nearest is {nearest(name, models)}")


def _usual_model(source: _Source) -> str:
    from nousd.providers.setup.registry import ProviderSettings, make_provider

    settings = ProviderSettings(api_base=source.api_base, api_key="none")
    return make_provider(source.dialect or source.name, settings).default_model


# --- tools -----------------------------------------------------------------------------------

_MODES: Final[Mapping[str, str]] = {
    "ask": "asks about every call that touches something",
    "auto": "asks about the network, and about what reaches beyond the workspace",
    "yolo": "asks about nothing",
}


def _tools() -> Table:
    from nousd.wire.objects.entries import PermissionMode

    assert set(_MODES) == set(get_args(PermissionMode))
    settings: Table = {}
    if typer.confirm("May models run commands (bash and git), in a sandbox?", default=False):
        settings["allow_exec"] = True
        if shown := _toolchains():
            settings["sandbox_paths"] = shown
    options = [Option(word, meaning) for word, meaning in _MODES.items()]
    settings["permission_mode"] = _choice("When are you asked about calls?", options, "auto")
    return settings


def _toolchains() -> list[str]:
    """Return the paths of the toolchains that commands shall see."""
    from nousd.tools.environment import allowed_environment
    from nousd.tools.sandbox.toolchains import find_toolchains

    home = Path.home()
    found = find_toolchains(home, allowed_environment()["PATH"])
    if not found:
        return []
    print(f"below {home} there are: {', '.join(each.name for each in found)}")
    if not typer.confirm("May commands see them? (to read, not to change)", default=True):
        return []
    return [_short(path, home) for each in found for path in each.paths]


def _short(path: Path, home: Path) -> str:
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


# --- questions and the file -------------------------------------------------------------------


def _choice(question: str, options: Sequence[Option], default: str | None = None) -> str:
    """Return the word of the option that is chosen, by its word or its number."""
    print(f"\n{question}")
    width = max(len(option.word) for option in options)
    for number, option in enumerate(options, 1):
        print(f"  {number:2} {option.word:{width}}  {option.meaning}")
    words = [option.word for option in options]
    while True:
        said = _text("Choice", default or words[0])
        if said in words:
            return said
        if said.isdecimal() and 0 < int(said) <= len(words):
            return words[int(said) - 1]
        print(f"write one of {', '.join(words)}, or its number")


def _text(question: str, default: str | None = None, *, is_secret: bool = False) -> str:
    return str(typer.prompt(question, default=default, hide_input=is_secret)).strip()


def _toml(settings: Table, providers: Mapping[str, Table]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in settings.items()]
    for name, table in providers.items():
        lines += ["", f"[providers.{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # Strings, booleans and lists of strings are written alike in JSON and in TOML.
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _temporary(text: str) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        yield Path(file.name)


def _write(file: Path, text: str) -> None:
    """Write a new file that only the user can read: the whole of it, or none."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            draft.touch(mode=0o600, exist_ok=False)
            draft.write_text(text, encoding="utf-8")
            # Unlike a rename it fails if somebody else has written one meanwhile.
            file.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
