"""Writes that make git run a program: the real git obeys each of them, and each needs approval."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nousd.errors import ToolError
from nousd.machine.policy.permission import Case, Judgement, judge
from nousd.machine.policy.rules import rules_of
from nousd.runtimes.calls import runner
from nousd.tools.interface import ToolContext
from nousd.tools.sandbox.git_folders import CONFIG_BYTES_MAX
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access
from tests.tools.bench import Bench

RAN = "ran-on-the-host"


class Trap(NamedTuple):
    """Files that make git run a program, and a command of a user who only looks.

    Args:
        before: files that are there already; none of them is one that only a user may write.
        writes: files that a tool writes; the last of them completes the trap.
        is_repository: whether ``git init`` was run in the workspace.
        configured: the user's own git config.
    """

    writes: Mapping[str, str]
    look: Sequence[str]
    folder: str = "."
    before: Mapping[str, str] = {}
    is_repository: bool = False
    configured: Mapping[str, str] = {}


CONFIG = f"""[core]
\trepositoryformatversion = 0
\tbare = false
\tworktree = .
\tfsmonitor = touch {RAN}; false
"""
"""Of a repository whose every ``git status`` leaves a file in the work tree."""

COMMON_CONFIG = """[core]
\trepositoryformatversion = 1
[extensions]
\tworktreeConfig = true
"""


STATUS = ("status",)
HEAD = "ref: refs/heads/main\n"

TRAPS = {
    "a repository at the top": Trap(
        {"config": CONFIG, "HEAD": HEAD, "objects/x": "", "refs/x": ""}, STATUS
    ),
    "HEAD last": Trap({"config": CONFIG, "objects/x": "", "refs/x": "", "HEAD": HEAD}, STATUS),
    "a repository in a subfolder": Trap(
        {"sub/config": CONFIG, "sub/HEAD": HEAD, "sub/refs/x": "", "sub/objects/a/b": ""},
        STATUS,
        folder="sub",
    ),
    "the parts of a repository elsewhere": Trap(
        {
            "common/config": COMMON_CONFIG,
            "common/objects/x": "",
            "common/refs/x": "",
            "sub/config.worktree": CONFIG,
            "sub/HEAD": HEAD,
            "sub/commondir": "../common\n",
        },
        STATUS,
        folder="sub",
    ),
    "a filter": Trap(
        {".gitattributes": "*.txt filter=mine\n"},
        ("diff",),
        before={"a.txt": "changed\n"},
        is_repository=True,
        configured={"filter.mine.clean": f"touch {RAN}; cat"},
    ),
    "a filter by a macro": Trap(
        {".gitattributes": "# x\n[attr]m -text filter=mine\n*.txt m\n"},
        ("diff",),
        before={"a.txt": "changed\n"},
        is_repository=True,
        configured={"filter.mine.clean": f"touch {RAN}; cat"},
    ),
    "a macro that was there": Trap(
        {".gitattributes": "[attr]m filter=mine\n*.bin m\n*.txt m\n"},
        ("diff",),
        before={"a.txt": "changed\n", ".gitattributes": "[attr]m filter=mine\n*.bin m\n"},
        is_repository=True,
        configured={"filter.mine.clean": f"touch {RAN}; cat"},
    ),
    "a macro of the top folder": Trap(
        {"sub/.gitattributes": "*.txt m\n"},
        ("diff",),
        before={"sub/a.txt": "changed\n", ".gitattributes": "[attr]m filter=mine\n"},
        is_repository=True,
        configured={"filter.mine.clean": f"touch {RAN}; cat"},
    ),
    "a macro of the repository": Trap(
        {".gitattributes": "*.txt text m\n"},
        ("diff",),
        before={"a.txt": "changed\n", ".git/info/attributes": "[attr]m filter=mine\n"},
        is_repository=True,
        configured={"filter.mine.clean": f"touch {RAN}; cat"},
    ),
    "a macro of the user": Trap(
        {"sub/.gitattributes": "*.txt m text\n"},
        ("diff",),
        before={"sub/a.txt": "changed\n", "../outside/attributes": "[attr]m filter=mine\n"},
        is_repository=True,
        configured={
            "core.attributesFile": "~/attributes",
            "filter.mine.clean": f"touch {RAN}; cat",
        },
    ),
    "a macro that uses another": Trap(
        {".gitattributes": "[attr]n m\n"},
        ("diff",),
        before={
            "sub/a.txt": "changed\n",
            "sub/.gitattributes": "*.txt n\n",
            ".git/info/attributes": "[attr]m filter=mine\n",
        },
        is_repository=True,
        configured={"filter.mine.clean": f"touch {RAN}; cat"},
    ),
    "a driver of diff": Trap(
        {".gitattributes": "*.txt text\n*.txt\tdiff=mine\n"},
        ("diff",),
        before={"a.txt": "changed\n"},
        is_repository=True,
        configured={"diff.mine.textconv": f"touch {RAN}; cat"},
    ),
}


def run_git(bench: Bench, folder: Path, *words: str) -> str:
    """Run the real git of a user with that config."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(bench.outside),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(bench.outside / "gitconfig"),
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def prepare(bench: Bench, trap: Trap) -> None:
    (bench.outside / "gitconfig").write_text("[user]\n\tname = u\n\temail = u@example.org\n")
    for name, value in trap.configured.items():
        run_git(bench, bench.outside, "config", "--file", "gitconfig", name, value)
    if trap.is_repository:
        run_git(bench, bench.work, "init", "-q")
        for name in trap.before:
            bench.put(name, "first\n")
        run_git(bench, bench.work, "add", "-A")
        run_git(bench, bench.work, "commit", "-qm", "first")
    for name, content in trap.before.items():
        bench.put(name, content)


