"""What a sandboxed command may do, what it may not, and what is reported about it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from nousd.errors import ToolError
from nousd.tools.sandbox import deny_scan as rule_walk
from nousd.tools.sandbox import filter_listener
from nousd.tools.sandbox.deny_scan import Search
from nousd.tools.sandbox.interface import Request
from nousd.tools.sandbox.landlock import Landlock
from nousd.tools.sandbox.mount_placeholders import MountPlaceholders
from nousd.tools.sandbox.visible_paths import ETC, SandboxChoices, places_of
from nousd.wire.objects.tool_footprint import Access
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import SECRET, Bench, Lifeline
from tests.tools.sandbox_bench import CHOSEN, SandboxBench

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes

REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.EISDIR}


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True
    )


@pytest.fixture
def repository(sandbox_bench: SandboxBench) -> SandboxBench:
    """A bench whose workspace is a repository with a hook, a directory, and rules for agents."""
    git(sandbox_bench.work, "init", "-q")
    (sandbox_bench.work / ".git" / "hooks" / "post-commit").write_text("#!/bin/sh\n")
    sandbox_bench.put("src/a.py", "a\n")
    sandbox_bench.put("AGENTS.md", "be good\n")
    git(sandbox_bench.work, "add", "src", "AGENTS.md")
    git(sandbox_bench.work, "commit", "-qm", "first")
    return sandbox_bench


# --- allowed actions -----------------------------------------------------------------------------


async def test_a_command_reads_and_writes_in_the_workspace(sandbox_bench: SandboxBench) -> None:
    sandbox_bench.put("src/old", "old\n")
    command = "cat src/old; echo new > src/new; mkdir src/deep; mv src/old src/deep; rm -r src/deep"
    assert await sandbox_bench.text("bash", command=command) == "old"
    assert (sandbox_bench.work / "src" / "new").read_text() == "new\n"
    assert {path.name for path in (sandbox_bench.work / "src").iterdir()} == {"new"}


@pytest.mark.slow
async def test_common_programs_work(sandbox_bench: SandboxBench) -> None:
    command = """set -e
echo data | tee "$TMPDIR/t" | sort | head -n 1
diff <(echo 1) <(echo 1) && ls /usr/bin >/dev/null && id -u && sh -c 'sleep 0 & wait'
head -c 4 /dev/urandom | wc -c; test -c /dev/null; echo x >/dev/null; getent passwd root
"""
    result = await sandbox_bench.call("bash", command=command)
    assert not result.is_error, result.text
    assert result.text.startswith("data\n")


@pytest.mark.slow
async def test_processes_of_one_command_have_socket_pairs_and_in_bubblewrap_loopback(
    sandbox_bench: SandboxBench,
) -> None:
    outcomes = await sandbox_bench.attack("""
import socket
def over_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname())
one, other = socket.socketpair()
tried("a pair", lambda: one.sendall(b"x"))
tried("loopback", over_loopback)
""")
    assert outcomes == {
        "a pair": "done",
        "loopback": "done" if sandbox_bench.is_bubblewrap else errno.EPERM,
    }


@pytest.mark.slow
async def test_configured_paths_are_accessible_by_name_and_from_home(
    sandbox_bench: SandboxBench, tmp_path: Path
) -> None:
    tools, cache = sandbox_bench.home / ".tools", sandbox_bench.home / ".cache"
    for folder in (tools, cache):
        folder.mkdir()
        (folder / "file").write_text("here\n")
    chosen = msgspec.structs.replace(
        CHOSEN, read_paths=(*CHOSEN.read_paths, tools), write_paths=(cache,)
    )
    (tmp_path / "other").mkdir()
    bench = SandboxBench(tmp_path / "other", sandbox_bench.name, chosen)
    outcomes = await bench.attack(f"""
