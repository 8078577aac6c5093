"""The lists in the contributing page are complete: additions made on a copy by following them work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACES_MAX = 6

COPIED = ("nousd", "protocol", "fixtures", "tests", "scripts", "pyproject.toml", "README.md")
COPIED_TOO = ("ARCHITECTURE.md", "CHANGELOG.md", ".github")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".hypothesis")


def places_of(heading: str) -> list[str]:
    """Return the paths that a list of the page names, one for each of its items."""
    _, _, rest = PAGE.partition(f"## {heading}\n")
    return re.findall(r"^\d+\. `([^`]+)`:", rest.partition("\n## ")[0], re.MULTILINE)


class Copy:
    """A copy of the project, and the set of files that were changed by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: set[str] = set()
        for name in (*COPIED, *COPIED_TOO):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=LEFT_OUT)
            else:
                shutil.copy(ROOT / name, root / name)

    def write(self, path: str, text: str) -> None:
        self.changed.add(path)
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path).read_text(encoding="utf-8") + text)

    def insert(self, path: str, behind: str, text: str) -> None:
        before = (self.root / path).read_text(encoding="utf-8")
        assert behind in before, f"{path} has no {behind!r}"
        self.write(path, before.replace(behind, behind + text, 1))

    def replace(self, path: str, old: str, new: str) -> None:
        before = (self.root / path).read_text(encoding="utf-8")
        assert old in before, f"{path} has no {old!r}"
        self.write(path, before.replace(old, new))

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *argv],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def passes(self, *argv: str) -> None:
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *argv)
        assert done.returncode == 0, done.stdout[-4000:]

    def only_changed(self, places: list[str]) -> None:
        """Assert that the list names every path that was changed, and no other."""
        used = {place for place in places for path in self.changed if path.startswith(place)}
        missed = [path for path in self.changed if not any(map(path.startswith, places))]
        assert (missed, used) == ([], set(places))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.parametrize("heading", ["Add a command", "Add a tool", "Add a provider"])
def test_each_list_of_paths_is_short_and_its_paths_exist(heading: str) -> None:
    places = places_of(heading)
    assert 0 < len(places) <= PLACES_MAX
    assert [place for place in places if not (ROOT / place).exists()] == []


WEEKDAY_CONVERSATION = """\
# behaviour: weekday_is_told

> {"v":"1","id":"c1","type":"get_weekday","payload":{}}
< {"v":"1","id":"c1","type":"weekday","payload":{"name":"$*"},"ok":true}
"""

WEEKDAY_EXAMPLE = """
```json
{"v":"1","id":"c1","type":"get_weekday","payload":{}}
{"v":"1","id":"c1","type":"weekday","payload":{"name":"Monday"},"ok":true}
```
"""


UNEXPLAINED = "| yes |  |"


@pytest.mark.slow
def test_a_command_is_added_by_changing_the_listed_paths(copy: Copy) -> None:
    responses, commands = "nousd/wire/responses", "nousd/wire/commands"
    copy.append(
        f"{responses}/daemon.py",
        '''

class Weekday(Response, frozen=True, kw_only=True):
    """The weekday in UTC."""

    name: str
''',
    )
    copy.insert(f"{responses}/__init__.py", "McpServers, Metrics", ", Weekday")
    copy.insert(f"{responses}/__init__.py", '    "pong": Pong,\n', '    "weekday": Weekday,\n')
    copy.insert(f"{commands}/daemon.py", "    Models,\n    Pong,\n", "    Weekday,\n")
    copy.append(
        f"{commands}/daemon.py",
        '''

class GetWeekday(AnsweredBy[Weekday], frozen=True, kw_only=True):
    """Read the weekday in UTC."""
''',
    )
    copy.insert(f"{commands}/__init__.py", "    GetMetrics,\n", "    GetWeekday,\n")
    copy.insert(
        f"{commands}/__init__.py",
        '    "get_metrics": GetMetrics,\n',
        '    "get_weekday": GetWeekday,\n',
    )
    handlers = "nousd/daemon/commands"
    copy.insert(f"{handlers}/metrics.py", "from nousd.wire.responses import Metrics", ", Weekday")
    copy.insert(
        f"{handlers}/metrics.py",
        "from collections import Counter\n",
        "from datetime import datetime\n",
    )
    copy.append(
        f"{handlers}/metrics.py",
        '''

async def get_weekday(services: Services, _command: commands.GetWeekday) -> Reply:
    """Return the weekday in UTC."""
    return Weekday(name=f"{datetime.fromisoformat(services.clock.now()):%A}")
''',
    )
    copy.insert(
        f"{handlers}/__init__.py",
        '    "get_metrics": "metrics",\n',
        '    "get_weekday": "metrics",\n',
    )
    copy.insert(
        "nousd/cli/nousctl/verbs.py",
        '    "metrics": Verb("get_metrics", "Show metrics of the daemon\'s process."),\n',
        '    "weekday": Verb("get_weekday", "Show the weekday in UTC."),\n',
    )
    copy.insert(
        "nousd/cli/nousctl/command_tree.py",
        '            "metrics": "metrics",\n',
        '            "weekday": "weekday",\n',
    )
    copy.write("fixtures/conversations/get_weekday.ndjson", WEEKDAY_CONVERSATION)
    copy.append(
        "protocol/behaviours.toml",
        '\n[weekday_is_told]\nsentence = "get_weekday returns the weekday in UTC."\n'
        'section = "get_weekday"\n',
    )
    generated = copy.run("-m", "scripts.generation")
    assert generated.returncode == 0, generated.stderr
    copy.append("protocol/reference/commands/get_weekday.md", WEEKDAY_EXAMPLE)
    copy.replace("protocol/reference/responses/weekday.md", UNEXPLAINED, "| yes | In English. |")
    copy.only_changed(places_of("Add a command"))
    copy.passes("tests/test_conversations.py", "-k", "get_weekday")
    copy.passes("tests/wire/test_protocol_complete.py", "tests/wire/test_protocol_document.py")
    copy.passes("tests/test_behaviours.py", "tests/test_import_rules.py")
    copy.passes("tests/cli/test_verbs.py", "tests/cli/test_command_tree.py")
    assert copy.run("-m", "scripts.generation", "--check").returncode == 0


