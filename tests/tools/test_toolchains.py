"""Toolchains below the home: which paths are proposed, and that commands run with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from nousd.tools.sandbox.detect import SandboxName
from nousd.tools.sandbox.toolchains import (
    TOOLCHAINS,
    VERSIONS_MAX,
    Toolchain,
    find_toolchains,
)
from tests.tools.sandbox_bench import BACKENDS, CHOSEN, SandboxBench

SYSTEM_PATH = "/usr/bin:/bin"

LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rust": (
        (".cargo/bin/cargo", ".rustup/toolchains/stable/bin/rustc", ".rustup/settings.toml"),
        (".cargo/credentials.toml", ".cargo/config.toml", ".cargo/registry/src/x"),
    ),
    "nvm": (
        (".nvm/versions/node/v20.1.0/bin/node", ".nvm/versions/node/v20.1.0/lib/node_modules/npm"),
        (".nvm/versions/node/v20.1.0/etc/npmrc", ".npmrc"),
    ),
    "fnm": (
        (".local/share/fnm/node-versions/v20.1.0/installation/bin/node",),
        (".local/share/fnm/node-versions/v20.1.0/installation/etc/npmrc",),
    ),
    "volta": (
        (".volta/tools/image/node/20.1.0/bin/node",),
        (".volta/hooks.json", ".volta/tools/image/node/20.1.0/etc/npmrc"),
    ),
    "pyenv": (
        (".pyenv/versions/3.12.1/bin/python", ".pyenv/versions/3.12.1/lib/python3.12/os.py"),
        (".pyenv/versions/3.12.1/pip.conf", ".pyenv/shims/python"),
    ),
    "rbenv": ((".rbenv/versions/3.3.0/bin/ruby",), (".rbenv/versions/3.3.0/etc/gemrc",)),
    "uv": (
        (".local/bin/uv", ".local/share/uv/python/cpython-3.12/bin/python3.12"),
        (".local/share/uv/credentials/credentials.toml",),
    ),
    "asdf": (
        (".asdf/installs/nodejs/20.1.0/bin/node",),
        (".asdf/installs/nodejs/20.1.0/etc/npmrc", ".asdf/installs/rust/1.80/credentials.toml"),
    ),
    "mise": (
        (".local/share/mise/installs/python/3.12.1/bin/python",),
        (".local/share/mise/installs/python/3.12.1/pip.conf",),
    ),
    "sdkman": (
        (".sdkman/candidates/java/21.0.1/bin/java",),
        (".sdkman/candidates/maven/3.9.6/conf/settings.xml",),
    ),
    "go": (("go/bin/gopls", "sdk/go1.22.1/bin/go"), ("go/src/private/main.go",)),
    "deno": ((".deno/bin/deno",), (".deno/x",)),
    "bun": ((".bun/bin/bun",), (".bunfig.toml",)),
    "pnpm": ((".local/share/pnpm/bin/pnpm",), (".local/share/pnpm/rc",)),
    **{
        name: ((f"{name}/bin/python",), (f"{name}/.condarc",))
        for name in ("miniconda3", "miniforge3", "mambaforge", "anaconda3")
    },
}
"""name of a row -> files that must be shown, files that must not."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(exist_ok=True)
    return folder


def put(home: Path, *names: str) -> None:
    """Create programs that print their own path."""
    for name in names:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho ran {name}\n")
        path.chmod(0o755)


def names(toolchain: Toolchain, home: Path) -> list[str]:
    return [str(path.relative_to(home)) for path in toolchain.paths]


def shows(toolchains: Iterable[Toolchain], path: Path) -> bool:
    return any(path.is_relative_to(shown) for each in toolchains for shown in each.paths)


# --- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [row.name for row in TOOLCHAINS])
def test_what_is_proposed_holds_the_programs_and_no_secret(name: str, home: Path) -> None:
    programs, secrets = LAYOUTS[name]
    put(home, *programs, *secrets)
    found = find_toolchains(home, SYSTEM_PATH)
    assert [each.name for each in found] == [name]
    assert [path for path in programs if not shows(found, home / path)] == []
    assert [path for path in secrets if shows(found, home / path)] == []
    assert any(path.name == "bin" for path in found[0].paths)


def test_a_home_without_toolchains_has_none(home: Path) -> None:
    put(home, ".npmrc", ".ssh/id", "notes/bin/x")
    assert find_toolchains(home, SYSTEM_PATH) == []


# --- versions ----------------------------------------------------------------------------------


def test_the_versions_in_use_come_first_then_the_newest_and_the_rest_are_counted(
    home: Path,
) -> None:
    versions = ["v8.17.0", "v16.20.2", "v18.1.0", "v18.20.4", "v20.9.0", "v22.10.0", "v22.9.0"]
    put(home, *(f".nvm/versions/node/{version}/bin/node" for version in versions))
    (home / ".nvm/alias").mkdir()
    (home / ".nvm/alias/default").write_text("18\n")
    [nvm] = find_toolchains(home, SYSTEM_PATH)
    order = ["v18.20.4", "v18.1.0", "v22.10.0", "v22.9.0"]
    assert names(nvm, home) == [f".nvm/versions/node/{each}/bin" for each in order]
    assert nvm.left_out == len(versions) - VERSIONS_MAX


def test_a_link_to_a_version_is_not_one_of_the_versions(home: Path) -> None:
    put(home, ".pyenv/versions/3.12.1/bin/python")
    (home / ".pyenv/versions/latest").symlink_to("3.12.1")
    [pyenv] = find_toolchains(home, SYSTEM_PATH)
    assert names(pyenv, home) == [".pyenv/versions/3.12.1/bin"]