home = os.path.expanduser("~")
tried("read by name", lambda: open({str(tools / "file")!r}).read())
tried("read from home", lambda: open(home + "/.tools/file").read())
tried("write the cache", lambda: open(home + "/.cache/new", "w").write("x"))
tried("write the tools", lambda: open(home + "/.tools/new", "w"))
tried("read beside them", lambda: open({str(sandbox_bench.home / ".ssh" / "id")!r}).read())
""")
    assert outcomes.pop("write the tools") in {errno.EROFS, errno.EACCES}
    assert outcomes.pop("read beside them") in {errno.ENOENT, errno.EACCES}
    assert set(outcomes.values()) == {"done"}
    assert (cache / "new").exists()


@pytest.mark.slow
async def test_what_is_shown_of_the_machines_settings_is_as_it_is_there(
    sandbox_bench: SandboxBench, tmp_path: Path
) -> None:
    more = (Path("/etc/hostname"), Path("/etc/skel"))
    chosen = msgspec.structs.replace(CHOSEN, read_paths=(*CHOSEN.read_paths, *more))
    (tmp_path / "other").mkdir()
    bench = SandboxBench(tmp_path / "other", sandbox_bench.name, chosen)
    shown = [path for path in map(Path, (*ETC, *map(str, more))) if path.is_file()]
    said = await bench.run_python(f"""
import hashlib, json
several = {[*map(str, shown)]!r}
print(json.dumps({{path: hashlib.sha256(open(path, "rb").read()).hexdigest() for path in several}}))
""")
    seen = json.loads(said.text)
    assert seen == {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in shown}
    outcomes = await bench.attack("""
tried("list the certificates", lambda: os.listdir("/etc/ssl/certs")[0])
tried("list what was chosen", lambda: os.listdir("/etc/skel")[0])
tried("change a file", lambda: open("/etc/passwd", "a"))
tried("change a folder", lambda: open("/etc/ssl/certs/new", "w"))
tried("make a file beside them", lambda: open("/etc/new", "w"))
tried("read what is not shown", lambda: open("/etc/shadow").read())
""")
    assert outcomes.pop("list the certificates") == "done"
    assert outcomes.pop("list what was chosen") == "done"
    assert set(outcomes.values()) <= {errno.EROFS, errno.EACCES, errno.ENOENT}


@pytest.mark.slow
async def test_a_workspace_in_a_configured_path_is_sandboxed_like_any_other(
    sandbox_bench: SandboxBench, tmp_path: Path
) -> None:
    around = tmp_path / "around"
    chosen = msgspec.structs.replace(
        CHOSEN,
        read_paths=(*CHOSEN.read_paths, around, around / "work" / "sub" / "tools"),
        write_paths=(around / "work" / "cache",),
    )
    bench = SandboxBench(around, sandbox_bench.name, chosen)
    for folder in ("work/cache", "work/sub/tools", "kept"):
        (around / folder).mkdir(parents=True)
    bench.put("sub/AGENTS.md", "x")
    outcomes = await bench.attack(f"""
tried("read around", lambda: open("../outside/secret.txt").read())
tried("write the cache", lambda: open("cache/x", "w"))
tried("write below", lambda: open("sub/tools/x", "w"))
tried("write around", lambda: open("../kept/x", "w"))
tried("make around", lambda: os.mkdir({str(around / "x")!r}))
tried("change what is closed", lambda: open("sub/AGENTS.md", "w"))
tried("make what is closed", lambda: os.mkdir(".nousd/x"))
tried("read our state", lambda: open(".state/log.db").read())
""")
    allowed = ["read around", "write the cache", "write below"]
    assert [outcomes.pop(what) for what in allowed] == ["done"] * 3
    assert {
        what: got for what, got in outcomes.items() if got not in REFUSED | {errno.ENOENT}
    } == {}


@pytest.mark.slow
async def test_a_command_can_commit(repository: SandboxBench) -> None:
    git(repository.work, "config", "branch.main.merge", "refs/heads/main")
    result = await repository.call(
        "bash",
        command="echo b >> src/a.py; git -c user.name=a -c user.email=a@b commit -qam second;"
        " git log --oneline | wc -l",
    )
    assert "2" in result.text.splitlines()


# --- protected paths -----------------------------------------------------------------------------

CHANGING = """
import shutil
def write(name):
    with open(name, "a") as file:
        file.write("attack")
def replace(name):
    with open("outcomes2", "w") as file:
        file.write("attack")
    os.replace("outcomes2", name)
"""


@pytest.mark.slow
async def test_files_that_git_runs_or_agents_obey_cannot_be_changed(
    repository: SandboxBench,
) -> None:
    before = {
        name: (repository.work / name).read_bytes()
        for name in (".git/config", ".git/hooks/post-commit", "AGENTS.md")
    }
    (repository.work / "outcomes2").touch()
    outcomes = await repository.attack(f"""{CHANGING}
