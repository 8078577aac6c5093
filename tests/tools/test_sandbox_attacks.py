"""Sandboxed programs that attempt forbidden actions and report each attempt.

Each program runs in every sandbox of this machine. An attempt does no harm if it succeeds: it signals
only a process of the test, removes at once what it creates outside, and calls the kernel with
arguments that have no effect.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from nousd.tools.sandbox.interface import no_sandbox
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import SECRET, Lifeline
from tests.tools.sandbox_bench import SandboxBench, show

pytestmark = pytest.mark.slow(keep=1)  # the default suite tries one of the two sandboxes

REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EXDEV, errno.EBUSY}


def assert_refused(outcomes: dict[str, object]) -> None:
    assert outcomes
    assert {what: got for what, got in outcomes.items() if got not in REFUSED} == {}


@pytest.mark.behaviour("commands_in_the_sandbox_reach_nothing_else")
async def test_writes_outside_the_workspace_are_refused(sandbox_bench: SandboxBench) -> None:
    secret = sandbox_bench.outside / "secret.txt"
    places = [
        *(sandbox_bench.outside, sandbox_bench.home, sandbox_bench.hidden),
        *(
            Path(name)
            for name in ("/", "/etc", "/usr", "/opt", "/home", "/run", "/var", "/var/tmp")
        ),
        Path("/proc/sys/kernel"),
        Path("/dev"),
    ]
    outcomes = await sandbox_bench.attack(f"""
def make(name):
    os.mkdir(name)
    os.rmdir(name)
for folder in {[str(place) for place in places]}:
    tried("write in " + folder, lambda: make(folder + "/nousd-attack"))
tried("change a file outside", lambda: open({str(secret)!r}, "a").write("x"))
os.symlink({str(sandbox_bench.outside)!r}, os.environ["TMPDIR"] + "/link")
tried("write through a link", lambda: open(os.environ["TMPDIR"] + "/link/x", "w"))
tried("write by ..", lambda: open("../outside/x", "w"))
tried("write by /proc", lambda: open("/proc/self/root" + {str(sandbox_bench.outside)!r} + "/x", "w"))
tried("remove the workdir", lambda: os.rmdir(os.getcwd()))
""")
    assert_refused(outcomes)
    assert [path.name for path in sandbox_bench.outside.iterdir()] == ["secret.txt"]
    assert (sandbox_bench.outside / "secret.txt").read_text() == SECRET


@pytest.mark.behaviour("commands_in_the_sandbox_reach_nothing_else")
async def test_home_and_other_files_and_the_daemons_state_cannot_be_read(
    sandbox_bench: SandboxBench,
) -> None:
    (sandbox_bench.hidden / "socket-token").write_text(SECRET)
    files = [
        sandbox_bench.home / ".ssh" / "id",
        sandbox_bench.outside / "secret.txt",
        sandbox_bench.hidden / "log.db",
        sandbox_bench.hidden / "socket-token",
        Path("/etc/shadow"),
        Path("/proc/1/environ") if not sandbox_bench.is_bubblewrap else Path("/etc/sudoers"),
        Path(f"/proc/{os.getpid()}/environ"),
        Path(f"/proc/{os.getpid()}/root/etc/passwd"),
        Path(f"/proc/{os.getpid()}/mem"),
        Path("/dev/mem"),
    ]
    outcomes = await sandbox_bench.attack(f"""
for file in {[str(file) for file in files]}:
    tried("read " + file, lambda: open(file).read())
for folder in {[str(sandbox_bench.home), str(sandbox_bench.outside), "/var/lib"]}:
    tried("list " + folder, lambda: os.listdir(folder))
""")
    assert_refused(outcomes)


@pytest.mark.slow
async def test_kernel_settings_cannot_be_opened_for_writing(sandbox_bench: SandboxBench) -> None:
    outcomes = await sandbox_bench.attack("""
for name in ("kernel/core_pattern", "kernel/panic", "vm/swappiness", "fs/file-max"):
    tried(name, lambda: os.close(os.open("/proc/sys/" + name, os.O_WRONLY)))
tried("sysrq", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)))
""")
    assert_refused(outcomes)


@pytest.mark.slow
async def test_attacks_do_not_change_the_daemons_state(sandbox_bench: SandboxBench) -> None:
    await sandbox_bench.attack("""