def added(path: str, content: str, before: str = "") -> str:
    """Return a patch by which a file has that content."""
    old, new = before.splitlines(), content.splitlines()
    body = "".join([f"-{line}\n" for line in old] + [f"+{line}\n" for line in new])
    first = f"-1,{len(old)}" if old else "-0,0"
    hunk = f"@@ {first} +1,{len(new)} @@\n{body}" if body else ""
    head = f"--- a/{path}\n" if old else "new file mode 100644\n--- /dev/null\n"
    return f"diff --git a/{path} b/{path}\n{head}+++ b/{path}\n{hunk}"


async def access_of(bench: Bench, tool: str, **args: Any) -> Access:
    found = bench.registry.get(tool)
    assert found is not None
    return await found.access(found.validate(args), bench.context)


def verdict(access: Access, mode: PermissionMode = "auto") -> str:
    return judge(Case("write", access, mode, ())).verdict


@pytest.mark.slow(keep=4)
@pytest.mark.behaviour("repositories_of_another_name_are_asked_about")
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
async def test_code_does_not_run_on_the_host_after_unasked_writes(bench: Bench, trap: Trap) -> None:
    prepare(bench, trap)
    *first, last = trap.writes.items()
    for path, content in first:
        assert verdict(await access_of(bench, "write", path=path, content=content)) == "allow"
        await bench.call("write", path=path, content=content)
    path, content = last
    access = await access_of(bench, "write", path=path, content=content)
    assert verdict(access) == verdict(access, "ask") == "ask"
    assert verdict(access, "yolo") == "allow"
    run_git(bench, bench.work / trap.folder, *trap.look)
    assert list(bench.work.rglob(RAN)) == []
    # The trap is one: written all the same, the real git runs the program.
    await bench.call("write", path=path, content=content)
    said = run_git(bench, bench.work / trap.folder, *trap.look)
    assert list(bench.work.rglob(RAN)) != [], said


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
async def test_a_patch_is_judged_by_its_result(bench: Bench, trap: Trap) -> None:
    prepare(bench, trap)
    files = [
        added(path, content or "x\n", trap.before.get(path, ""))
        for path, content in trap.writes.items()
    ]
    assert verdict(await access_of(bench, "patch", patch="".join(files))) == "ask"
    if not trap.is_repository:
        assert verdict(await access_of(bench, "patch", patch="".join(files[:-1]))) == "allow"
        removed = "--- a/sub/HEAD\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        bench.put("sub/HEAD", "x\n")
        bench.put("sub/objects/x", "")
        turned = removed + added("sub/refs/x", "x\n")
        assert verdict(await access_of(bench, "patch", patch=turned)) == "allow"