for name in {list(before)}:
    tried("write " + name, lambda: write(name))
    tried("replace " + name, lambda: replace(name))
    tried("remove " + name, lambda: os.remove(name))
    tried("make executable " + name, lambda: os.link(name, "other"))
tried("make a hook", lambda: write(".git/hooks/pre-commit"))
tried("make hooks aside", lambda: os.rename(".git/hooks", ".git/old"))
tried("make another .git", lambda: os.rename(".git", "old"))
tried("remove .git", lambda: os.rmdir(".git"))
tried("a config of a worktree", lambda: write(".git/config.worktree"))
tried("another common folder", lambda: write(".git/commondir"))
tried("one that is moved there", lambda: replace(".git/commondir"))
tried("a module", lambda: os.makedirs(".git/modules/m/hooks"))
tried("our config", lambda: os.makedirs(".nousd/x"))
tried("write our config", lambda: write(".nousd/config.toml"))
""")
    assert {
        what: got for what, got in outcomes.items() if got not in REFUSED | {errno.ENOENT}
    } == {}
    for name, content in before.items():
        assert (repository.work / name).read_bytes() == content
    assert not (repository.work / ".git" / "hooks" / "pre-commit").exists()


@pytest.mark.slow
async def test_paths_that_the_git_config_names_cannot_be_changed(
    repository: SandboxBench,
) -> None:
    repository.put("tools/hooks/pre-commit", "#!/bin/sh\n")
    repository.put("tools/git.inc", "")
    git(repository.work, "config", "core.hooksPath", "tools/hooks")
    git(repository.work, "config", "include.path", "../tools/git.inc")
    repository.put("scripts/watch", "#!/bin/sh\n")
    repository.put("scripts/clean.py", "")
    git(repository.work, "config", "core.fsmonitor", "scripts/watch")
    git(repository.work, "config", "filter.notes.clean", "python3 ./scripts/clean.py --all %f")
    outcomes = await repository.attack(f"""{CHANGING}
