"""The registration interface of an extension: tools for the model, commands for clients, hooks.

    def register(api):
        api.command("greet", lambda payload: {"greeting": f"hello {payload.get('name', '')}"})
        api.tool("notes.add", "Adds a note.", Note, add_note)
        api.hook("tool_call", no_generated_files, on_error="block")

It deliberately knows neither sessions nor events: an extension only answers calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, get_args

import msgspec

from nousd.errors import CommandRejected, ConfigError, ExtensionError, ToolError
from nousd.extensions.calls import TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX, Caller, Handler, Redact
from nousd.extensions.hook_chain import Hook, OnError
from nousd.extensions.hooks import HOOKS, HookName
from nousd.extensions.loaded import ExtensionFunction
from nousd.tools.arguments import Arguments, struct_arguments
from nousd.tools.builtin.catalog import BUILTIN_NAMES
from nousd.tools.function_tool import (
    AccessOf,
    FunctionTool,
    access_to,
    leads_inside,
    touches_nothing,
)
from nousd.tools.interface import Tool, ToolContext, ToolResult
from nousd.tools.output.tool_output import head_of, within_bounds
from nousd.tools.registry import TOOL_NAME
from nousd.tools.secrets_interface import Secrets
from nousd.wire.codec.decoding import decode_json
from nousd.wire.limits import EXTENSION_RESULT_BYTES_MAX
from nousd.wire.objects.tool_footprint import Access, ToolClass

HOOK_TIMEOUT_SECONDS: Final = 10.0
"""Default time limit of hooks: a run waits for them."""

HOOKS_MAX: Final = 64
"""Maximum hooks of one extension."""


class Registrations:
    """The registrations of all extensions so far."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.commands: dict[str, ExtensionFunction] = {}
        self.hooks: list[Hook] = []