async def test_an_edit_of_attributes_is_judged_by_its_result(bench: Bench) -> None:
    bench.put(".gitattributes", "*.c text\n*.bin binary\n*.z fil=x\n*.lfs filter=lfs\n")
    harmless = await access_of(bench, "edit", path=".gitattributes", oldText="*.c", newText="*.h")
    assert verdict(harmless) == "allow"
    completed = await access_of(
        bench, "edit", path=".gitattributes", oldText="fil=x", newText="filter=x"
    )
    assert verdict(completed) == "ask"
    (bench.work / "link").symlink_to(".gitattributes")
    linked = await access_of(bench, "edit", path="link", oldText="text", newText="diff=x")
    assert verdict(linked) == "ask"


@pytest.mark.parametrize(
    "content",
    [
        "*.c text\n",
        "# *.c filter=x\n",
        "\ufeff# a comment of some words\n* text=auto\n",
        "*.bin binary -diff\n",
        "*.txt !merge eol=lf\n",
        "*.c -m !n whitespace=tab-in-indent o=p ident\n",
        "gen/** linguist-generated -text\n*.h linguist-language=C\n",
        '"of two words" export-ignore\n"\\"quoted\\" #" text\n',
        "",
    ],
)
async def test_attributes_without_a_driver_are_written_unasked(bench: Bench, content: str) -> None:
    access = await access_of(bench, "write", path="a/.gitattributes", content=content)
    assert verdict(access) == "allow"


@pytest.mark.parametrize(
    "line",
    [
        "[!#]*.txt filter=mine\n",
        '"a#.txt" diff=mine\n',
        "*.txt\rfilter=mine\n",
        "*.txt text\rmerge=mine",
        '"*.txt"filter=mine\n',
        '\ufeff"*.txt"filter=mine\n',
        "\ufeff*.txt filter=mine\n",
        "*.txt m\n",
        "*.txt -text m\n",
        '"*.txt"m\n',
        "*.txt m\0=\n",
        "*.c text\n\ufeff#*.txt m\n",
    ],
)
async def test_a_driver_is_found_in_every_line_that_git_reads(bench: Bench, line: str) -> None:
    run_git(bench, bench.work, "init", "-q")
    bench.put(".git/info/attributes", "[attr]m filter=mine\n")
    access = await access_of(bench, "write", path=".gitattributes", content=line)
    assert verdict(access) == "ask"
    await bench.call("write", path=".gitattributes", content=line)
    names = ("a.txt", "a#.txt", "\ufeff#a.txt")
    said = run_git(bench, bench.work, "check-attr", "filter", "diff", "merge", "--", *names)
    assert ": mine" in said


CONFIGURED = {
    "hooks elsewhere": ("[core]\n\thooksPath = .githooks\n", ".githooks/pre-commit"),
    "hooks on the line of the section": (
        "[core] hooksPath = x/hooks ; ours\n",
        "x/hooks/pre-commit",
    ),
    "hooks of an included config": ("[include]\n\tpath = ../.gitconfig\n", "included/pre-commit"),
    "an included config": ("[include]\n\tpath = ../.gitconfig\n", ".gitconfig"),
    "a program": ("[core]\n\tfsmonitor = ./scripts/watch\n", "scripts/watch"),
    "a script": ("[core]\n\tfsmonitor = sh watch.sh\n", "watch.sh"),
    "the target of a hook": ("", "scripts/hook"),
    "attributes elsewhere": (
        f'[core]\n\tattributesFile = attrs\n[filter "f"]\n\tclean = touch {RAN}; cat\n',
        "attrs",
    ),
    "a config by a condition": ('[includeIf "gitdir:**"]\n\tpath = ../.gitconfig\n', ".gitconfig"),
}