tried("a hook", lambda: write("tools/hooks/pre-commit"))
tried("another hook", lambda: write("tools/hooks/post-checkout"))
tried("the hooks", lambda: os.rename("tools/hooks", "tools/old"))
tried("what is included", lambda: write("tools/git.inc"))
tried("the folder of both", lambda: os.rename("tools", "old"))
tried("a program", lambda: write("scripts/watch"))
tried("one with arguments", lambda: replace("scripts/clean.py"))
tried("one that is removed", lambda: os.remove("scripts/clean.py"))
""")
    assert set(outcomes.values()) <= REFUSED


async def test_no_placeholder_is_left_after_a_command(
    repository: SandboxBench,
) -> None:
    before = {path for path in repository.work.rglob("*") if "objects" not in path.parts}
    await repository.call("bash", command="true")
    assert {path for path in repository.work.rglob("*") if "objects" not in path.parts} == before


KILLED_DAEMON = """
import os, signal, sys
from pathlib import Path
from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.interface import Request
from tests.tools.sandbox_bench import CHOSEN
request = Request(argv=["/bin/true"], env={}, workdir=Path(sys.argv[1]))
with Detector("bubblewrap", CHOSEN)().hold(request):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("has_repository", [False, True])
@pytest.mark.slow
async def test_the_next_command_removes_the_placeholders_of_a_killed_daemon(
    has_repository: bool, tmp_path: Path
) -> None:
    sandbox_bench = SandboxBench(tmp_path, "bubblewrap")
    if has_repository:
        git(sandbox_bench.work, "init", "-q")
    (sandbox_bench.work / "hooks").mkdir()
    before = set(sandbox_bench.work.rglob("*"))
    daemon = [sys.executable, "-c", KILLED_DAEMON, str(sandbox_bench.work)]
    ended = await trio.run_process(daemon, cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert set(sandbox_bench.work.rglob("*")) - before
    await sandbox_bench.call("bash", command="mkdir .nousd/x .git/modules .git/modules/x")
    assert set(sandbox_bench.work.rglob("*")) == before


async def test_what_a_user_has_where_a_placeholder_would_stand_is_kept(
    repository: SandboxBench,
) -> None:
    files = {".git/config": "", ".git/config.worktree": "", ".git/commondir": ".\n"}
    for name, content in files.items():
        repository.put(name, content)
    folder = repository.work / ".git" / "modules"
    folder.mkdir()
    folder.chmod(0o1777)
    await repository.call("bash", command="true")
    assert {name: (repository.work / name).read_text() for name in files} == files
    assert folder.is_dir()


async def test_the_next_command_removes_a_file_that_a_killed_daemon_began_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_bench = SandboxBench(tmp_path, "bubblewrap")
    git(sandbox_bench.work, "init", "-q")

    def killed(_: int, __: bytes) -> int:
        raise KeyboardInterrupt

    place = sandbox_bench.work / ".git" / "commondir"
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            MountPlaceholders().provide([place]).__enter__()
    assert place.read_bytes() == b""
    await sandbox_bench.call("bash", command="true")
    assert not place.exists()


@pytest.mark.slow
@pytest.mark.parametrize("ends_first", [0, 1])
async def test_a_placeholder_stays_while_another_command_needs_it(
    ends_first: int, tmp_path: Path
) -> None:
    sandbox_bench = SandboxBench(tmp_path, "bubblewrap")
    before = sandbox_bench.names()
    gates = [sandbox_bench.work / "gate0", sandbox_bench.work / "gate1"]
    ended = [trio.Event(), trio.Event()]
    texts: list[str] = []

    async def run(number: int) -> None:
        command = f"cat gate{number}; mkdir .nousd/x || mkdir -p .git/hooks || echo refused"
        texts.append(await sandbox_bench.text("bash", command=command))
        ended[number].set()

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            writers = []
            for number, gate in enumerate(gates):
                os.mkfifo(gate)
                nursery.start_soon(run, number)
                writers.append(await trio.to_thread.run_sync(partial(gate.open, "w")))
            writers[ends_first].close()
            await ended[ends_first].wait()
            writers[1 - ends_first].close()
    assert [text.splitlines()[-1] for text in texts] == ["refused", "refused"]
    assert sandbox_bench.names() - {"gate0", "gate1"} == before


async def test_the_result_explains_the_additional_refusals_of_landlock(
    sandbox_bench: SandboxBench,
) -> None:
    text = await sandbox_bench.text("bash", command="echo x > AGENTS.md; true")
    notice = "[In this sandbox "
    assert (notice in text) is not sandbox_bench.is_bubblewrap
    assert notice not in await sandbox_bench.text("bash", command="cat no-such-file")


@pytest.mark.slow
async def test_a_workspace_without_a_repository_is_worked_in_at_its_top(
    sandbox_bench: SandboxBench,
) -> None:
    if not sandbox_bench.is_bubblewrap and (reason := filter_listener.why_not()) is not None:
        pytest.skip(reason)
    result = await sandbox_bench.call(
        "bash",
        command="umask 022; echo x > a && mkdir d && mv a d/b && ln -s d/b link && cp -rp d e"
        " && ln e/b name && sed -i s/x/y/ link d/b && chmod 755 d/b && rm -r e && cat link name"
        " && touch -d 2001-01-01 name && : > AGENTS.md.txt && mkdir -p deep/er && mv deep/er .",
    )
    assert not result.is_error
    assert result.text == "y\nx"
    assert {"d", "link", "name", "AGENTS.md.txt", "deep", "er"} <= sandbox_bench.names()


async def test_a_new_file_for_agents_is_set_aside_with_a_notice_or_refused(
    sandbox_bench: SandboxBench,
) -> None:
    result = await sandbox_bench.call("bash", command="echo obey > OpenCode.jsonc; echo done")
    if not sandbox_bench.is_bubblewrap:
        assert "Permission denied" in result.text
        assert "OpenCode.jsonc" not in sandbox_bench.names()
        return
    assert result.text.startswith("done\n\n[OpenCode.jsonc is a file that agents and tools obey;")
    (aside,) = sandbox_bench.names() & set(re.findall(r"set-aside\.\S+\.jsonc", result.text))
    assert (sandbox_bench.work / aside).read_text() == "obey\n"
    assert "OpenCode.jsonc" not in sandbox_bench.names()


async def test_a_protected_link_is_unchanged_after_the_command(
    sandbox_bench: SandboxBench,
) -> None:
    sandbox_bench.put("docs/rules.md", "good\n")
    (sandbox_bench.work / "AGENTS.md").symlink_to("docs/rules.md")
    await sandbox_bench.call("bash", command="echo bad >> AGENTS.md")
    await sandbox_bench.call("bash", command="rm AGENTS.md; echo bad > AGENTS.md")
    await sandbox_bench.call("bash", command="rm AGENTS.md; mkdir AGENTS.md")
    assert (sandbox_bench.work / "AGENTS.md").readlink() == Path("docs/rules.md")
    assert (sandbox_bench.work / "docs" / "rules.md").read_text() == "good\n"


async def test_a_nested_repository_is_protected_in_the_same_way(
    sandbox_bench: SandboxBench,
) -> None:
    (sandbox_bench.work / "sub").mkdir()
    git(sandbox_bench.work / "sub", "init", "-q")
    before = (sandbox_bench.work / "sub" / ".git" / "config").read_bytes()
    outcomes = await sandbox_bench.attack("""
tried("its config", lambda: open("sub/.git/config", "a").write("x"))
tried("its hooks", lambda: open("sub/.git/hooks/pre-commit", "w"))
tried("all of it", lambda: os.rename("sub/.git", "sub/old"))
""")
    assert set(outcomes.values()) <= REFUSED
    assert (sandbox_bench.work / "sub" / ".git" / "config").read_bytes() == before


@pytest.mark.slow
async def test_paths_denied_by_rules_are_closed_to_commands(sandbox_bench: SandboxBench) -> None:
    sandbox_bench.put("secrets/key", SECRET)
    sandbox_bench.put("src/deep/.env", SECRET)
    sandbox_bench.put("migrations/1.sql", "kept")
    restricted = sandbox_bench.context.path_sandbox.restrict(
        reading=[re.compile("secrets(/.*)?"), re.compile(r"(.*/)?\.env")],
        writing=[re.compile("migrations(/.*)?")],
    )
    sandbox_bench.context = msgspec.structs.replace(sandbox_bench.context, path_sandbox=restricted)
    outcomes = await sandbox_bench.attack(
        """
tried("read", lambda: open("secrets/key").read())
tried("read by a link", lambda: (os.symlink(os.getcwd() + "/secrets", os.environ["TMPDIR"] + "/l"),
    open(os.environ["TMPDIR"] + "/l/key").read()))
tried("make another", lambda: open("secrets/new", "w"))
tried("rename", lambda: os.rename("secrets", "public"))
tried("change", lambda: open("migrations/1.sql", "a").write("x"))
tried("rename a file above", lambda: os.rename("src/deep", "src/other"))
tried("read deep", lambda: None if SECRET in open("src/deep/.env").read() else os.stat("/none"))
""".replace("SECRET", repr(SECRET))
    )
    assert {
        what: got for what, got in outcomes.items() if got not in REFUSED | {errno.ENOENT}
    } == {}
    assert (sandbox_bench.work / "migrations" / "1.sql").read_text() == "kept"


def test_a_workspace_too_large_for_the_search_of_denied_paths_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / "folder" / str(number)).mkdir(parents=True)
    request = Request(argv=["/x"], env={}, workdir=tmp_path, reading=(re.compile("secret"),))
    monkeypatch.setattr(rule_walk, "ENTRIES_MAX", 5)
    places_of(request, CHOSEN, Search())
    monkeypatch.setattr(rule_walk, "ENTRIES_MAX", 4)
    with pytest.raises(
        ToolError, match=r"^sandbox_failed: rules deny reading in this workdir, and"
    ):
        places_of(request, CHOSEN, Search())


