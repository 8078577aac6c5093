"""``nousd init``: asks for the first settings, tests the key with one call, and writes the file.

It writes nothing before the last question is answered.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from nousd.errors import ClientError, ConfigError, ProviderError

if TYPE_CHECKING:
    from nousd.admin.first_settings import FirstSettings, Models, Source

_OTHER: Final = "other"
_MOCK: Final = "mock"
_MODELS_SHOWN: Final = 30


class _Option(NamedTuple):
    """One of several answers: its word and its meaning."""

    word: str
    meaning: str


_MODES: Final = (
    _Option("ask", "about every call that touches something"),
    _Option("auto", "about the network, and what reaches beyond the workspace"),
    _Option("yolo", "about nothing"),
)


def init() -> None:
    """Ask for the settings, test the key and write the file.

    Raises:
        ConfigError: the settings file exists or cannot be written.
    """
    from nousd.admin.first_settings import FirstSettings
    from nousd.runtime_paths import locations

    file = locations.default_config_file()
    if file.exists():
        raise ConfigError(f"{file} exists already: edit it, or move it away first")
    first = _provider()
    first = FirstSettings({**first.settings, **_tools()}, first.providers)
    first.write(file)
    print(f"\nwritten: {file} (only you can read it)")
    first_step = "nousctl restart, because a daemon runs with other settings, then " * _runs()
    print(
        f'next: {first_step}nousctl prompt "hello", or nousd service install; nousd doctor checks the'
        " rest"
    )


def _runs() -> bool:
    """Return whether the user's daemon answers."""
    from nousd.client.blocking import Connection
    from nousd.config.resolve import resolve_socket

    try:
        with Connection(resolve_socket(os.environ)) as daemon:
            daemon.request("ping", {})
    except ClientError:
        return False
    return True


# --- models ----------------------------------------------------------------------------------


def _provider() -> FirstSettings:
    """Ask for the provider until its key works or the user accepts it anyway."""
    from nousd.admin.first_settings import FirstSettings, other_server, sources

    found = {source.name: source for source in sources()}
    options = [
        *(_Option(source.name, source.meaning) for source in found.values()),
        _Option(_OTHER, "another server that speaks OpenAI's Chat Completions"),
        _Option(_MOCK, "the built-in model, which only repeats what it is told"),
    ]
    while True:
        name = _choice("Where do the models come from?", options)
        if name == _MOCK:
            return FirstSettings({"provider": _MOCK}, {})
        if name == _OTHER:
            source = other_server(_text("Its address, as in http://127.0.0.1:8000/v1"))
        else:
            source = found[name]
        table = {**source.table, **_key(source)}
        first = FirstSettings({"provider": source.name}, {source.name: table})
        models = _list_models(first)
        if models is not None:
            table["model"] = _model(models)
            return first
        if _yes("Keep it all the same?", default=False):
            return first


def _key(source: Source) -> dict[str, Any]:
    """Ask where the key comes from; return the keys of the provider's table about it."""
    if not source.key_variable:
        return {}
    options = [
        _Option("variable", f"{source.key_variable} in the environment of the daemon"),
        _Option("command", "a program that prints it, as in: pass show anthropic"),
        _Option("file", "written into the settings file, which only you can read"),
    ]
    if source.api_base is not None:
        options.append(_Option("none", "the server asks for none"))
    match _choice("Where does the key come from?", options):
        case "command":
            return {"api_key_command": shlex.split(_text("Command"))}
        case "file":
            return {"api_key": _text("Key", is_secret=True)}
        case "variable":
            print("note: a daemon that systemd or nousctl starts has no variables of your shell")
    return {}


def _list_models(first: FirstSettings) -> Models | None:
    """Return the server's models; on failure print the reason and return None."""
    print("asking the server for its models ...")
    try:
        models = first.models()
    except (ConfigError, ProviderError) as error:
        print(f"that did not work: {error}")
        return None
    print(f"it works: {len(models.names)} models")
    return models


def _model(models: Models) -> str:
    from nousd.config.values import nearest

    for listed in models.names[:_MODELS_SHOWN]:
        print(f"  {listed}")
    if len(models.names) > _MODELS_SHOWN:
        print(f"  and {len(models.names) - _MODELS_SHOWN} more")
    while True:
        name = _text("Model", models.default)
        if name in models.names:
            return name
        print(f"{name} is not among them; the nearest is {nearest(name, models.names)}")


# --- tools -----------------------------------------------------------------------------------


def _tools() -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if _yes("May models run commands (bash and git), in a sandbox?", default=False):
        settings["allow_exec"] = True
        if shown := _toolchains():
            settings["sandbox_paths"] = shown
    settings["permission_mode"] = _choice("About which calls are you asked?", _MODES, "auto")
    return settings


def _toolchains() -> list[str]:
    """Ask about the toolchains; return the paths that commands may read."""
    from nousd.admin.first_settings import toolchains

    found = toolchains()
    if not found:
        return []
    print(f"toolchains below your home: {', '.join(found)}")
    if not _yes("May commands read them?", default=True):
        return []
    return [path for paths in found.values() for path in paths]


# --- questions -------------------------------------------------------------------------------


def _choice(question: str, options: Sequence[_Option], default: str | None = None) -> str:
    """Return the word of the option that the user chooses, by its word or its number."""
    print(f"\n{question}")
    width = max(len(option.word) for option in options)
    for number, option in enumerate(options, 1):
        print(f"  {number:2} {option.word:{width}}  {option.meaning}")
    words = [option.word for option in options]
    while True:
        answer = _text("Choice", default or words[0])
        if answer in words:
            return answer
        if answer.isdecimal() and 0 < int(answer) <= len(words):
            return words[int(answer) - 1]
        print(f"write one of {', '.join(words)}, or its number")


def _yes(question: str, *, default: bool) -> bool:
    """Return whether the answer is yes."""
    shown = "Y/n" if default else "y/N"
    while True:
        answer = str(typer.prompt(f"{question} [{shown}]", default="", show_default=False))
        answer = answer.strip().lower()
        if not answer:
            return default
        if answer in {"y", "yes", "n", "no"}:
            return answer.startswith("y")
        print("write y for yes, or n for no")


def _text(question: str, default: str | None = None, *, is_secret: bool = False) -> str:
    return str(typer.prompt(question, default=default, hide_input=is_secret)).strip()
