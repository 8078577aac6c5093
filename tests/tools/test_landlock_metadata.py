"""Commands in Landlock's sandbox that change the mode, times, owner or attributes of files."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from nousd.tools.sandbox import filter_listener, landlock
from tests.tools.landlock_bench import Attacked

PYTHON = os.path.realpath(sys.executable)
SOMEBODY_ELSE = 65_533


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attacked:
    reason = landlock.why_not() or filter_listener.why_not()
    if reason is not None:
        pytest.skip(reason)
    (tmp_path / "machine").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "machine" / "home"))
    return Attacked(tmp_path / "machine")


USUAL = {
    "gcc": (
        "gcc",
        "printf 'int main(){return 7;}' > a.c; gcc -o a a.c; ./a; echo $?; stat -c %a a",
        "7\n755",
    ),
    "git init, clone and commit": (
        "git",
        """export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q one && cd one && echo x > x && git add x && git commit -qm first && cd ..
        git clone -q one two 2>&1 && git -C two log --format=%s && git -C two status --short""",
        "first",
    ),
    "venv": (
        PYTHON,
        f"{PYTHON} -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix[-2:])'",
        "/v",
    ),
    "tar": (
        "tar",
        """mkdir t && echo x > t/x && chmod 750 t && chmod 755 t/x && touch -d @86400 t/x t
        tar cf t.tar t && mkdir out && tar xpf t.tar -C out && stat -c '%a %Y' out/t out/t/x""",
        "750 86400\n755 86400",
    ),
    "install": (
        "install",
        "echo x > x; install -m 751 x y; install -d -m 750 d; install -p -D x d/e/x; stat -c %a y d",
        "751\n750",
    ),
    "cp": (
        "cp",
        """echo x > x; chmod 751 x; touch -d @86400 x; ln -s x l
        cp -p x y; cp -a l m; cp -a . $TMPDIR/all
        stat -c '%a %Y' y $TMPDIR/all/x; readlink m""",
        "751 86400\n751 86400\nx",
    ),
    "touch": (
        "touch",
        """touch a; touch -d @1.5 a; stat -c %.1Y a; touch a; ls -l --time-style=+%Y a | grep -c 19
        ln -s a l; touch -h -d @86400 l; stat -c %Y l; touch -d @7 b; touch -r b a; stat -c %Y a""",
        "1.5\n0\n86400\n7",
    ),
    "chmod": (
        "chmod",
        """printf '#!/bin/sh\\necho runs' > s; chmod +x s; ./s
        mkdir -p d/e; chmod -R go-rwx d; chmod g+s d
        stat -c %a d d/e; chmod u=rw,go=r s; stat -c %a s; chmod 600 /dev/fd/9 9<s; stat -c %a s""",
        "runs\n2700\n700\n644\n600",
    ),
    "chown": (
        "chown",
        "touch a; ln -s a l; chown $(id -u):$(id -g) a; chown -h $(id -u) l; chgrp $(id -g) a; echo $?",
        "0",
    ),
}


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(("program", "command", "expected"), USUAL.values(), ids=USUAL)
def test_daily_work_in_the_workspace_goes_on(
    program: str, command: str, expected: str, held: Attacked
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    # git says that ls -l | grep -c finds nothing by failing, and so the last one must not be it.
    # New repositories are named behind the output.
    text = held.text(f"cd src && umask 022; {command}")
    assert text.partition("\n\n[the command made")[0] == expected


BY_PATH = """
for what, path in (("key", key), ("token", token), ("shown", shown), ("protected", protected)):
    folder, name = os.open(os.path.dirname(path), os.O_PATH), os.path.basename(path)
    climbing = b"../../" * 20 + path[1:]
    for spelling in (path, climbing, b"/proc/self/root" + path, b"/proc/self/cwd/" + climbing):
        attempt(f"chmod {spelling}", "chmod", spelling, 0o666)
        attempt(f"fchmodat {spelling}", "fchmodat", HERE, spelling, 0o666)
        attempt(f"fchmodat2 {spelling}", "fchmodat2", HERE, spelling, 0o666, 0)
        attempt(f"utime {spelling}", "utime", spelling, None)
        attempt(f"utimes {spelling}", "utimes", spelling, struct.pack("=4q", 1, 2, 3, 4))
        attempt(f"futimesat {spelling}", "futimesat", HERE, spelling, None)
        attempt(f"utimensat {spelling}", "utimensat", HERE, spelling, old, 0)
    for file, flags in ((name, 0), (name, NOFOLLOW)):
        attempt(f"fchmodat2 {what} {flags}", "fchmodat2", folder, file, 0o666, flags)
        attempt(f"utimensat {what} {flags}", "utimensat", folder, file, None, flags)
    attempt("fchmodat of " + what, "fchmodat", folder, name, 0o666)
    attempt("folder of " + what, "fchmodat2", folder, b"", 0o777, EMPTY)
    attempt("fchmod of folder of " + what, "fchmod", folder, 0o777)
    attempt("futimesat of " + what, "futimesat", folder, name, None)
    os.chdir(folder)
    attempt("chmod from there " + what, "chmod", name, 0o666)
    attempt("chmod of there " + what, "fchmodat2", HERE, b"", 0o777, EMPTY)
    attempt("times of there " + what, "utimensat", HERE, b".", None, 0)
    link = os.environ["TMPDIR"] + "/link-" + what
    os.symlink(path, link)
    attempt("chmod by a link to " + what, "chmod", os.fsencode(link), 0o666)
    attempt("utimensat by a link to " + what, "utimensat", HERE, os.fsencode(link), None, 0)