for attempt in (
    lambda: os.rename(".state", "elsewhere"),
    lambda: os.remove(".state/log.db"),
    lambda: open(".state/log.db", "w").write("x"),
    lambda: open(".state/new", "w").write("x"),
    lambda: os.link(".state/log.db", "outcomes2.json"),
    lambda: os.chmod(".state", 0o777),
):
    tried(str(attempt), attempt)
""")
    assert {path.name: path.read_text() for path in sandbox_bench.hidden.iterdir()} == {
        "log.db": SECRET
    }
    assert "elsewhere" not in sandbox_bench.names()


CONNECTING = """
import socket
def connect(family, address):
    with socket.socket(family) as attempt:
        attempt.settimeout(5)
        attempt.connect(address)
        return attempt.recv(10)
"""


@pytest.mark.slow
@pytest.mark.behaviour("commands_in_the_sandbox_reach_nothing_else")
async def test_servers_of_this_machine_cannot_be_reached(sandbox_bench: SandboxBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcomes = await sandbox_bench.attack(f"""{CONNECTING}
port = {server.getsockname()[1]}
tried("IPv4 loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
tried("IPv4 any", lambda: connect(socket.AF_INET, ("0.0.0.0", port)))
tried("IPv6 mapped", lambda: connect(socket.AF_INET6, ("::ffff:127.0.0.1", port)))
tried("the metadata server", lambda: connect(socket.AF_INET, ("169.254.169.254", 80)))
""")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    unreachable = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EPERM}
    assert set(outcomes.values()) <= unreachable


@pytest.mark.slow
async def test_unix_sockets_cannot_be_reached_in_any_directory(sandbox_bench: SandboxBench) -> None:
    names = [
        str(sandbox_bench.hidden / "s"),
        str(sandbox_bench.work / "s"),
        str(sandbox_bench.outside / "s"),
    ]
    abstract = f"\0nousd-test-{os.getpid()}"
    servers = []
    for name in (*names, abstract):
        server = socket.socket(socket.AF_UNIX)
        server.bind(name)
        server.listen()
        server.setblocking(False)
        servers.append(server)
    try:
        outcomes = await sandbox_bench.attack(f"""{CONNECTING}
for name in {names}:
    tried("connect " + name, lambda: connect(socket.AF_UNIX, name))
tried("an abstract name", lambda: connect(socket.AF_UNIX, {abstract!r}))
tried("a socket of packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
tried("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
tried("vsock", lambda: socket.socket(socket.AF_VSOCK))
""")
        assert set(outcomes.values()) == {errno.EPERM}
        for server in servers:
            with pytest.raises(BlockingIOError):
                server.accept()
    finally:
        for server in servers:
            server.close()


@pytest.mark.slow
async def test_a_pair_of_sockets_reaches_no_other_socket(sandbox_bench: SandboxBench) -> None:
    """One of datagrams needs nobody's consent to be sent elsewhere, and no call that names a family."""
    names = [
        *(str(folder / "s") for folder in (sandbox_bench.work, sandbox_bench.outside)),
        f"\0nousd-test-{os.getpid()}",
    ]
    kinds = ("SOCK_DGRAM", "SOCK_STREAM", "SOCK_SEQPACKET")
    servers = {
        (name, kind): socket.socket(socket.AF_UNIX, getattr(socket, kind))
        for name in names
        for kind in kinds
    }
    try:
        for (name, kind), server in servers.items():
            server.bind(f"{name}-{kind}")
            server.setblocking(False)
            if kind != "SOCK_DGRAM":
                server.listen()
        outcomes = await sandbox_bench.attack(f"""
import array, socket
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.open(".", os.O_RDONLY)]))]
for kind in {(*kinds, "SOCK_RAW")}:
    for name in {names}:
        name += "-" + (kind if kind != "SOCK_RAW" else "SOCK_DGRAM")
        def pair():
            return socket.socketpair(socket.AF_UNIX, getattr(socket, kind))[0]
        tried(f"connect {{kind}} {{name!r}}", lambda: pair().connect(name))
        tried(f"bind {{kind}} {{name!r}}", lambda: pair().bind(name + "2") or pair().listen())
        if kind != "SOCK_SEQPACKET":  # which takes no address, and sends to the other end
            tried(f"send {{kind}} {{name!r}}", lambda: pair().sendto(b"x", name))
            tried(f"hand over {{kind}} {{name!r}}", lambda: pair().sendmsg([b"x"], rights, 0, name))
for kind in ("SOCK_STREAM", "SOCK_SEQPACKET"):
    tried(f"use a pair {{kind}}", lambda: socket.socketpair(type=getattr(socket, kind)))
""")
        for kind in ("SOCK_STREAM", "SOCK_SEQPACKET"):
            assert outcomes.pop(f"use a pair {kind}") == "done"
        wrong = REFUSED | {errno.EISCONN, errno.EINVAL, errno.EOPNOTSUPP, errno.ECONNREFUSED}
        assert {what: got for what, got in outcomes.items() if got not in wrong} == {}
        for (_, kind), server in servers.items():
            with pytest.raises(BlockingIOError):
                server.recv(10) if kind == "SOCK_DGRAM" else server.accept()
    finally:
        for server in servers.values():
            server.close()


async def test_a_command_has_a_network_only_on_request(sandbox_bench: SandboxBench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"""{CONNECTING}
tried("loopback", lambda: socket.create_connection(("127.0.0.1", {server.getsockname()[1]})))
tried("a unix socket", lambda: socket.socket(socket.AF_UNIX))
"""
        assert (await sandbox_bench.attack(script))["loopback"] != "done"
        outcomes = await sandbox_bench.attack(script, network=True)
    assert outcomes == {"loopback": "done", "a unix socket": errno.EPERM}


@pytest.mark.slow
@pytest.mark.behaviour("limits_of_the_sandbox_hold")
async def test_a_fork_bomb_is_ended_at_the_process_limit(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    result = await sandbox_bench.run_python(f"""
import os, time
hold = os.open({str(sandbox_line.path)!r}, os.O_WRONLY)
for number in range(500):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
    except OSError as error:
        print("fork", number, error)
        break
print("forked", flush=True)
time.sleep(1000)
""")
    assert result.is_error
    assert result.text.endswith("Command was ended: it went beyond the limit processes of 64")
    assert sandbox_line.is_gone()


@pytest.mark.slow
async def test_a_fork_bomb_that_doubles_and_leaves_its_session_is_ended(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    result = await sandbox_bench.run_python(f"""
import os, time
hold = os.open({str(sandbox_line.path)!r}, os.O_WRONLY)
for generation in range(9):
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
time.sleep(1000)
""")
    assert result.is_error
    assert sandbox_line.is_gone()


FLOODS = {
    "private memory": "data = [bytearray(1 << 20) for _ in range(1024)]",
    "one large piece": "data = bytearray(1 << 30)",
}


@pytest.mark.slow
@pytest.mark.behaviour("limits_of_the_sandbox_hold")
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_each_process_has_a_memory_limit(flood: str, sandbox_bench: SandboxBench) -> None:
    result = await sandbox_bench.run_python(flood)
    assert result.is_error
    assert "MemoryError" in result.text


@pytest.mark.slow
async def test_shared_memory_counts_toward_the_memory_limit(sandbox_bench: SandboxBench) -> None:
    result = await sandbox_bench.run_python("""
import mmap, time
data = mmap.mmap(-1, 320 << 20)
for offset in range(0, len(data), 4096):
    data[offset] = 1
print("written", flush=True)
time.sleep(1000)
""")
    assert result.text.endswith("it went beyond the limit memory_bytes of 268435456")


@pytest.mark.slow
async def test_a_file_has_a_size_limit(sandbox_bench: SandboxBench) -> None:
    result = await sandbox_bench.run_python("""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("outcomes.json", "wb") as file:
    for _ in range(100):
        file.write(bytes(1 << 20))
""")
    assert "File too large" in result.text
    assert (sandbox_bench.work / "outcomes.json").stat().st_size <= 64 << 20


@pytest.mark.slow
async def test_an_output_flood_is_cut_and_the_limit_is_reported(
    sandbox_bench: SandboxBench,
) -> None:
    result = await sandbox_bench.call("bash", command="yes | head -c 20000000")
    assert "20000000 bytes in all" in result.text
    assert len(result.text) < 60_000
    assert result.sandbox is not None
    assert result.sandbox.limits["output_bytes"] == 256 << 20


async def test_background_processes_end_with_the_call(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    hold = f'exec 9>"{sandbox_line.path}"; '
    hiding = "setsid sh -c '(setsid sleep 1000 &); sleep 1000' &"
    result = await sandbox_bench.call(
        "bash", command=f"{hold}{hiding} nohup sleep 1000 & echo done"
    )
    assert (result.text, result.is_error) == ("done", False)
    assert sandbox_line.is_gone()


@pytest.mark.slow
async def test_an_abort_lets_a_command_clean_up_and_then_ends_all_of_it(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    script = f"""exec 9>"{sandbox_line.path}"
trap 'echo cleared > outcomes.json; exit' TERM
setsid sh -c 'trap "" TERM; echo ready >&9; sleep 1000; sleep 1000' &
echo ready >&9; sleep 1000 & wait"""
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: sandbox_bench.call("bash", command=script))
            await sandbox_line.wait_ready(2)
            nursery.cancel_scope.cancel()
    assert sandbox_line.is_gone()
    assert (sandbox_bench.work / "outcomes.json").read_text() == "cleared\n"


@pytest.mark.slow
async def test_a_command_cannot_signal_a_process_outside(sandbox_bench: SandboxBench) -> None:
    victim = await trio.lowlevel.open_process(["/bin/sleep", "1000"])
    try:
        outcomes = await sandbox_bench.attack(f"""
tried("signal a process", lambda: os.kill({victim.pid}, 15))
tried("signal the daemon", lambda: os.kill({os.getpid()}, 0))
""")
        assert set(outcomes.values()) <= {errno.EPERM, errno.ESRCH}
        assert victim.poll() is None
    finally:
        victim.kill()
        await victim.wait()


@pytest.mark.slow
async def test_a_command_cannot_change_limits_or_priority_of_a_process_outside(
    sandbox_bench: SandboxBench,
) -> None:
    victim = await trio.lowlevel.open_process(["/bin/sleep", "1000"])
    try:
        outcomes = await sandbox_bench.attack(f"""
import ctypes, platform, resource
libc = ctypes.CDLL(None, use_errno=True)
number = 251 if platform.machine() == "x86_64" else 30
def set_io(which, who):
    if libc.syscall(number, which, who, 3 << 13) != 0:
        raise OSError(ctypes.get_errno(), "ioprio_set")
victim = {victim.pid}
tried("its limits", lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (1000, 1000)))
tried("its priority", lambda: os.setpriority(os.PRIO_PROCESS, victim, 19))
tried("its processors", lambda: os.sched_setaffinity(victim, [0]))
tried("its class", lambda: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)))
tried("its disks", lambda: set_io(1, victim))
if not {sandbox_bench.is_bubblewrap}:
    # In namespaces of their own these are the command's, and root of one is not who is root outside.
    tried("the priority of a user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
    tried("the disks of a user", lambda: set_io(3, 0))
set_io(1, 0)
os.nice(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
""")
        assert set(outcomes.values()) <= {errno.EPERM, errno.ESRCH}
    finally:
        victim.kill()
        await victim.wait()


FORBIDDEN_CALLS = """
import ctypes, fcntl, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
number = 0 if platform.machine() == "x86_64" else 1
tried("unshare user", lambda: call((272, 97)[number], 0x10000000))
tried("unshare net", lambda: call((272, 97)[number], 0x40000000))
tried("clone into namespaces", lambda: call((56, 220)[number], 0x10000000 | 17, 0, 0, 0, 0))
tried("setns", lambda: call((308, 268)[number], 0, 0))
tried("mount", lambda: call((165, 40)[number], b"none", b"/none/x", b"tmpfs", 0, None))
tried("umount", lambda: call((166, 39)[number], b"/none/x", 0))
tried("pivot_root", lambda: call((155, 41)[number], b"/none/x", b"/none/x"))
tried("chroot", lambda: os.chroot("/none/x"))
tried("ptrace", lambda: call((101, 117)[number], 0, 0, 0, 0))
tried("process_vm_readv", lambda: call((310, 270)[number], -1, 0, 0, 0, 0, 0))
tried("keyctl", lambda: call((250, 219)[number], 0, -3, 0))
tried("add_key", lambda: call((248, 217)[number], None, None, None, 0, 0))
tried("bpf", lambda: call((321, 280)[number], 0, 0, 0))
tried("perf_event_open", lambda: call((298, 241)[number], 0, 0, -1, -1, 0))
tried("userfaultfd", lambda: call((323, 282)[number], 1))
tried("io_uring_setup", lambda: call(425, 1, 0))
tried("kexec_load", lambda: call((246, 104)[number], 0, 0, 0, -1))
tried("init_module", lambda: call((175, 105)[number], 0, 0, b""))
tried("open_by_handle_at", lambda: call((304, 265)[number], -100, 0, 0))
tried("process_vm_writev", lambda: call((311, 271)[number], -1, 0, 0, 0, 0, 0))
tried("pidfd_getfd", lambda: call(438, -1, 0, 0))
tried("kcmp", lambda: call((312, 272)[number], 1, 1, 0, 0, 0))
tried("open_tree", lambda: call(428, -100, b"/none/x", 1))
tried("move_mount", lambda: call(429, -1, b"", -1, b"/none/x", 0))
tried("fsopen", lambda: call(430, b"none", 0))
tried("mount_setattr", lambda: call(442, -1, b"/none/x", 0, None, 0))
tried("fanotify_init", lambda: call((300, 262)[number], 0, 0))
tried("io_uring_enter", lambda: call(426, -1, 0, 0, 0, None))
tried("io_uring_register", lambda: call(427, -1, 0, None, 0))
tried("swapon", lambda: call((167, 224)[number], b"/none/x", 0))
tried("acct", lambda: call((163, 89)[number], b"/none/x"))
tried("syslog", lambda: call((103, 116)[number], 10, None, 0))
tried("vhangup", lambda: call((153, 58)[number]))
tried("type into a terminal", lambda: fcntl.ioctl(0, 0x5412, b"x"))
tried("select a terminal", lambda: fcntl.ioctl(0, 0x541C, b"x"))
if number == 0:
    tried("an x32 call", lambda: call(0x40000000 + 39))
"""


async def test_system_calls_that_leave_the_sandbox_are_refused(sandbox_bench: SandboxBench) -> None:
    outcomes = await sandbox_bench.attack(FORBIDDEN_CALLS)
    assert len(outcomes) > 34
    assert set(outcomes.values()) == {errno.EPERM}


OLD_CALL = """
import ctypes, mmap, platform, signal
def ended(attempt):
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if attempt() >= 0 else 1)
        finally:
            os._exit(2)
    status = os.waitpid(child, 0)[1]
    if status:
        raise PermissionError(1, f"refused: ended with {status}")
def getpid_of_32_bits():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20; int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
if platform.machine() == "x86_64":
    tried("a call of 32 bits", lambda: ended(getpid_of_32_bits))
"""


@pytest.mark.slow
async def test_system_calls_of_another_architecture_are_refused(
    sandbox_bench: SandboxBench,
) -> None:
    assert set((await sandbox_bench.attack(OLD_CALL)).values()) <= {errno.EPERM}


async def test_a_command_inherits_only_the_standard_streams_whatever_runs_beside_it(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    async with trio.open_nursery() as nursery:
        lasting = f"exec 9>{sandbox_line.path}; echo ready >&9; sleep 1000"
        nursery.start_soon(partial(sandbox_bench.call, "bash", command=lasting))
        await sandbox_line.wait_ready(1)
        text = await sandbox_bench.text(
            "bash", command="for file in /proc/self/fd/*; do echo ${file##*/}; done"
        )
        nursery.cancel_scope.cancel()
    # The shell has one more, for listing the directory.
    assert {"0", "1", "2"} <= set(text.split()) <= {"0", "1", "2", "3"}


@pytest.mark.slow
async def test_the_proc_files_of_processes_lead_nowhere(sandbox_bench: SandboxBench) -> None:
    """The first process of a sandbox has the same filter; without it, it could be abused."""
    outside = str(sandbox_bench.outside)
    outcomes = await sandbox_bench.attack(f"""
for process in (1, os.getppid(), {os.getpid()}, {os.getppid()}):
    for name in ("root/etc/shadow", "cwd/../outside/secret.txt", "root" + {outside!r} + "/x"):
        tried(f"/proc/{{process}}/{{name}}", lambda: open(f"/proc/{{process}}/{{name}}").read())
    for name in ("mem", "environ", "maps"):
        file = f"/proc/{{process}}/{{name}}"
        tried("write " + file, lambda: open(file, "r+b"))
tried("another's threads", lambda: os.open("/proc/{os.getpid()}/task/{os.getpid()}/mem", os.O_RDWR))
tried("the host's devices", lambda: os.listdir("/sys/class"))
if {sandbox_bench.is_bubblewrap}:
    filters = [line for line in open("/proc/1/status") if line.startswith("Seccomp:")]
    tried("a first process with a filter", lambda: filters == ["Seccomp:\\t2\\n"] or open("/none"))
""")
    if sandbox_bench.is_bubblewrap:
        assert outcomes.pop("a first process with a filter") == "done"
        # Its own parent and first process are programs of the same sandbox.
        outcomes = {what: got for what, got in outcomes.items() if "/mem" not in what}
    assert_refused(outcomes)


async def test_a_command_has_no_capabilities_and_no_new_privileges(
    sandbox_bench: SandboxBench,
) -> None:
    result = await sandbox_bench.call(
        "bash", command="grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"
    )
    facts = dict(line.split() for line in result.text.replace(":", " ").splitlines())
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0} or (
        os.getuid() != 0 and int(facts["CapEff"], 16) == 0
    )
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


SIGNALS_BY_DESCRIPTOR = """
import fcntl, socket
F_SETSIG, F_SETOWN_EX, F_SETLEASE = 10, 15, 1024
def armed(file, target, number):
    fcntl.fcntl(file, fcntl.F_SETOWN, target)
    fcntl.fcntl(file, F_SETSIG, number)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_ASYNC)
def by_socket(target, number):
    ours, theirs = socket.socketpair()
    armed(ours, target, number)
    theirs.send(b"x")
def by_pipe(target, number):
    read_end, write_end = os.pipe()
    armed(read_end, target, number)
    os.write(write_end, b"x")
def by_folder(target, number):
    folder = os.open(".", os.O_RDONLY)
    fcntl.fcntl(folder, fcntl.F_SETOWN, target)
    fcntl.fcntl(folder, F_SETSIG, number)
    fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    open("made", "w").close()
    os.remove("made")
for number in (0, 9, 15):
    for target in targets:
        for way in (by_socket, by_pipe, by_folder):
            tried(f"{way.__name__} {target} {number}", lambda: way(target, number))
for target in targets:
    tried(f"a descriptor of {target}", lambda: signal.pidfd_send_signal(os.pidfd_open(abs(target)), 9))
"""


async def test_no_descriptor_signals_a_process_outside(sandbox_bench: SandboxBench) -> None:
    """Files signal who owns them when something happens, whoever caused it."""
    victim = await trio.lowlevel.open_process(["/bin/sleep", "1000"], start_new_session=True)
    try:
        targets = f"import signal\ntargets = ({victim.pid}, -{victim.pid}, {os.getppid()})\n"
        outcomes = await sandbox_bench.attack(targets + SIGNALS_BY_DESCRIPTOR)
        assert len(outcomes) == 30
        sent = {what: got for what, got in outcomes.items() if what.startswith("a descriptor")}
        assert set(sent.values()) <= {errno.EPERM, errno.ESRCH}
        # The kernel drops the others without an error: one that arrives would have by now.
        assert victim.poll() is None
    finally:
        victim.kill()
        await victim.wait()


SURVIVING = {
    "a child of its parent's parent": "pid = libc.syscall(clone, 0x8000 | 17, 0, 0, 0, 0)",
    "a grandchild in a session": "pid = os.fork()\nif not pid: os.setsid(), os.fork() and os._exit(0)",
    "a reaper": "libc.prctl(36, 1, 0, 0, 0)\npid = os.fork()\nif not pid: os.setsid()",
    "a tracee that stops": "pid = os.fork()\nif not pid: os.setsid(), hold(), os.kill(os.getpid(), 19)",
}


@pytest.mark.slow
@pytest.mark.parametrize("forking", SURVIVING.values(), ids=SURVIVING)
async def test_no_kind_of_child_outlives_the_call(
    forking: str, sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    result = await sandbox_bench.run_python(f"""
import ctypes, os, platform, signal, time
libc = ctypes.CDLL(None)
clone = 56 if platform.machine() == "x86_64" else 220
def hold():
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    os.write(os.open({str(sandbox_line.path)!r}, os.O_WRONLY), b"ready\\n")
begun, begins = os.pipe()
{forking}
if pid == 0:
    hold()
    os.write(begins, b"x")
    time.sleep(1000)
    os._exit(0)
if "19" not in {forking!r}:
    os.read(begun, 1)
print("left", flush=True)
os._exit(0)
""")
    assert result.text == "left"
    assert sandbox_line.is_gone()


READING = """
import ctypes, mmap, shutil, subprocess
libc = ctypes.CDLL(None, use_errno=True)
secret = "SECRET"
def seen(data):
    if isinstance(data, bytes):
        data = data.decode("utf-8", "replace")
    if secret not in data:
        raise PermissionError(1, "not seen")
def output(*words, **more):
    done = subprocess.run(words, capture_output=True, **more)
    return done.stdout + done.stderr
def linked(make, name):
    make(place, name)
    try:
        return open(name).read()
    finally:
        os.remove(name)
def moved():
    os.rename(place, "moved")
    try:
        return open("moved").read()
    finally:
        os.rename("moved", place)
def exchange():
    if libc.syscall(316, -100, os.fsencode(place), -100, b"other", 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")
def exchanged():
    open("other", "w").close()
    exchange()
    try:
        return open("other").read()
    finally:
        exchange()
def by_path_only():
    return open(f"/proc/self/fd/{os.open(place, os.O_PATH)}").read()
def mapped():
    file = os.open(place, os.O_RDONLY)
    return mmap.mmap(file, 0, prot=mmap.PROT_READ)[:]
def sent():
    read_end, write_end = os.pipe()
    os.sendfile(write_end, os.open(place, os.O_RDONLY), 0, 100)
    return os.read(read_end, 100)
def folder_moved():
    above = os.path.dirname(place) or "."
    os.rename(above, "elsewhere")
    try:
        return open("elsewhere/" + os.path.basename(place)).read()
    finally:
        os.rename("elsewhere", above)
def by_an_inherited_folder():
    folder = os.open(os.path.dirname(place) or ".", os.O_RDONLY)
    return os.read(os.open(os.path.basename(place), os.O_RDONLY, dir_fd=folder), 100)
for place in places:
    ways = {
        "plainly": lambda: open(place).read(),
        "by /proc/self/cwd": lambda: open("/proc/self/cwd/" + place).read(),
        "by /proc/self/root": lambda: open("/proc/self/root" + os.path.abspath(place)).read(),
        "by .. and back": lambda: open("../" + os.path.basename(os.getcwd()) + "/" + place).read(),
        "by a link": lambda: linked(os.symlink, "a-link"),
        "by a name": lambda: linked(os.link, "a-name"),
        "by another name": lambda: moved(),
        "by exchanging": lambda: exchanged(),
        "by its folder's other name": lambda: folder_moved(),
        "by a descriptor of a path": by_path_only,
        "by a descriptor of its folder": by_an_inherited_folder,
        "mapped": mapped,
        "sent": sent,
        "as a program": lambda: output("/bin/sh", "-c", ". ./" + place),
        "as an interpreter's": lambda: output("/bin/sh", place),
        "by git": lambda: output("git", "hash-object", "-w", place)
            + output("git", "diff", "--no-index", "/dev/null", place),
        "by tar": lambda: output("tar", "-cf", "-", place),
        "by cp": lambda: output("cp", "-r", ".", os.environ["TMPDIR"] + "/copy")
            + output("grep", "-r", secret, os.environ["TMPDIR"] + "/copy"),
        "as input": lambda: output("cat", stdin=open(place)),
        "by the loader": lambda: output("/bin/ls", env={"LD_PRELOAD": os.path.abspath(place)}),
        "by a list of options": lambda: output("gcc", "@" + place) if shutil.which("gcc") else "",
        "by grep": lambda: output("grep", "-r", secret, "."),
        "by find": lambda: output("find", ".", "-name", ".env", "-exec", "cat", "{}", ";"),
    }
    for name, way in ways.items():
        tried(f"{name} {place}", lambda: seen(way()))
"""


async def test_a_denied_file_is_read_in_no_way(sandbox_bench: SandboxBench) -> None:
    for place in (".env", "sub/deep/.env"):
        sandbox_bench.put(place, SECRET)
    sandbox_bench.put("sub/other", "x")
    sandbox_bench.close(reading=[r"(.*/)?\.env"])
    # In two parts, so that the attack itself does not hold what it looks for.
    hidden = READING.replace(
        '"SECRET"', " + ".join(repr(part) for part in (SECRET[:9], SECRET[9:]))
    )
    outcomes = await sandbox_bench.attack("places = ('.env', 'sub/deep/.env')\n" + hidden)
    assert len(outcomes) == 46
    assert [what for what, got in outcomes.items() if got == "done"] == []
    assert all((sandbox_bench.work / place).exists() for place in (".env", "sub/deep/.env"))
    sandbox_bench.put("sub/other", SECRET)
    allowed = await sandbox_bench.attack("places = ('sub/other',)\n" + hidden)
    # The ways lead there where nothing is denied.
    assert len([what for what, got in allowed.items() if got == "done"]) > 12


async def test_a_file_cannot_be_made_setuid(sandbox_bench: SandboxBench) -> None:
    outcomes = await sandbox_bench.attack("""
name = os.environ["TMPDIR"] + "/program"
open(name, "w").close()
tried("chmod", lambda: os.chmod(name, 0o4755))
tried("fchmod", lambda: os.fchmod(os.open(name, os.O_RDONLY), 0o6755))
tried("open", lambda: os.open(name + "1", os.O_CREAT | os.O_WRONLY, 0o4755))
tried("mknod", lambda: os.mknod(name + "2", 0o104755))
""")
    assert set(outcomes.values()) == {errno.EPERM}


async def test_a_directory_and_a_file_can_be_made_setgid(
    sandbox_bench: SandboxBench,
) -> None:
    """One system call serves both: a filter that refused it for files would refuse it for folders."""
    outcomes = await sandbox_bench.attack("""
name = os.environ["TMPDIR"] + "/shared"
os.mkdir(name)
tried("folder", lambda: os.chmod(name, 0o2755))
open(name + "/file", "w").close()
tried("file", lambda: os.chmod(name + "/file", 0o2755))
""")
    assert outcomes == {"folder": "done", "file": "done"}


async def test_a_command_has_only_allowed_variables_and_a_home_of_its_own(
    sandbox_bench: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "SSH_AUTH_SOCK", "DOCKER_HOST", "LD_PRELOAD_X"):
        monkeypatch.setenv(name, SECRET)
    text = await sandbox_bench.text(
        "bash", command='env; touch "$HOME/x" "$TMPDIR/y"; ls -a "$HOME" "$TMPDIR"'
    )
    assert SECRET not in text
    assert f"HOME={sandbox_bench.home}\n" not in text
    private = next(line.partition("=")[2] for line in text.splitlines() if "TMPDIR=" in line)
    second = await sandbox_bench.text("bash", command='ls "$TMPDIR"')
    assert "x" not in second.split()
    assert "y" not in second.split()
    assert sandbox_bench.is_bubblewrap or not os.path.lexists(private)  # noqa: ASYNC240


async def test_inaccessible_directories_are_removed_from_path(
    sandbox_bench: SandboxBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = sandbox_bench.home / "bin" / "ls"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert (
        await sandbox_bench.text("bash", command="ls -d . && printenv PATH") == ".\n/usr/bin:/bin"
    )


async def test_the_same_attempts_succeed_without_a_sandbox(sandbox_bench: SandboxBench) -> None:
    """The refusals in these tests are therefore due to the sandbox."""
    sandbox_bench.context = sandbox_bench.context.__class__(
        path_sandbox=sandbox_bench.context.path_sandbox,
        emit=sandbox_bench.context.emit,
        sandbox=no_sandbox,
    )
    outcomes = await sandbox_bench.attack(f"""
tried("read", lambda: open({str(sandbox_bench.home / ".ssh" / "id")!r}).read())
tried("write", lambda: open({str(sandbox_bench.outside / "x")!r}, "w"))
""")
    assert set(outcomes.values()) == {"done"}


DAEMON = """
import sys, trio
from pathlib import Path
from nousd.tools.fs.path_sandbox import PathSandbox
from nousd.tools.builtin.catalog import builtin_tools
from nousd.tools.interface import ToolContext
from nousd.tools.sandbox.detect import Detector
from nousd.tools.sandbox.visible_paths import SandboxChoices
async def emit(_, __=None): pass
bash = next(tool for tool in builtin_tools(allow_exec=True) if tool.name == "bash")
sandbox = Detector(sys.argv[1], SandboxChoices())
context = ToolContext(path_sandbox=PathSandbox(Path(sys.argv[2])), emit=emit, sandbox=sandbox)
trio.run(bash.run, bash.validate({"command": sys.argv[3]}), context)
"""


@pytest.mark.slow
async def test_no_child_survives_the_daemon(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    script = f"""exec 9>'{sandbox_line.path}'
(setsid sh -c 'trap "" TERM HUP; echo ready >&9; while :; do sleep 1000; done' &)
setsid sh -c 'setsid sh -c "echo ready >&9; sleep 1000" & sleep 1000' &
echo ready >&9; while :; do sleep 1000; done"""
    daemon = await trio.lowlevel.open_process(
        [sys.executable, "-c", DAEMON, sandbox_bench.name, str(sandbox_bench.work), script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(sandbox_bench.outside)},
        stderr=subprocess.DEVNULL,
    )
    try:
        await sandbox_line.wait_ready(3)
        daemon.kill()
        await sandbox_line.wait_gone()
        show("--- all three processes that held the pipe are gone with the daemon")
    finally:
        daemon.kill()
        await daemon.wait()