def test_the_root_directory_is_refused_as_a_workspace() -> None:
    with pytest.raises(ToolError, match=r"^sandbox_failed: the workdir is the root folder$"):
        places_of(Request(argv=["/x"], env={}, workdir=Path("/")), SandboxChoices(), Search())


def test_a_git_file_opens_only_a_git_directory_that_names_it_back(tmp_path: Path) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", "-q", str(tree))
    request = Request(argv=["/x"], env={}, workdir=tree)
    assert {main / ".git", main / ".git" / "worktrees" / "tree"} <= set(
        places_of(request, CHOSEN, Search()).writable
    )
    assert main / ".git" / "hooks" in places_of(request, CHOSEN, Search()).protected
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for target in (main / ".git", main / ".git" / "worktrees" / "tree", tmp_path):
        (foreign / ".git").write_text(f"gitdir: {target}\n")
        request = Request(argv=["/x"], env={}, workdir=foreign)
        assert places_of(request, CHOSEN, Search()).writable == (foreign,)


def test_the_next_daemon_removes_the_temporary_directory_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.run(["/bin/sh", "-c", "echo $$"], check=True, capture_output=True, text=True)
    dead, alive, foreign = (
        tmp_path / f"nousd-sandbox-{name}-x" for name in (int(ended.stdout), os.getpid(), "other")
    )
    for folder in (dead, alive, foreign):
        (folder / "home").mkdir(parents=True)
    Landlock(CHOSEN)
    assert set(tmp_path.iterdir()) == {alive, foreign}