os.chdir(os.path.dirname(os.path.dirname(inside)))
"""


@pytest.mark.slow
def test_no_path_leads_to_the_mode_or_the_times_of_a_file_that_may_not_be_written(
    held: Attacked,
) -> None:
    outcomes = held.attack(BY_PATH)
    assert len(outcomes) > 100
    assert set(outcomes.values()) <= {errno.EPERM, errno.ELOOP}
    held.assert_unchanged()


BY_DESCRIPTOR = """
for what, path in (("shown", shown), ("protected", protected)):
    for way, flags in (("read", os.O_RDONLY), ("path", os.O_PATH), ("path", os.O_PATH | os.O_NOFOLLOW)):
        file = os.open(path, flags)
        attempt(f"fchmod {what} {flags}", "fchmod", file, 0o666)
        attempt(f"fchmodat2 {what} {flags}", "fchmodat2", file, b"", 0o666, EMPTY)
        attempt(f"futimens {what} {flags}", "utimensat", file, None, old, 0)
        attempt(f"futimens now {what} {flags}", "utimensat", file, None, None, 0)
        attempt(f"empty utimensat {what} {flags}", "utimensat", file, b"", None, EMPTY)
        attempt(f"futimesat {what} {flags}", "futimesat", file, None, None)
        for place in (b"/proc/self", b"/proc/thread-self", b"/dev", b"/proc/%d" % os.getpid()):
            name = b"%s/fd/%d" % (place, file)
            attempt(f"chmod {what} {flags} {name}", "chmod", name, 0o666)
            attempt(f"utimensat {what} {flags} {name}", "utimensat", HERE, name, None, 0)
attempt("standard input", "fchmod", 0, 0o666)
attempt("standard output", "fchmod", 1, 0o600)
attempt("a device", "chmod", b"/dev/null", 0o666)
"""


@pytest.mark.slow
def test_no_descriptor_changes_a_file_that_is_only_shown(held: Attacked) -> None:
    outcomes = held.attack(BY_DESCRIPTOR)
    assert len(outcomes) > 50
    assert set(outcomes.values()) <= {errno.EPERM, errno.ELOOP}
    held.assert_unchanged()


FORMS_INSIDE = """
folder, name = os.open(os.path.dirname(inside), os.O_RDONLY), os.path.basename(inside)
file = os.open(inside, os.O_RDONLY)
plain = os.open(inside, os.O_PATH)
def modes():
    yield "chmod", inside
    yield "fchmod", file
    yield "fchmodat", folder, name
    yield "fchmodat", 999, inside
    yield "fchmodat2", folder, name, NOFOLLOW
    yield "fchmodat2", file, b"", EMPTY
    yield "fchmodat2", plain, b"", EMPTY
    yield "chmod", b"/proc/self/fd/%d" % plain
    yield "chmod", b"/dev/fd/%d" % file
    yield "chmod", b"src/../src/./file"
