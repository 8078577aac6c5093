"""Installed extensions: found by entry point, loaded only if listed, and the complete example.

The example in fixtures/extensions is installed with pip, as its users do it, and run in a real daemon.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nousd.errors import ConfigError
from nousd.extensions.loader import load_extensions
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import of_type

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "fixtures" / "extensions" / "house-rules"

Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on this process's import path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(site: Path, name: str, source: str, value: str | None = None) -> Path:
    """Install a package with one entry point into a folder and return its module's path."""
    module = name.replace("-", "_")
    path = site / f"{module}.py"
    path.write_text(source)
    record = site / f"{module}_dist-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-dist\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[nousd.extensions]\n{name} = {value or module}\n")
    return path


ECHO = "def register(api):\n    api.command('{0}', lambda payload: {{'from': '{0}'}})\n"


async def test_installed_extensions_are_loaded_by_name_in_the_listed_order(site: Path) -> None:
    place = install(site, "first-one", ECHO.format("a"))
    install(site, "second", ECHO.format("b"), value="second:register")
    extensions = load_extensions((), installed=["second", "first-one"], demo=False)
    assert list(extensions.commands) == ["b", "a"]
    assert await extensions.commands["a"]({}) == {"from": "a"}
    assert place in extensions.places


def test_a_package_is_a_protected_path_of_its_extension(site: Path) -> None:
    install(site, "packed", "", value="packed_code.deep")
    (site / "packed_code").mkdir()
    (site / "packed_code" / "__init__.py").touch()
    (site / "packed_code" / "deep.py").write_text("def register(api): pass")
    extensions = load_extensions((), installed=["packed"], demo=False)
    assert extensions.places == (site / "packed_code",)


def test_an_unlisted_extension_is_not_imported(site: Path) -> None:
    seen = site / "imported"
    install(site, "nosy", f"open({str(seen)!r}, 'w').close()\ndef register(api): pass")
    install(site, "modest", "def register(api): pass")
    load_extensions((), installed=["modest"], demo=True)
    assert not seen.exists()
    load_extensions((), installed=["nosy"], demo=True)
    assert seen.exists()


@pytest.mark.slow
def test_without_listed_extensions_entry_points_are_not_read() -> None:
    look = (
        "import sys\n"
        "from nousd.extensions.loader import load_extensions\n"
        "load_extensions((), demo=True)\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "load_extensions((), installed=['nobody'], demo=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=ROOT)
    assert "ConfigError: extensions: nobody is not installed; installed are: " in ended.stderr


@pytest.mark.parametrize(
    ("name", "source", "value", "reason"),
    [
        ("gone", "", None, "extensions: missing is not installed; installed are: gone"),
        ("missing", "import no_such_module_1", None, "extension missing: ModuleNotFoundError: "),
        ("missing", "x = 1", None, "extension missing: has no function register(api)"),
        ("missing", "x = 1", "missing:x", "extension missing: missing:x is neither a module nor"),
        ("missing", "", "missing:y", "extension missing: AttributeError: "),
        ("missing", "def register(api): 1 / 0", None, "extension missing: ZeroDivisionError: "),
    ],
)
def test_an_unusable_installed_extension_is_a_one_line_error_that_names_it(
    name: str, source: str, value: str | None, reason: str, site: Path
) -> None:
    install(site, name, source, value)
    with pytest.raises(ConfigError) as caught:
        load_extensions((), installed=["missing"], demo=False)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_several_packages_use_is_refused(site: Path) -> None:
    install(site, "twice", "def register(api): pass")
    record = site / "other-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[nousd.extensions]\ntwice = other\n")
    with pytest.raises(ConfigError, match="several packages have an extension twice"):
        load_extensions((), installed=["twice"], demo=False)