WORD_COUNT = '''"""The tool ``word_count``: the number of words in a text file."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nousd.tools.fs.folder_threads import in_folder_thread
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.fs.text_files import read_text
from nousd.tools.function_tool import builtin, touches
from nousd.tools.interface import ToolContext, ToolResult


class WordCount(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of ``word_count``."""

    path: Annotated[str, Meta(description="Text file.")]


async def _word_count(args: WordCount, context: ToolContext) -> ToolResult:
    return ToolResult(str(await in_folder_thread(_count, context.path_sandbox, args.path)))


def _count(path_sandbox: PathSandbox, path: str) -> int:
    with path_sandbox.locate(path) as file:
        return len(read_text(file, path)[1].split())


WORD_COUNT = builtin(
    "word_count",
    "Counts the words of a text file.",
    WordCount,
    _word_count,
    {},
    access_of=touches("read"),
    is_read_only=True,
)
'''

WORD_COUNT_TEST = """from __future__ import annotations

from pathlib import Path

from nousd.tools.builtin.word_count import WORD_COUNT, WordCount
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.interface import ToolContext


async def test_words_are_counted(tmp_path: Path) -> None:
    async def emit(_: str, __: object = None) -> None: ...

    (tmp_path / "a.txt").write_text("one two  three")
    context = ToolContext(PathSandbox(tmp_path), emit)
    assert (await WORD_COUNT.run(WordCount(path="a.txt"), context)).text == "3"
"""


@pytest.mark.slow
def test_a_tool_is_added_by_changing_the_listed_paths(copy: Copy) -> None:
    copy.write("nousd/tools/builtin/word_count.py", WORD_COUNT)
    catalog = "nousd/tools/builtin/catalog.py"
    copy.insert(
        catalog,
        "from nousd.tools.builtin.web_fetch import web_fetch_tool\n",
        "from nousd.tools.builtin.word_count import WORD_COUNT\n",
    )
    copy.insert(catalog, "PATCH, LS, FIND, GREP", ", WORD_COUNT")
    copy.insert("nousd/tools/README.md", "`find`, `grep`", ", `word_count`")
    copy.write("tests/tools/test_word_count.py", WORD_COUNT_TEST)
    copy.only_changed(places_of("Add a tool"))
    copy.passes("tests/tools/test_word_count.py", "tests/tools/test_registry.py")
    copy.passes("tests/test_import_rules.py")


ECHO = '''"""The dialect ``echo``: Chat Completions at another address."""

from __future__ import annotations

from typing import ClassVar

from nousd.providers.openai.provider import OpenAIProvider


class EchoProvider(OpenAIProvider):
    """See ``OpenAIProvider``."""

    name: ClassVar[str] = "echo"
    key_variable: ClassVar[str] = "ECHO_API_KEY"
'''


@pytest.mark.slow
def test_a_provider_is_added_by_changing_the_listed_paths(copy: Copy) -> None:
    copy.write("nousd/providers/echo/__init__.py", '"""The dialect echo."""\n')
    copy.write("nousd/providers/echo/provider.py", ECHO)
    registry = "nousd/providers/setup/registry.py"
    copy.insert(
        registry,
        "    return _make_hosted(OpenAIProvider, settings)\n",
        "\n\ndef _make_echo(settings: ProviderSettings) -> Provider:\n"
        "    from nousd.providers.echo.provider import EchoProvider\n\n"
        "    return _make_hosted(EchoProvider, settings)\n",
    )
    copy.insert(registry, '    "anthropic": _make_anthropic,\n', '    "echo": _make_echo,\n')
    copy.insert("nousd/config/models_file.py", '"anthropic", ', '"echo", ')
    copy.insert("nousd/config/providers.py", "    MOCK: (),\n", '    "echo": ("ECHO_API_KEY",),\n')
    copy.write(
        "tests/providers/dialects/echo.py",
        "from dataclasses import replace\n\n"
        "from nousd.providers.echo.provider import EchoProvider\n"
        "from tests.providers.dialects.openai import OPENAI\n\n"
        'ECHO = replace(OPENAI, name="echo", provider=EchoProvider)\n',
    )
    dialects = "tests/providers/dialects/__init__.py"
    copy.insert(
        dialects,
        "from tests.providers.dialects.anthropic import ANTHROPIC\n",
        "from tests.providers.dialects.echo import ECHO\n",
    )
    copy.insert(dialects, "(OPENAI, RESPONSES, ANTHROPIC, GEMINI", ", ECHO")
    copy.insert("nousd/providers/README.md", "`gemini`", ", `echo`")
    for file, old, new in (
        ("test_models_file.py", "anthropic, gemini, ", "anthropic, echo, gemini, "),
        ("test_models_file.py", "anthropic or gemini", "anthropic or echo or gemini"),
        ("test_providers.py", "auto or gemini", "auto or echo or gemini"),
        ("test_settings.py", "auto or gemini", "auto or echo or gemini"),
    ):
        copy.replace(f"tests/config/{file}", old, new)
    copy.only_changed(places_of("Add a provider"))
    copy.passes("tests/providers/test_conformance.py", "-k", "echo")
    copy.passes("tests/providers/test_registry.py", "tests/config", "tests/test_import_rules.py")