class ExtensionApi:
    """The argument of an extension's ``register``; invalid afterwards.

    Args:
        extension: its name.
        registered: the registrations of all extensions so far, to which the methods add.
        redact: removes the daemon's secrets from error messages.
    """

    def __init__(
        self, extension: str, registered: Registrations, redact: Redact = lambda text: text
    ) -> None:
        self._extension = extension
        self._tools = registered.tools
        self._commands = registered.commands
        self._hooks = registered.hooks
        self._caller = Caller(redact)
        self._closed = False

    def tool(
        self,
        name: str,
        description: str,
        parameters: type[msgspec.Struct] | dict[str, Any],
        handler: Handler,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        classes: Collection[ToolClass] = ("exec", "network"),
        path_argument: str | None = None,
        is_read_only: bool = False,
    ) -> None:
        """Add a tool.

        Args:
            name: the name that models use; built-in names are taken.
            parameters: a msgspec struct, or a JSON Schema of type object (its top level is checked).
            handler: called with the arguments (struct or dict) and the ``ToolContext``; plain or
                async; returns the text for the model, or a ``ToolResult``. To fail, it raises.
            classes: all effects of a call, out of ``read``, ``write``, ``exec`` and ``network``; empty
                for a tool without effects. Modes and rules rely on it.
            path_argument: the argument that names the file or directory to read or write; required for
                the classes ``read`` and ``write``, because rules apply to paths.
            is_read_only: whether an interrupted call may be answered with its earlier result.

        Raises:
            ConfigError: the name is taken, or an argument is unusable.
        """
        self._check(name, timeout_seconds, handler)
        if name in BUILTIN_NAMES or name in self._tools:
            raise ConfigError(f"extension {self._extension}: tool {name} exists already")

        self._tools[name] = FunctionTool(
            name=name,
            description=description,
            source=self._extension,
            arguments=self._arguments(name, parameters),
            function=self._tool_function(name, handler, timeout_seconds),
            access_of=self._access_of(name, classes, path_argument),
            executed_by="extension",
            is_read_only=is_read_only,
        )

    def _tool_function(
        self, name: str, handler: Handler, timeout_seconds: float
    ) -> Callable[[Any, ToolContext], Awaitable[ToolResult]]:
        async def run(args: Any, context: ToolContext) -> ToolResult:
            context.extend_idle_deadline(timeout_seconds)
            try:
                result = await self._caller.call(
                    handler, args, context, timeout_seconds=timeout_seconds
                )
                return _tool_result(result, context.secrets)
            except ExtensionError as error:
                raise ToolError(f"{self._extension}: {name}: {error}") from error

        return run

    def _access_of(
        self, name: str, classes: Collection[ToolClass], path_argument: str | None
    ) -> AccessOf:
        prefix, known = f"extension {self._extension}: tool {name}", get_args(ToolClass)
        if isinstance(classes, str) or not set(classes) <= set(known):
            raise ConfigError(f"{prefix}: classes must be some of {', '.join(known)}")
        if {"read", "write"} & set(classes) and path_argument is None:
            raise ConfigError(f"{prefix}: a tool that reads or writes needs a path_argument")
        if not classes:
            return touches_nothing
        return partial(_access, frozenset(classes), path_argument)

    def command(
        self, name: str, handler: Handler, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Add a command for ``extension_command``.

        Args:
            handler: called with the payload, a dict; plain or async; returns a dict of JSON data, or
                None, which counts as an empty dict.

        Raises:
            ConfigError: the name is taken, or an argument is unusable.
        """
        self._check(name, timeout_seconds, handler)
        if name in self._commands:
            raise ConfigError(f"extension {self._extension}: command {name} exists already")

        async def run(payload: Any) -> Any:
            arguments = dict(payload) if isinstance(payload, Mapping) else {}
            try:
                result = await self._caller.call(
                    handler, arguments, timeout_seconds=timeout_seconds
                )
                return _plain(result)
            except ExtensionError as error:
                cause = f"{self._extension}: {error}"
                raise CommandRejected(f"extension_error: {name}", cause=cause) from error

        self._commands[name] = run

    def hook(
        self,
        name: HookName,
        handler: Handler,
        *,
        timeout_seconds: float = HOOK_TIMEOUT_SECONDS,
        on_error: OnError = "allow",
    ) -> None:
        """Add a handler of a hook, after the existing ones.

        Args:
            name: one of ``hooks.HOOKS``, which documents the handler's argument and answers.
            handler: called with that argument; plain or async.
            on_error: for ``tool_call`` only: what happens to the call if the handler raises, takes too
                long, or returns an invalid answer.

        Raises:
            ConfigError: there is no such hook, or an argument is unusable.
        """
        self._check(name, timeout_seconds, handler)
        prefix = f"extension {self._extension}: hook {name}"
        if name not in HOOKS:
            raise ConfigError(f"{prefix} does not exist; there are {', '.join(HOOKS)}")
        if on_error not in get_args(OnError):
            raise ConfigError(f"{prefix}: on_error must be {' or '.join(get_args(OnError))}")
        if on_error == "block" and name != "tool_call":
            raise ConfigError(f"{prefix}: on_error is for the hook tool_call alone")
        if sum(hook.extension == self._extension for hook in self._hooks) >= HOOKS_MAX:
            raise ConfigError(f"{prefix}: an extension has at most {HOOKS_MAX} hooks")
        self._hooks.append(
            Hook(self._extension, name, handler, timeout_seconds, on_error, self._caller)
        )

    def close(self) -> None:
        """End registration."""
        self._closed = True

    def _check(self, name: str, timeout_seconds: float, handler: Handler) -> None:
        prefix = f"extension {self._extension}: {name!r}"
        if self._closed:
            raise ConfigError(f"{prefix} came after register() had returned")
        if not TOOL_NAME.fullmatch(str(name)):
            raise ConfigError(f"{prefix} is no usable name; it must match {TOOL_NAME.pattern}")
        if not callable(handler):
            raise ConfigError(f"{prefix} has a handler that cannot be called")
        if not 0 < timeout_seconds <= TIMEOUT_SECONDS_MAX:
            raise ConfigError(
                f"{prefix}: timeout_seconds must be more than 0 and at most {TIMEOUT_SECONDS_MAX:g}"
            )

    def _arguments(self, name: str, parameters: type[msgspec.Struct] | dict[str, Any]) -> Arguments:
        prefix = f"extension {self._extension}: tool {name}"
        try:
            if not isinstance(parameters, dict):
                return struct_arguments(parameters)
            msgspec.json.encode(parameters)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{prefix}: unusable parameters: {error}") from error
        if parameters.get("type") != "object":
            raise ConfigError(f"{prefix}: parameters must be a JSON Schema of type object")
        return Arguments(schema=parameters)


def _access(
    classes: frozenset[ToolClass], path_argument: str | None, args: Any, context: ToolContext
) -> Access:
    """Return the footprint of a call as its extension declares it; nothing enforces it."""
    if path_argument is None:
        return Access(classes=classes)
    argument = (
        args.get(path_argument) if isinstance(args, dict) else getattr(args, path_argument, None)
    )
    path = str(argument or ".")
    return access_to(classes, (path,), context, is_inside=leads_inside(path, context))


def _tool_result(result: object, secrets: Secrets) -> ToolResult:
    if isinstance(result, str):
        return head_of(result, secrets)
    if not isinstance(result, ToolResult):
        raise ExtensionError(f"returned {type(result).__name__}; it must be text or a ToolResult")
    cut = head_of(result.text, secrets)
    full = cut.full if result.full is None else within_bounds(result.full)
    return ToolResult(text=cut.text, is_error=result.is_error, full=full)


def _plain(result: object) -> dict[str, Any]:
    """Return a copy of the result in its wire form, independent of the extension's objects.

    Clients always receive an object: v1 clients decode no other payload.
    """
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise ExtensionError(f"returned what is no JSON: {error}") from error
    if len(encoded) > EXTENSION_RESULT_BYTES_MAX:
        raise ExtensionError(f"returned more than {EXTENSION_RESULT_BYTES_MAX} bytes")
    plain = {} if result is None else decode_json(encoded)
    if not isinstance(plain, dict):
        raise ExtensionError(f"returned {type(result).__name__}; it must be a dict")
    return plain