def test_a_file_and_an_installed_extension_cannot_have_the_same_name(
    site: Path, tmp_path: Path
) -> None:
    install(site, "guard", "def register(api): pass")
    (tmp_path / "guard.py").write_text("def register(api): pass")
    with pytest.raises(ConfigError, match="extension guard: there is another one called guard"):
        load_extensions([tmp_path / "guard.py"], installed=["guard"], demo=False)


def test_the_bytecode_of_a_file_is_a_protected_path_of_its_extension(tmp_path: Path) -> None:
    path = tmp_path / "guard.py"
    path.write_text("def register(api): pass")
    places = load_extensions([path], demo=False).places
    assert places == (path, Path(importlib.util.cache_from_source(path)))


# --- the example, installed and run --------------------------------------------------------------


@dataclass
class InstalledPlace(Place):
    """The folders of a daemon whose Python also imports from a folder of packages."""

    packages: Path = field(default_factory=Path)

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(PYTHONPATH=str(self.packages), **more)

    def configure(self, text: str) -> None:
        folder = self.folder / "nousd"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(text)


@pytest.fixture(scope="module")
def packages() -> Iterator[Path]:
    """A folder into which pip has installed the example, without a network."""
    for module in ("pip", "hatchling"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (scripts/setup --dev installs it)")
    with tempfile.TemporaryDirectory(prefix="nousd-", dir="/tmp") as folder:
        # Builders leave files beside the sources.
        source = shutil.copytree(EXAMPLE, Path(folder, "source"))
        target = Path(folder, "packages")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--isolated", "install"]
        offline = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run(
            [*pip, *offline, "--target", str(target), str(source)],
            check=True,
            capture_output=True,
            timeout=120,
        )
        yield target


@pytest.fixture
def place(packages: Path) -> Iterator[InstalledPlace]:
    with tempfile.TemporaryDirectory(prefix="nousd-", dir="/tmp") as folder:
        yield InstalledPlace(Path(folder), packages=packages, options=("--permission-mode", "yolo"))


@pytest.mark.slow
async def test_the_installed_and_listed_example_works(place: InstalledPlace) -> None:
    place.configure('extensions = ["house-rules"]')
    async with running(place):
        client, events = await place.connect(), await place.watch(types="all")
        tools = (await client.request("list_tools"))["tools"]
        assert [tool["source"] for tool in tools if tool["name"] == "house.rules"] == [
            "house-rules"
        ]

        answer = await client.request("prompt", text="/rules", wait=False)
        assert answer["handled_by"] == "house-rules"
        assert answer["reply"].startswith("Nothing below generated/ is edited")

        calls = '[[tool write {"path": "generated/a.py", "content": "x"}]][[tool house.rules {}]]'
        await client.request("prompt", text=f"{calls}[[then]][[text see @tests]]", wait=False)
        run = await events.run()
        [denied] = of_type(run, "tool_call_denied")
        assert denied["reason"].endswith("generated/a.py is made by the build")
        assert not (place.work / "generated").exists()
        assert of_type(run, "model_input")[0]["sources"][-1]["extension"] == "house-rules"
        ends = of_type(run, "tool_execution_end")
        assert ends[1]["result"].startswith("Nothing below generated/ is edited")
        said = of_type(run, "message_start")[0]["text"]
        assert "[[text see the tests (run them with scripts/test)]]" in said

        await client.request("new_session")
        refused = await client.refusal("branch_session")
        assert refused["message"] == "invalid_payload" or "session_id is required" in str(refused)
        done = (await client.request("extension_command", name="house"))["done"]
        assert done["blocked"] == 1
        assert done["TurnStarted"] == done["TurnEnding"] == 1


@pytest.mark.slow
async def test_the_example_redacts_accounts_limits_timeouts_and_cancels_empty_branches(
    place: InstalledPlace,
) -> None:
    place.configure('extensions = ["house-rules"]')
    (place.work / "a.txt").write_text("of acct-1234567\n")
    calls = '[[tool read {"path": "a.txt"}]][[tool bash {"command": "true", "timeout": 999}]]'
    async with running(place):
        client, events = await place.connect(), await place.watch(types="all")
        session = (await client.request("new_session"))["session_id"]
        refused = await client.refusal("branch_session", session_id=session)
        assert refused["message"] == "cancelled_by_extension"
        assert refused["cause"] == "house-rules: there is nothing to branch yet"
        await client.request("prompt", text=f"{calls}[[then]][[text ok]]", wait=False)
        run = await events.run()
        read = of_type(run, "tool_execution_end")[0]
        assert "[an account]" in read["result"]
        assert read["changed_by"] == ["house-rules"]
        changed = [
            said["args"] for said in of_type(run, "tool_call_policy_evaluated") if "args" in said
        ]
        assert [args["timeout"] for args in changed] == [300]


@pytest.mark.slow
async def test_the_example_is_not_loaded_unless_it_is_listed(place: InstalledPlace) -> None:
    place.configure("")
    async with running(place):
        client = await place.connect()
        error = await client.refusal("extension_command", name="house")
        assert error["message"] == "extension_command_not_found: house"


@pytest.mark.slow
async def test_tools_without_access_need_no_approval(place: InstalledPlace) -> None:
    place.configure('extensions = ["house-rules"]')
    place.options = ("--enable-demo-extension",)
    calls = '[[tool demo.echo {"text": "hi"}]][[tool house.rules {}]]'
    async with running(place):
        client = await place.connect()
        done = await client.request("prompt", text=f"{calls}[[then]][[text ok]]", wait=True)
        ends = [event for event in done["events"] if event["type"] == "tool_execution_end"]
        assert [end["is_error"] for end in ends] == [False, False]


@pytest.mark.slow
async def test_a_listed_extension_that_is_not_installed_prevents_the_start(
    place: InstalledPlace,
) -> None:
    place.configure('extensions = ["house-rulez"]')
    code, said = await place.refusal()
    assert code == 2
    assert "extensions: house-rulez is not installed; installed are: house-rules" in said


@pytest.mark.slow
async def test_a_hook_that_never_returns_does_not_delay_the_stop_of_the_daemon(
    place: InstalledPlace,
) -> None:
    extension = place.folder / "hanging.py"
    extension.write_text(
        "import time\n"
        "def register(api):\n"
        "    for name in ('turn_start', 'run_end', 'input'):\n"
        "        api.hook(name, lambda told: time.sleep(3600), timeout_seconds=0.1)\n"
    )
    place.options = (*place.options, "--extension", str(extension))
    async with running(place) as daemon:
        client, events = await place.connect(), await place.watch(types="all")
        answer = await client.request("prompt", text="[[text hello]]", wait=False)
        assert answer["warnings"][0]["code"] == "extension_timeout"
        run = await events.run()
        [warning] = of_type(run, "warning")
        assert (
            "it was abandoned, and its thread keeps one of the extension's 8" in warning["message"]
        )
        assert await daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", ["guard.py", "site/house_rules.py"])
async def test_no_tool_can_change_an_extension_in_the_workdir(
    place: InstalledPlace, path: str
) -> None:
    extension = place.work / "guard.py"
    extension.write_text("def register(api): pass")
    place.options = (*place.options, "--extension", str(extension))
    shutil.copytree(place.packages, place.work / "site")
    place.packages = place.work / "site"
    place.configure('extensions = ["house-rules"]')
    before = (place.work / path).read_bytes()
    calls = f'[[tool write {{"path": "{path}", "content": "x"}}]][[tool read {{"path": "{path}"}}]]'
    async with running(place):
        client = await place.connect()
        done = await client.request("prompt", text=f"{calls}[[then]][[text ok]]", wait=True)
        ends = [event for event in done["events"] if event["type"] == "tool_execution_end"]
        assert [end["is_error"] for end in ends] == [True, True]
    assert (place.work / path).read_bytes() == before
