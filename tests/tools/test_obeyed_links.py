"""Links under names that programs obey: where they lead, a write needs approval and a change is told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nousd.daemon.policy.sandboxing import build_obeyed_links
from nousd.tools.sandbox import obeyed_links as links
from tests.tools.bench import Bench
from tests.tools.sandbox_bench import BACKENDS, SandboxBench
from tests.tools.test_git_layout import access_of, verdict
from tests.tools.test_trap_watch import bench_of, left_by

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes


@pytest.fixture
def linked(bench: Bench) -> Bench:
    """A workspace with links, in a daemon that knows the names."""
    bench.context = msgspec.structs.replace(bench.context, obeyed_links=build_obeyed_links())
    for folder in ("proj/.husky", "settings", "ci", "scripts"):
        (bench.work / folder).mkdir(parents=True)
    (bench.work / "proj" / ".vscode").symlink_to("../settings")
    (bench.work / ".envrc").symlink_to("env.sh")
    (bench.work / "proj" / ".husky" / "pre-commit").symlink_to("../../scripts/check")
    (bench.work / ".github").mkdir()
    (bench.work / ".github" / "workflows").symlink_to(bench.work / "ci")
    (bench.work / "proj" / ".config").symlink_to("../shared")
    (bench.work / "proj" / ".jj").mkdir()
    (bench.work / "proj" / ".jj" / "repo").symlink_to("../../stored")
    for folder in ("shared", "stored"):
        (bench.work / folder).mkdir()
    (bench.work / ".zed").symlink_to(".zed")
    (bench.work / ".idea").symlink_to(bench.outside)
    return bench


@pytest.mark.slow(keep=3)
@pytest.mark.behaviour("files_that_a_guarded_link_leads_to_are_asked_about")
@pytest.mark.parametrize(
    "path",
    [
        "settings/tasks.json",
        "settings/deep/tasks.json",
        "proj/.vscode/tasks.json",
        "env.sh",
        "scripts/check",
        "ci/build.yml",
        "shared/lefthook-x",
        "stored/config.toml",
    ],
)
async def test_a_file_that_is_reached_by_a_link_of_a_guarded_name_is_asked_about(
    linked: Bench, path: str
) -> None:
    assert verdict(await access_of(linked, "write", path=path, content="x")) == "ask"
    assert verdict(await access_of(linked, "write", path=path, content="x"), "yolo") == "allow"
    other = path.replace("settings", "settings2").replace("check", "other").replace("ci/", "ci2/")
    other = other.replace("shared/", "shared2/").replace("stored/", "stored2/")
    beside = "other.sh" if path == "env.sh" else other
    if ".vscode" not in path:
        assert verdict(await access_of(linked, "write", path=beside, content="x")) == "allow"


def test_the_search_for_links_is_bounded(linked: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build_obeyed_links()
    assert found.leading_to(linked.work, [("settings", "x")])
    assert len(links.links_among(linked.work, ["proj/.vscode", ".envrc", "proj/.husky"])) == 3
    monkeypatch.setattr(links, "LINKS_MAX", 1)
    assert len(links.links_among(linked.work, ["proj/.vscode", ".envrc", "proj/.husky"])) == 1
    monkeypatch.setattr(links, "SHORT_ENTRIES_MAX", 0)
    for number in range(100):
        (linked.work / f"_{number}").mkdir()
    assert not found.leading_to(linked.work, [("settings", "x")])


@pytest.fixture(params=BACKENDS)
def held(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SandboxBench:
    return bench_of(request.param, tmp_path, monkeypatch)


async def test_a_link_of_a_guarded_name_that_a_command_makes_is_reported(
    held: SandboxBench,
) -> None:
    (held.work / "sub" / "x").mkdir()
    result = await held.call("bash", command="ln -s x sub/.vscode; ln -s x/y sub/.envrc")
    assert left_by(result) == {"sub/.vscode": "editors", "sub/.envrc": "direnv"}


@pytest.mark.parametrize(
    ("place", "inside", "program"),
    [
        (".github", "copilot-instructions.md", "other agent programs"),
        (".config", "lefthook-x", "git"),
        (".hg", "hgrc", "Mercurial"),
        (".jj/repo", "config.toml", "Jujutsu"),
    ],
)
async def test_a_link_on_the_way_to_a_guarded_name_is_reported_and_what_it_leads_to(
    held: SandboxBench, place: str, inside: str, program: str
) -> None:
    result = await held.call(
        "bash",
        command=f"mkdir -p sub/x $(dirname sub/{place}); echo one > sub/x/{inside};"
        f" ln -sfn $PWD/sub/x sub/{place}",
    )
    assert left_by(result) == {f"sub/{place}": program}
    again = await held.call("bash", command=f"echo two > sub/x/{inside}")
    assert left_by(again) == {f"sub/{place}": program}
    # A file of that name is none.
    other = await held.call("bash", command=f"mkdir -p sub/y; echo > sub/y/{place[1:4]}")
    assert left_by(other) == {}


async def test_a_file_behind_a_guarded_link_is_closed_or_its_change_is_reported(
    held: SandboxBench,
) -> None:
    (held.work / "sub" / ".husky").mkdir()
    check = held.put("sub/scripts/check", "ours\n")
    (held.work / "sub" / ".husky" / "pre-commit").symlink_to("../scripts/check")
    tasks = held.put("sub/zed/tasks.json", "ours\n")
    (held.work / "sub" / ".zed").symlink_to("zed")
    npmrc = held.put("sub/npmrc", "ours\n")
    (held.work / "sub" / ".npmrc").symlink_to("npmrc")
    touched = await held.call("bash", command="touch sub/zed/tasks.json sub/npmrc; echo x > sub/y")
    assert left_by(touched) == {}
    result = await held.call(
        "bash",
        command="for f in scripts/check zed/tasks.json npmrc; do echo evil > sub/$f; done; true",
    )
    assert check.read_text() == "ours\n"
    assert tasks.read_text() == npmrc.read_text() == "evil\n"
    assert left_by(result) == {"sub/.zed": "editors", "sub/.npmrc": "npm"}