@pytest.mark.parametrize("call", ["mkdtemp", "home"])
def test_a_full_disk_is_reported_as_a_failure_of_the_sandbox(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    landlock = Landlock(CHOSEN)
    if call == "mkdtemp":
        monkeypatch.setattr(tempfile, "mkdtemp", no_space)
    else:
        monkeypatch.setattr(Path, "mkdir", no_space)
    request = Request(argv=["/bin/true"], env={}, workdir=work)
    with (
        pytest.raises(ToolError, match="sandbox_failed: No space left on device"),
        landlock.hold(request),
    ):
        pass
    assert list(temporary.iterdir()) == []


# --- reported facts ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_result_reports_the_sandbox_and_its_limits(sandbox_bench: SandboxBench) -> None:
    result = await sandbox_bench.call("bash", command="true", timeout=7)
    facts = result.sandbox
    assert facts is not None
    assert (result.execution_env, facts.backend, facts.network) == (
        "sandbox",
        sandbox_bench.name,
        False,
    )
    assert {"/usr:ro", f"{sandbox_bench.work}:rw"} <= set(facts.mounts)
    limits = {
        "time_ms": 7000,
        "output_bytes": 256 << 20,
        "memory_bytes": 256 << 20,
        "processes": 64,
    }
    assert facts.limits.items() >= limits.items()


async def test_without_a_sandbox_the_result_reports_the_host(bench: Bench) -> None:
    result = await bench.call("bash", command="true")
    assert (result.execution_env, result.sandbox) == ("host", None)


async def test_the_arguments_network_and_unsandboxed_are_part_of_the_access(
    sandbox_bench: SandboxBench,
) -> None:
    bash = sandbox_bench.registry.get("bash")
    assert bash is not None

    async def facts(**arguments: object) -> Access:
        return await bash.access(bash.validate({"command": "x"} | arguments), sandbox_bench.context)

    alone = Access(classes=frozenset({"exec"}), command="x", is_confined=True)
    outside = Access(classes=frozenset({"exec", "network"}), command="x", hosts=("*",))
    assert await facts() == alone
    assert await facts(network=True) == msgspec.structs.replace(outside, is_confined=True)
    assert await facts(unsandboxed=True) == outside
    result = await sandbox_bench.call(
        "bash", command=f"cat {sandbox_bench.outside}/secret.txt", unsandboxed=True
    )
    assert (result.text, result.execution_env) == (SECRET, "host")


async def test_a_timeout_is_reported_as_without_a_sandbox(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline, mock_clock: MockClock
) -> None:
    command = f'exec 9>"{sandbox_line.path}"; echo begun; echo ready >&9; sleep 1000'
    result = await sandbox_line.time_out(
        lambda: sandbox_bench.call("bash", command=command, timeout=5), mock_clock, seconds=5
    )
    assert result.text == "begun\n\nCommand timed out after 5 seconds"
    assert sandbox_line.is_gone()


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("exit 3", "(no output)\n\nCommand exited with code 3"),
        ("kill -9 $$", "(no output)\n\nCommand exited with code 137"),
        ("echo a; echo b >&2; exit 1", "a\nb\n\nCommand exited with code 1"),
    ],
)
async def test_an_exit_code_is_reported_as_without_a_sandbox(
    command: str, text: str, sandbox_bench: SandboxBench
) -> None:
    assert await sandbox_bench.text("bash", command=command) == text