@pytest.mark.parametrize(("config", "path"), CONFIGURED.values(), ids=CONFIGURED)
async def test_what_the_config_of_a_repository_names_is_asked_about(
    bench: Bench, config: str, path: str
) -> None:
    (bench.outside / "gitconfig").write_text("[user]\n\tname = u\n\temail = u@example.org\n")
    run_git(bench, bench.work, "init", "-q")
    bench.put(".gitconfig", "[core]\n\thooksPath = included\n")
    bench.put(
        path, bench.work.joinpath(path).read_text() if path == ".gitconfig" else "#!/bin/sh\n"
    )
    (bench.work / path).chmod(0o755)
    with (bench.work / ".git" / "config").open("a") as file:
        file.write(config)
    hooks = bench.work / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "pre-commit").symlink_to("../../scripts/hook")
    content = f"#!/bin/sh\ntouch {RAN}\n"
    if path == ".gitconfig":
        content = f"[core]\n\tfsmonitor = touch {RAN}; false\n"
    if path == "attrs":
        content = "*.txt filter=f\n"
        bench.put("a.txt", "x\n")
        run_git(bench, bench.work, "add", "a.txt")
        bench.put("a.txt", "yy\n")
    access = await access_of(bench, "write", path=path, content=content)
    assert verdict(access) == "ask"
    assert verdict(await access_of(bench, "write", path="src/main.c", content="")) == "allow"
    await bench.call("write", path=path, content=content)
    said = run_git(bench, bench.work, "status") + run_git(bench, bench.work, "diff")
    said += run_git(bench, bench.work, "commit", "--allow-empty", "-m", "x")
    assert list(bench.work.rglob(RAN)) != [], said


OWN_VARIABLES = {
    "hooks": (".gitconfig", "[core]\n\thooksPath = .githooks\n", ".githooks/pre-commit"),
    "a program": (".gitconfig", "[core]\n\tfsmonitor = tools/watch\n", "tools/watch"),
    "hooks of another file": (
        ".config/git/config",
        "[core]\n\thooksPath = .githooks\n",
        ".githooks/pre-commit",
    ),
    "the config itself": (".gitconfig", "-> ../work/dotfiles/gitconfig", "dotfiles/gitconfig"),
    "attributes": (".config/git/attributes", "-> ../../../work/attributes", "attributes"),
}


@pytest.mark.parametrize(("config", "content", "path"), OWN_VARIABLES.values(), ids=OWN_VARIABLES)
async def test_what_the_config_of_the_user_names_in_every_repository_is_asked_about(
    bench: Bench, config: str, content: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(bench.outside))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    run_git(bench, bench.work, "init", "-q")
    (bench.outside / "gitconfig").symlink_to(config)
    (bench.outside / config).parent.mkdir(parents=True, exist_ok=True)
    written = f"#!/bin/sh\ntouch {RAN}\n"
    if content.startswith("-> "):
        (bench.outside / config).symlink_to(content.removeprefix("-> "))
        written = f"[core]\n\tfsmonitor = touch {RAN}\n"
    else:
        (bench.outside / config).write_text(content)
        bench.put(path, "#!/bin/sh\n").chmod(0o755)
    assert verdict(await access_of(bench, "write", path=path, content=written)) == "ask"
    assert verdict(await access_of(bench, "write", path="src/main.c", content="")) == "allow"
    await bench.call("write", path=path, content=written)
    said = run_git(bench, bench.work, "status")
    named = ("-c", "user.name=u", "-c", "user.email=u@example.org")
    said += run_git(bench, bench.work, *named, "commit", "--allow-empty", "-m", "x")
    assert list(bench.work.rglob(RAN)) != [], said


async def test_the_config_of_the_user_is_asked_about_where_there_is_no_repository(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(bench.outside))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (bench.outside / ".gitconfig").symlink_to("../work/dotfiles/gitconfig")
    (bench.outside / "gitconfig").symlink_to(".gitconfig")
    bench.put("dotfiles/gitconfig", "[user]\n\tname = u\n")
    elsewhere = bench.outside / "elsewhere"
    elsewhere.mkdir()
    run_git(bench, elsewhere, "init", "-q")
    content = f"[core]\n\tfsmonitor = touch {RAN}; false\n"
    access = await access_of(bench, "write", path="dotfiles/gitconfig", content=content)
    assert verdict(access) == "ask"
    assert verdict(await access_of(bench, "write", path="dotfiles/x", content="")) == "allow"
    await bench.call("write", path="dotfiles/gitconfig", content=content)
    run_git(bench, elsewhere, "status")
    assert (elsewhere / RAN).exists()