# --- PATH --------------------------------------------------------------------------------------


def test_program_folders_on_path_are_proposed_if_no_row_knows_them(home: Path) -> None:
    put(home, "bin/mine", ".krew/bin/kubectl-x", ".pyenv/bin/pyenv", "w/.venv/bin/python")
    put(home, "w/.venv/pyvenv.cfg", ".pyenv/versions/3.12.1/bin/python", "scripts/x")
    on_path = ["bin", ".krew/bin", ".pyenv/bin", "w/.venv/bin", "scripts", "gone/bin", ""]
    path = os.pathsep.join([*(str(home / name) for name in on_path), SYSTEM_PATH])
    pyenv, others = find_toolchains(home, path)
    assert pyenv.name == "pyenv"
    assert (others.name, names(others, home)) == ("PATH", ["bin", ".krew/bin"])


# --- what must stay hidden ---------------------------------------------------------------------


@pytest.mark.parametrize("place", [".local/bin/print-key", ".local/bin", ".local"])
def test_a_folder_that_holds_what_is_the_daemons_is_not_proposed(place: str, home: Path) -> None:
    put(home, ".local/bin/uv", ".local/bin/print-key", ".local/share/uv/python/x/bin/python")
    found = find_toolchains(home, f"{home}/.local/bin", [home / place])
    assert not shows(found, home / ".local/bin/uv")


def test_a_link_to_the_home_is_not_proposed(home: Path) -> None:
    put(home, ".ssh/id")
    (home / ".cargo").mkdir()
    (home / ".cargo/bin").symlink_to(home)
    (home / "bin").symlink_to("..")
    assert find_toolchains(home, f"{home}/bin") == []


def test_paths_below_a_shown_one_are_not_hidden(home: Path) -> None:
    put(home, *LAYOUTS["rust"][0])
    [rust] = find_toolchains(home, SYSTEM_PATH)
    assert rust.list_hidden_paths([]) == list(rust.paths)
    assert rust.list_hidden_paths([home / ".rustup"]) == [home / ".cargo/bin"]
    assert rust.list_hidden_paths([home]) == []


# --- commands ----------------------------------------------------------------------------------

FAKES = {
    "cargo": ".cargo/bin/cargo",
    "node": ".nvm/versions/node/v20.1.0/bin/node",
    "python": ".pyenv/versions/3.12.1/bin/python",
    "uv": ".local/bin/uv",
}
"""command -> the program that it is to run."""

MakeBench = Callable[[tuple[Path, ...]], SandboxBench]


@pytest.fixture(params=BACKENDS)
def make_bench(
    request: pytest.FixtureRequest, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> MakeBench:
    """Make a bench in which these paths are shown; PATH is the system's."""
    name: SandboxName = request.param
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", SYSTEM_PATH)

    def make(paths: tuple[Path, ...]) -> SandboxBench:
        real = tuple(path.resolve() for path in paths)
        return SandboxBench(tmp_path, name, replace(CHOSEN, read_paths=real))

    return make


@pytest.mark.slow
async def test_toolchains_under_the_home_run_in_the_sandbox_once_the_proposal_is_set(
    make_bench: MakeBench, home: Path
) -> None:
    put(home, *FAKES.values(), ".cargo/credentials.toml")
    for program in FAKES:
        result = await make_bench(()).call("bash", command=f"{program} --version")
        assert "ran" not in result.text
    paths = [path for each in find_toolchains(home, SYSTEM_PATH) for path in each.paths]
    bench = make_bench(tuple(paths))
    for program, name in FAKES.items():
        assert await bench.text("bash", command=f"{program} --version") == f"ran {name}"
    result = await bench.call("bash", command=f"cat {home}/.cargo/credentials.toml")
    assert result.is_error


async def test_a_launcher_finds_its_installations_at_the_usual_place_of_its_home(
    make_bench: MakeBench, home: Path
) -> None:
    put(home, *LAYOUTS["rust"][0])
    (home / ".cargo/bin/cargo").write_text(
        '#!/bin/sh\ncat "$HOME/.rustup/settings.toml" && touch "$HOME/.cargo/.package-cache" &&'
        ' exec "$HOME/.rustup/toolchains/stable/bin/rustc"\n'
    )
    (home / ".rustup/settings.toml").write_text("default\n")
    [rust] = find_toolchains(home, SYSTEM_PATH)
    answer = await make_bench(rust.paths).text("bash", command="cargo build")
    assert answer == "default\nran .rustup/toolchains/stable/bin/rustc"


async def test_toolchains_of_a_home_behind_a_link_run_in_the_sandbox(
    make_bench: MakeBench, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, *LAYOUTS["rust"][0])
    (home / ".cargo/bin/cargo").write_text('#!/bin/sh\ncat "$HOME/.rustup/settings.toml"\n')
    (home / ".rustup/settings.toml").write_text("default\n")
    link = home.with_name("linked")
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    [rust] = find_toolchains(link, SYSTEM_PATH)
    assert await make_bench(rust.paths).text("bash", command="cargo --version") == "default"


async def test_shown_programs_keep_their_place_in_path_and_others_come_before_it(
    make_bench: MakeBench, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, "first/bin/x", "second/bin/x", "hidden/bin/x", "data/x")
    shown = [home / name for name in ("first/bin", "second/bin", "data")]
    monkeypatch.setenv("PATH", f"{home}/hidden/bin:/usr/bin:{home}/second/bin:/bin")
    path = await make_bench(tuple(shown)).text("bash", command="echo $PATH")
    assert path == f"{home}/first/bin:/usr/bin:{home}/second/bin:/bin"