for number, (called, *arguments) in enumerate(modes()):
    mode = 0o600 + number
    flags = [arguments.pop()] if called == "fchmodat2" else []
    attempt(f"{called} {arguments}", called, *arguments, mode, *flags)
    if numbers[called] is not None:
        tried(f"is {number}", lambda: os.stat(inside).st_mode & 0o7777 == mode or 1 / 0)
def times():
    yield "utime", 7, 9, inside, struct.pack("=2q", 7, 9)
    yield "utimes", 7.000005, 9.000006, inside, struct.pack("=4q", 7, 5, 9, 6)
    yield "futimesat", 8.000005, 9.000006, folder, name, struct.pack("=4q", 8, 5, 9, 6)
    yield "futimesat", 5.000005, 9.000006, file, None, struct.pack("=4q", 5, 5, 9, 6)
    yield "utimensat", 1.000000002, 3.000000004, folder, name, old, 0
    yield "utimensat", 2.000000002, 3.000000004, file, None, struct.pack("=4q", 2, 2, 3, 4), 0
    yield "utimensat", 2.000000002, 4, file, None, struct.pack("=4q", 0, 0x3ffffffe, 4, 0), 0
    yield "utimensat", 6, 6, plain, b"", struct.pack("=4q", 6, 0, 6, 0), EMPTY
for called, accessed, modified, *arguments in times():
    attempt(f"{called} {arguments}", called, *arguments)
    if numbers[called] is not None:
        found = os.stat(inside)
        tried(f"is {accessed} {modified}", lambda: (
            abs(found.st_atime - accessed) + abs(found.st_mtime - modified) < 0.0000001 or 1 / 0
        ))
"""


@pytest.mark.slow
def test_every_form_of_a_call_does_what_it_says_in_the_workspace(held: Attacked) -> None:
    outcomes = held.attack(FORMS_INSIDE)
    assert {what: got for what, got in outcomes.items() if got != "done"} == {}


MISTAKES = """
attempt("EFAULT", "fchmodat", HERE, 1, 0o600)
attempt("EFAULT far away", "fchmodat", HERE, -8, 0o600)
attempt("EFAULT nothing", "fchmodat", HERE, None, 0o600)
attempt("EFAULT times", "utimensat", HERE, inside, 1, 0)
attempt("ENOENT", "fchmodat", HERE, b"src/missing", 0o600)
attempt("ENOENT empty", "fchmodat", HERE, b"", 0o600)
attempt("ENOTDIR", "fchmodat", HERE, inside + b"/x", 0o600)
attempt("EBADF", "fchmod", 999, 0o600)
attempt("EBADF folder", "fchmodat", 999, b"x", 0o600)
attempt("ENAMETOOLONG", "fchmodat", HERE, b"x" * 5000, 0o600)
attempt("EINVAL flags", "fchmodat2", HERE, inside, 0o600, 0x800)
attempt("EINVAL times", "utimensat", HERE, inside, struct.pack("=4q", 0, -1, 0, 0), 0)
os.symlink("file", "src/link")
attempt("EOPNOTSUPP link", "fchmodat2", HERE, b"src/link", 0o600, NOFOLLOW)
attempt("ELOOP", "fchmodat", HERE, b"/proc/self/cwd", 0o600)
"""


def test_mistakes_get_the_kernels_own_errors(held: Attacked) -> None:
    outcomes = held.attack(MISTAKES)
    assert len(outcomes) == 14
    assert {
        what: got for what, got in outcomes.items() if got != getattr(errno, what.split()[0])
    } == {}


OWNERS = """
import stat
for path in (key, inside, shown):
    found = os.stat(path)
    user, group = found.st_uid, found.st_gid
    folder, name = os.open(os.path.dirname(path), os.O_PATH), os.path.basename(path)
    def forms(user, group):
        yield "chown", path, user, group
        yield "lchown", path, user, group
        yield "fchownat", folder, name, user, group, 0
        yield "fchownat", folder, name, user, group, NOFOLLOW
        yield "fchownat", os.open(path, os.O_PATH), b"", user, group, EMPTY
        if path != key:
            yield "fchown", os.open(path, os.O_RDONLY), user, group
    for same in ((user, group), (-1, group), (user, -1), (-1, -1)):
        for called, *arguments in forms(*same):
            attempt(f"same {called} {arguments}", called, *arguments)
    for other in ((user + 1, group), (-1, group + 1), (user + 1, -1), (0xFFFFFFFE, group)):
        for called, *arguments in forms(*other):
            attempt(f"other {called} {arguments}", called, *arguments)