@pytest.mark.parametrize("place", ["worktree", "above"])
async def test_what_the_config_of_a_repository_elsewhere_names_is_asked_about(
    bench: Bench, place: str
) -> None:
    (bench.outside / "gitconfig").write_text("[user]\n\tname = u\n\temail = u@example.org\n")
    if place == "worktree":
        run_git(bench, bench.outside, "init", "-q")
        run_git(bench, bench.outside, "commit", "-q", "--allow-empty", "-m", "one")
        run_git(bench, bench.outside, "worktree", "add", "-q", str(bench.work / "tree"))
        run_git(bench, bench.outside, "config", "core.hooksPath", "hooks")
    else:
        run_git(bench, bench.work.parent, "init", "-q")
        run_git(bench, bench.work.parent, "config", "core.hooksPath", "work/tree/hooks")
    for path in ("tree/hooks/pre-commit", "tree/hooks/deep/x"):
        assert verdict(await access_of(bench, "write", path=path, content="")) == "ask"
    assert verdict(await access_of(bench, "write", path="tree/a", content="")) == "allow"


async def test_writes_beside_a_config_that_is_too_large_to_read_are_asked_about(
    bench: Bench,
) -> None:
    run_git(bench, bench.work, "init", "-q")
    config = bench.work / ".git" / "config"
    plain = config.read_text()
    hooks = "[core]\n\thooksPath = hooks\n"
    config.write_text(plain + "# x\n" * 20_000 + hooks)
    for path, said in (("hooks/pre-commit", "ask"), ("a", "allow")):
        assert verdict(await access_of(bench, "write", path=path, content="")) == said
    config.write_text(plain + "# x\n" * (CONFIG_BYTES_MAX // 4) + hooks)
    for path in ("hooks/pre-commit", "a"):
        assert verdict(await access_of(bench, "write", path=path, content="")) == "ask"


async def test_several_includes_and_hooks_that_are_missing_are_not_too_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.tools.sandbox.git_folders._CONFIGS_MAX", 10)
    monkeypatch.setattr("nousd.tools.sandbox.git_folders._configs_of_user", tuple)
    run_git(bench, bench.work, "init", "-q")
    lines = "".join(f"[include]\n\tpath = ../{number}.config\n" for number in range(12))
    with (bench.work / ".git" / "config").open("a") as file:
        file.write(f"{lines}[core]\n\thooksPath = none/_\n")
    for number in range(8):
        bench.put(f"{number}.config", "[user]\n\tname = u\n")
    assert verdict(await access_of(bench, "write", path="a", content="")) == "allow"
    assert verdict(await access_of(bench, "write", path="none/_/x", content="")) == "ask"
    bench.put("8.config", "")
    assert verdict(await access_of(bench, "write", path="a", content="")) == "ask"


@pytest.mark.parametrize(
    ("there", "path"),
    [
        (("objects/x",), "config"),
        (("refs/x", "objects/x"), "config"),
        ((), "HEAD"),
        (("HEAD", "refs/x"), "src/config"),
        (("HEAD",), "HEAD"),
        (("sub/HEAD", "objects/x"), "refs/x"),
    ],
)
async def test_a_file_merely_called_like_one_of_gits_is_written_unasked(
    bench: Bench, there: Sequence[str], path: str
) -> None:
    for name in there:
        bench.put(name, "x")
    assert verdict(await access_of(bench, "write", path=path, content="x")) == "allow"


@pytest.mark.parametrize("path", ["config", "src/main.c", "hooks/pre-commit"])
async def test_every_write_into_a_repository_without_that_name_is_asked_about(
    bench: Bench, path: str
) -> None:
    for name in ("HEAD", "refs/heads/main", "objects/x"):
        bench.put(f"stored/{name}", "x")
    for tool, args in (("write", {"content": "x"}), ("edit", {"oldText": "a", "newText": "b"})):
        access = await access_of(bench, tool, path=f"stored/{path}", **args)
        assert verdict(access) == "ask"


async def test_links_count_as_the_parts_of_a_repository(bench: Bench) -> None:
    (bench.work / "sub").mkdir()
    (bench.work / "sub" / "HEAD").symlink_to("refs/heads/none")
    (bench.work / "sub" / "objects").symlink_to(bench.outside)
    assert verdict(await access_of(bench, "write", path="sub/refs/x", content="")) == "ask"


async def test_what_another_call_completes_meanwhile_is_refused_at_the_write(bench: Bench) -> None:
    bench.put("HEAD", HEAD)
    bench.put("objects/x", "")
    access = await access_of(bench, "write", path="other", content="")
    closed = judge(Case("write", access, "auto", ())).closed
    bench.restrict(bench.context.path_sandbox.restrict(repositories=closed.repositories))
    with pytest.raises(ToolError, match="path_denied: refs/x"):
        await bench.call("write", path="refs/x", content="")
    assert not (bench.work / "refs").exists()
    with pytest.raises(ToolError, match="path_denied: refs/x"):
        await bench.call("patch", patch=added("refs/x", "x\n"))
    assert not (bench.work / "refs").exists()


@pytest.mark.behaviour("writes_are_judged_again_where_they_happen")
@pytest.mark.parametrize("tool", ["edit", "patch"])
async def test_two_calls_at_once_cannot_put_together_what_neither_may_write(
    bench: Bench, tool: str
) -> None:
    """Each was judged before the other changed the file: then the second did not even fit."""
    bench.put(".gitattributes", "*.z f=x\n")
    steps = [("*.z f=x", "*.z fil=x"), ("*.z fil=x", "*.z filter=x")]
    if tool == "edit":
        calls = [{"path": ".gitattributes", "oldText": old, "newText": new} for old, new in steps]
    else:
        name = ".gitattributes"
        calls = [
            {"patch": f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}\n+{new}\n"}
            for old, new in steps
        ]
    judgements = [
        judge(Case(tool, await access_of(bench, tool, **args), "auto", ())) for args in calls
    ]
    assert [judgement.verdict for judgement in judgements] == ["allow", "allow"]
    contexts = [restricted(bench.context, judgement) for judgement in judgements]
    bench.context = contexts[0]
    await bench.call(tool, **calls[0])
    bench.context = contexts[1]
    with pytest.raises(
        ToolError, match=r"^path_denied: \.gitattributes: writing it is not allowed"
    ):
        await bench.call(tool, **calls[1])
    assert (bench.work / ".gitattributes").read_text() == "*.z fil=x\n"


def restricted(context: ToolContext, judgement: Judgement) -> ToolContext:
    """Return the context in which the gate lets a judged call run."""
    return runner._restrict_context(context, judgement.closed, ())


def test_yolo_asks_about_nothing_and_denials_still_deny() -> None:
    access = Access(classes=frozenset({"write"}), paths=("sub/HEAD",), obeyed="git takes it")
    named = Access(classes=frozenset({"write"}), paths=(".envrc",))
    for found in (access, named):
        assert judge(Case("write", found, "yolo", ())).verdict == "allow"
        for text in (f"write({found.paths[0]})", "write", "write(**)"):
            rules = rules_of("deny", [text], "a test")
            assert judge(Case("write", found, "yolo", rules)).verdict == "deny"
            asks = rules_of("ask", [text], "a test")
            assert judge(Case("write", found, "yolo", asks)).verdict == "allow"


def test_a_grant_of_exactly_that_write_is_the_only_permission_that_counts() -> None:
    access = Access(classes=frozenset({"write"}), paths=("sub/HEAD",), obeyed="git takes it")

    def judged(texts: Sequence[str], *, is_grant: bool) -> str:
        rules = rules_of("allow", texts, "a test", is_grant=is_grant)
        return judge(Case("write", access, "auto", rules)).verdict

    assert judged(["*", "write(**)"], is_grant=False) == "ask"
    assert judged(["write(sub/*)"], is_grant=True) == "ask"
    assert judged(["write(sub/HEAD)"], is_grant=True) == "allow"
