"""Registering tools and commands, and failures that affect only the extension's own calls."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from nousd.errors import CommandRejected, ConfigError, ToolArgumentsInvalid, ToolError
from nousd.extensions.api import ExtensionApi, Registrations
from nousd.extensions.calls import THREADS_MAX, TIMEOUT_SECONDS
from nousd.extensions.loaded import Extensions
from nousd.extensions.loader import load_extensions
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import ExtendIdleDeadline, ToolContext, ToolResult, nobody_waits
from nousd.wire.limits import EXTENSION_RESULT_BYTES_MAX
from nousd.wire.objects.tool_footprint import Access
from tests.harness.daemon import WAIT_SECONDS

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(source: str, name: str = "plugin.py") -> Path:
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


def register_extension(
    register: Callable[[ExtensionApi], object], name: str = "plugin"
) -> Extensions:
    given = Registrations()
    register(ExtensionApi(name, given))
    return Extensions(tools=tuple(given.tools.values()), commands=given.commands)


async def command(handler: Callable[..., Any], payload: Any = None, **options: float) -> Any:
    found = register_extension(lambda api: api.command("c", handler, **options))
    with trio.fail_after(WAIT_SECONDS):
        return await found.commands["c"](payload)


def silent_context(extend_idle_deadline: ExtendIdleDeadline = nobody_waits) -> ToolContext:
    """Return the context of a tool that must not emit anything."""

    async def emit(text: str, _: object = None) -> None:
        raise AssertionError(text)

    return ToolContext(PathSandbox(Path("/")), emit, extend_idle_deadline)


async def tool(
    handler: Callable[..., Any],
    args: dict[str, Any] | None = None,
    schema: dict[str, Any] | None = None,
    **options: Any,
) -> ToolResult:
    shape = schema or {"type": "object"}
    (found,) = register_extension(
        lambda api: api.tool("t", "A tool.", shape, handler, **options)
    ).tools

    quiet_seconds: list[float] = []
    context = silent_context(quiet_seconds.append)
    with trio.fail_after(WAIT_SECONDS):
        result = await found.run(found.validate(args or {}), context)
    assert quiet_seconds == [options.get("timeout_seconds", TIMEOUT_SECONDS)]
    return result


@pytest.mark.parametrize(
    ("payload", "echo"),
    [({"text": "hi"}, "hi"), ({}, ""), (None, ""), ("str", ""), ([1], ""), ({"text": 3}, "")],
)
async def test_the_demo_command_echoes_its_text(payload: Any, echo: str) -> None:
    extensions = load_extensions((), demo=True)
    assert await extensions.commands["echo"](payload) == {"echo": echo}


async def test_the_demo_tool_echoes_its_text() -> None:
    (echo,) = load_extensions((), demo=True).tools
    assert (echo.name, echo.source) == ("demo.echo", "demo")
    assert echo.parameters == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
    result = await echo.run(echo.validate({"text": "ext"}), silent_context())
    assert result == ToolResult(text="demo.echo:ext")


def test_without_demo_and_files_nothing_is_loaded() -> None:
    assert load_extensions((), demo=False) == Extensions()


async def test_a_file_registers_tools_and_commands_under_its_own_name(write: Write) -> None:
    path = write(
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Note:\n"
        "    text: str\n"
        "def register(api):\n"
        "    api.command('note', lambda payload: Note(**payload))\n"
        "    api.tool('note.add', 'Adds.', {'type': 'object'}, lambda args, context: 'added')\n"
    )
    extensions = load_extensions([path], demo=True)
    assert sorted(extensions.commands) == ["echo", "note"]
    assert [(tool.name, tool.source) for tool in extensions.tools] == [
        ("demo.echo", "demo"),
        ("note.add", "plugin"),
    ]
    assert await extensions.commands["note"]({"text": "x"}) == {"text": "x"}
    assert "plugin" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def register(api:", "SyntaxError: "),
        ("import no_such_module_1", "ModuleNotFoundError: No module named 'no_such_module_1'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("x = 1", "has no function register(api)"),
        ("register = 1", "has no function register(api)"),
        ("def register(): pass", "TypeError: register() takes 0 positional arguments"),
        ("def register(api): 1 / 0", "ZeroDivisionError: division by zero"),
        ("def register(api): api.command('a b', print)", "'a b' is no usable name; it must match"),
        ("def register(api): api.command('a', None)", "'a' has a handler that cannot be called"),
        ("def register(api): api.command('echo', print)", "command echo exists already"),
        (
            "def register(api): api.command('a', print, timeout_seconds=0)",
            "timeout_seconds must be more than 0 and at most 3600",
        ),
        ("def register(api): api.tool('bash', '', {}, print)", "tool bash exists already"),
        (
            "def register(api): api.tool('demo.echo', '', {}, print)",
            "tool demo.echo exists already",
        ),
        ("def register(api): api.tool('a', '', {}, print)", "must be a JSON Schema of type object"),
        ("def register(api): api.tool('a', '', 5, print)", "tool a: unusable parameters: "),
        (
            "def register(api): api.tool('a', '', {'type': 'object'}, print, classes=['all'])",
            "tool a: classes must be some of read, write, exec, network",
        ),
        (
            "def register(api): api.tool('a', '', {'type': 'object'}, print, classes='read')",
            "tool a: classes must be some of read, write, exec, network",
        ),
        (
            "def register(api): api.tool('a', '', {'type': 'object'}, print, classes=['read'])",
            "tool a: a tool that reads or writes needs a path_argument",
        ),
    ],
)
def test_an_unusable_file_is_a_one_line_error_that_names_it(
    source: str, reason: str, write: Write
) -> None:
    path = write(source)
    with pytest.raises(ConfigError) as caught:
        load_extensions([path], demo=True)
    text = str(caught.value)
    assert "plugin" in text
    assert reason in text
    assert "\n" not in text


def test_a_module_that_fails_to_import_is_not_left_in_sys_modules(write: Write) -> None:
    with pytest.raises(ConfigError):
        load_extensions([write("1 / 0")], demo=False)
    assert "nousd_extension_plugin" not in sys.modules


@pytest.mark.parametrize("name", ["plugin.txt", "my plugin.py", "builtin.py", "1.py"])
def test_a_file_must_have_a_usable_name(name: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=r"must be called NAME\.py"):
        load_extensions([write("", name)], demo=False)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.py: FileNotFoundError"):
        load_extensions([tmp_path / "missing.py"], demo=False)


def test_two_files_with_the_same_name_are_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [write("def register(api): pass", name) for name in ("a.py", "other/a.py")]
    with pytest.raises(ConfigError, match="there is another one called a"):
        load_extensions(paths, demo=False)


def test_registering_after_register_returned_is_an_error(write: Write) -> None:
    path = write("def register(api):\n    global late\n    late = api\n")
    load_extensions([path], demo=False)
    with pytest.raises(ConfigError, match="came after register"):
        sys.modules["nousd_extension_plugin"].late.command("late", print)


async def test_a_plain_handler_runs_in_a_thread_and_an_async_one_in_the_loop() -> None:
    def thread(_payload: dict[str, Any]) -> dict[str, str]:
        return {"thread": threading.current_thread().name}

    async def in_the_loop(payload: dict[str, Any]) -> dict[str, str]:
        await trio.lowlevel.checkpoint()
        return thread(payload)

    class AsyncObject:
        async def __call__(self, payload: dict[str, Any]) -> dict[str, str]:
            return await in_the_loop(payload)

    ours = thread({})
    assert await command(in_the_loop) == ours
    assert await command(AsyncObject()) == ours
    assert await command(thread) != ours


async def test_a_handler_gets_its_own_copy_of_the_payload() -> None:
    given = {"a": 1}
    assert await command(lambda payload: payload.update(b=2) or payload, given) == {"a": 1, "b": 2}
    assert given == {"a": 1}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raising_handler(error: BaseException) -> Callable[..., Any]:
    def handler(*_args: object) -> None:
        raise error

    return handler


def raising_async_handler(error: BaseException) -> Callable[..., Any]:
    async def handler(*_args: object) -> None:
        raise error

    return handler


@pytest.mark.parametrize("make", [raising_handler, raising_async_handler])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no\nway"), "plugin: ValueError: no way"),
        (SystemExit(3), "plugin: SystemExit: 3"),
        (KeyboardInterrupt(), "plugin: KeyboardInterrupt"),
        (asyncio.CancelledError(), "plugin: asyncio.exceptions.CancelledError"),
        (GeneratorExit(), "plugin: GeneratorExit"),
        (
            BaseExceptionGroup("many", [SystemExit(), ValueError()]),
            "plugin: BaseExceptionGroup: many (2 sub-exceptions)",
        ),
        (
            Unspeakable(),
            "plugin: tests.extensions.test_extensions.Unspeakable: <exception str() failed>",
        ),
        (ExceptionGroup("many", [ValueError()]), "plugin: ExceptionGroup: many (1 sub-exception)"),
        (trio.TooSlowError(), "plugin: trio.TooSlowError"),
        (ToolError("in my own words"), "plugin: in my own words"),
    ],
)
async def test_any_exception_of_a_handler_is_an_error_of_its_call(
    make: Callable[[BaseException], Callable[..., Any]], error: BaseException, text: str
) -> None:
    with pytest.raises(CommandRejected) as rejected:
        await command(make(error))
    assert rejected.value.message == "extension_error: c"
    assert rejected.value.cause == text
    with pytest.raises(ToolError) as failed:
        await tool(make(error))
    assert str(failed.value) == text.replace("plugin: ", "plugin: t: ", 1)


@pytest.mark.parametrize(
    "result", [object(), {1j: 1}, "\ud800", [[object()]], b"\xff".decode("latin-1").encode]
)
async def test_a_result_that_is_not_json_is_an_error_of_the_call(result: object) -> None:
    with pytest.raises(CommandRejected) as caught:
        await command(lambda payload: result)
    assert caught.value.cause is not None
    assert caught.value.cause.startswith("plugin: returned what is no JSON: ")


@pytest.mark.parametrize(("result", "kind"), [([1], "list"), ("text", "str"), (3, "int")])
async def test_a_result_that_is_not_an_object_is_an_error_of_the_call(
    result: object, kind: str
) -> None:
    with pytest.raises(CommandRejected) as caught:
        await command(lambda payload: result)
    assert caught.value.cause == f"plugin: returned {kind}; it must be a dict"


async def test_a_command_that_returns_nothing_answers_an_empty_object() -> None:
    assert await command(lambda payload: None) == {}


async def test_a_result_that_contains_itself_is_an_error_of_the_call() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CommandRejected, match="extension_error: c"):
        await command(lambda payload: endless)


async def test_a_result_may_be_as_large_as_the_limit_and_no_larger() -> None:
    fits = "x" * (EXTENSION_RESULT_BYTES_MAX - len('{"a":""}'))
    assert await command(lambda payload: {"a": fits}) == {"a": fits}
    with pytest.raises(CommandRejected) as caught:
        await command(lambda payload: {"a": fits + "x"})
    assert caught.value.cause == "plugin: returned more than 1048576 bytes"


async def test_a_result_is_a_copy() -> None:
    kept: list[int] = [1]
    result = await command(lambda payload: {"kept": kept})
    kept.append(2)
    assert result == {"kept": [1]}


async def test_an_async_handler_that_hangs_times_out(autojump_clock: object) -> None:
    async def hang(*_args: object) -> None:
        await trio.sleep_forever()

    started = trio.current_time()
    with pytest.raises(ToolError, match=r"^plugin: t: did not return within 5 seconds$"):
        await tool(hang, timeout_seconds=5)
    assert trio.current_time() - started == 5


async def test_a_plain_handler_that_hangs_is_abandoned_without_harm_to_other_extensions() -> None:
    released = threading.Event()

    def register(api: ExtensionApi) -> None:
        api.command("hang", lambda payload: released.wait(20), timeout_seconds=0.05)
        api.command("quick", lambda payload: {}, timeout_seconds=0.05)

    found = register_extension(register)
    other = register_extension(lambda api: api.command("c", lambda payload: {"is": "fine"}))
    try:
        with trio.fail_after(WAIT_SECONDS):
            for _ in range(THREADS_MAX):
                with pytest.raises(CommandRejected) as caught:
                    await found.commands["hang"]({})
                assert caught.value.cause == (
                    "plugin: did not return within 0.05 seconds; it was abandoned, and its thread "
                    "keeps one of the extension's 8 places until it ends"
                )
            with pytest.raises(CommandRejected):  # all threads of this extension are in use
                await found.commands["quick"]({})
            assert await other.commands["c"]({}) == {"is": "fine"}
    finally:
        released.set()


async def test_cancelling_the_call_cancels_the_handler() -> None:
    cancelled = trio.Event()

    async def hang(payload: dict[str, Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command, hang)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert cancelled.is_set()


async def test_an_async_handler_that_ignores_its_cancellation_has_timed_out(
    autojump_clock: object,
) -> None:
    async def stubborn(*_args: object) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "at last"

    with pytest.raises(ToolError, match="did not return within 5 seconds"):
        await tool(stubborn, timeout_seconds=5)


async def test_errors_of_a_handlers_cancelled_tasks_are_replaced_by_the_timeout(
    autojump_clock: object,
) -> None:
    async def complain() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError

    async def hang(*_args: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(complain)
            nursery.start_soon(trio.sleep_forever)

    with pytest.raises(ToolError, match="did not return within 5 seconds"):
        await tool(hang, timeout_seconds=5)


async def test_a_tool_returns_text_or_a_result() -> None:
    assert await tool(lambda args, context: "text\n") == ToolResult(text="text")
    failed = ToolResult(text="bad", is_error=True, full=b"whole")
    assert await tool(lambda args, context: failed) == failed
    with pytest.raises(
        ToolError, match=r"^plugin: t: returned int; it must be text or a ToolResult"
    ):
        await tool(lambda args, context: 5)


async def test_a_long_text_is_truncated_and_kept_in_full() -> None:
    result = await tool(lambda args, context: "x\n" * 3000)
    assert "[Output cut: the first 2000 of 3000 lines" in result.text
    assert result.full == b"x\n" * 3000


async def test_arguments_are_checked_before_the_handler_sees_them() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert (await tool(lambda args, context: str(args), {"n": "5"}, schema)).text == "{'n': 5}"
    with pytest.raises(ToolArgumentsInvalid, match=r"^validation_failed: t.n is required$"):
        await tool(lambda args, context: "", {}, schema)


@pytest.mark.parametrize(
    ("options", "args", "access"),
    [
        ({}, {}, Access(classes=frozenset({"exec", "network"}))),
        ({"classes": ()}, {}, Access()),
        ({"classes": ["network"]}, {}, Access(classes=frozenset({"network"}))),
        (
            {"classes": ["read"], "path_argument": "file"},
            {"file": "sub/../a.txt"},
            Access(classes=frozenset({"read"}), paths=("a.txt",)),
        ),
        (
            {"classes": ["write"], "path_argument": "file"},
            {},
            Access(classes=frozenset({"write"}), paths=(".",)),
        ),
        (
            # The extension's own code is not confined to the workdir, so this needs approval.
            {"classes": ["write"], "path_argument": "file"},
            {"file": "../a.txt"},
            Access(classes=frozenset({"write"}), paths=("../a.txt",), is_inside=False),
        ),
    ],
)
async def test_a_tool_has_the_access_that_its_extension_declares(
    options: dict[str, Any], args: dict[str, Any], access: Access, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    shape = {"type": "object"}
    (tool,) = register_extension(
        lambda api: api.tool("t", "A tool.", shape, print, **options)
    ).tools
    context = msgspec.structs.replace(silent_context(), path_sandbox=PathSandbox(tmp_path))
    assert await tool.access(tool.validate(args), context) == access


async def test_the_path_argument_may_be_a_field_of_a_struct(tmp_path: Path) -> None:
    class Named(msgspec.Struct):
        file: str

    options: dict[str, Any] = {"classes": ["read"], "path_argument": "file"}
    (tool,) = register_extension(
        lambda api: api.tool("t", "A tool.", Named, print, **options)
    ).tools
    context = msgspec.structs.replace(silent_context(), path_sandbox=PathSandbox(tmp_path))
    access = await tool.access(tool.validate({"file": "b.txt"}), context)
    assert access.paths == ("b.txt",)


@pytest.mark.parametrize(
    "source", ["import os; raise ValueError('hush')", "def register(hush): hush()"]
)
def test_the_error_of_an_extension_that_fails_to_load_is_redacted(
    source: str, write: Write
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_extensions(
            [write(source)], demo=False, redact=lambda text: text.replace("hush", "***")
        )
    assert "hush" not in str(caught.value)