"""


@pytest.mark.slow
def test_an_owner_stays_and_may_be_set_to_what_it_is(held: Attacked) -> None:
    outcomes = held.attack(OWNERS)
    same = {got for what, got in outcomes.items() if what.startswith("same")}
    other = {got for what, got in outcomes.items() if what.startswith("other")}
    assert (same, other) == ({"done"}, {errno.EPERM})
    held.assert_unchanged()


def test_a_file_that_gets_its_own_owner_loses_the_bit_of_its_group_as_outside(
    held: Attacked,
) -> None:
    own = "$(id -u):$(id -g)"
    told = held.text(
        f"cd src; touch a; mkdir d; chmod 2755 a d; cp -p a kept; chown {own} a d; stat -c %a a d kept"
    )
    assert told == "755\n2755\n2755"


ATTRIBUTES = """
import fcntl
value, attributes = b"value", struct.pack("=QII", 0, 5, 0)
for what, path in (("key", key), ("shown", shown), ("inside", inside)):
    for name in ("setxattr", "lsetxattr"):
        attempt(name + what, name, path, b"user.x", value, 5, 0)
    for name in ("removexattr", "lremovexattr"):
        attempt(name + what, name, path, b"user.x")
    attempt("setxattrat" + what, "setxattrat", HERE, path, 0, b"user.x", attributes, 16)
    attempt("removexattrat" + what, "removexattrat", HERE, path, 0, b"user.x")
    attempt("file_setattr" + what, "file_setattr", HERE, path, bytes(24), 24, 0)
    if what != "key":
        file = os.open(path, os.O_RDONLY)
        attempt("fsetxattr" + what, "fsetxattr", file, b"user.x", value, 5, 0)
        attempt("fremovexattr" + what, "fremovexattr", file, b"user.x")
        # These say "leave all as it is", so that they do no harm where they succeed.
        for request in (0x40086602, 0x40046602, 0x401C5820, 0x40087602):
            tried(f"{request:x} {what}", lambda: fcntl.ioctl(file, request, bytes(32)))
"""


def test_extended_attributes_and_flags_of_files_do_not_exist(held: Attacked) -> None:
    outcomes = held.attack(ATTRIBUTES)
    assert len(outcomes) > 30
    assert set(outcomes.values()) == {errno.EOPNOTSUPP}
    held.assert_unchanged()


SETUID = """
file = os.open(inside, os.O_RDWR)
for mode in (0o4755, 0o6755, 0o104755):
    attempt(f"chmod {mode}", "chmod", inside, mode)
    attempt(f"fchmod {mode}", "fchmod", file, mode)
    attempt(f"fchmodat {mode}", "fchmodat", HERE, inside, mode)
    attempt(f"fchmodat2 {mode}", "fchmodat2", HERE, inside, mode, 0)
    attempt(f"by descriptor {mode}", "fchmodat2", file, b"", mode, EMPTY)
"""


def test_no_form_makes_a_file_that_runs_as_its_owner(held: Attacked) -> None:
    assert set(held.attack(SETUID).values()) == {errno.EPERM}
    assert held.inside.stat().st_mode & 0o7777 == 0o600


@pytest.mark.slow
def test_files_of_other_users_are_refused_as_the_kernel_does_without_capabilities(
    held: Attacked,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of other users")
    os.chown(held.inside, SOMEBODY_ELSE, -1)
    outcomes = held.attack("""
attempt("mode", "fchmodat", HERE, inside, 0o666)
attempt("times", "utimensat", HERE, inside, old, 0)
attempt("now", "utimensat", HERE, inside, None, 0)
""")
    assert outcomes == {"mode": errno.EPERM, "times": errno.EPERM, "now": errno.EACCES}
    assert held.inside.stat().st_mode & 0o7777 == 0o600
