"""What the jobs of ``daily_work`` find in the folder ``src`` of a workspace."""

from __future__ import annotations

import os
import subprocess
import zipfile
from functools import partial
from pathlib import Path

import msgspec


def put(path: Path, content: str, mode: int = 0o644) -> None:
    """Make a file with the directories around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)


def make_c_project(work: Path) -> None:
    put(work / "src" / "main.c", '#include "part.h"\nint main(void) { return part(3) - 7; }\n')
    put(work / "src" / "part.c", '#include "part.h"\nint part(int x) { return 2 * x + 1; }\n')
    put(work / "src" / "part.h", "int part(int x);\n")
    rules = (
        "CFLAGS = -g -O1 -Wall\n"
        "prog: main.o libpart.a\n\t$(CC) -o $@ $^\n"
        "libpart.a: part.o\n\t$(AR) rcD $@ $^\n"
        "main.o part.o: part.h\n"
        "libpart.so: part.c\n\t$(CC) -shared -fPIC -o $@ $<\n"
        "install: prog\n\tinstall -D -m 755 prog out/bin/prog\n"
        "clean:\n\trm -f *.o *.a prog\n"
    )
    put(work / "src" / "Makefile", rules)


def make_wheel(work: Path) -> None:
    info = "demo-1.0.dist-info"
    files = {
        "demo/__init__.py": "def main():\n    print('demo says hello')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ndemo = demo:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    folder = work / "src" / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "demo-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name), content)


def make_package(work: Path) -> None:
    package = {"name": "demo", "version": "1.0.0", "main": "index.js", "bin": {"demo": "cli.js"}}
    put(work / "src" / "demo" / "package.json", msgspec.json.encode(package).decode())
    put(work / "src" / "demo" / "index.js", "module.exports = () => 'demo says hello'\n")
    put(
        work / "src" / "demo" / "cli.js",
        "#!/usr/bin/env node\nconsole.log(require('.')())\n",
        0o755,
    )
    scripts = {"say": "demo && node -e \"console.log(require('demo')())\""}
    app = {"name": "app", "version": "1.0.0", "private": True, "scripts": scripts}
    put(work / "src" / "app" / "package.json", msgspec.json.encode(app).decode())


def make_crate(work: Path) -> None:
    crate = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n'
    code = (
        'fn main() { println!("demo says hello"); }\n#[test]\nfn adds() { assert_eq!(1 + 1, 2); }\n'
    )
    put(work / "src" / "Cargo.toml", crate)
    put(work / "src" / "src" / "main.rs", code)


def make_files(work: Path) -> None:
    """Files of several modes with a time in the past, links, and a name that needs quotes."""
    for number, mode in enumerate((0o600, 0o644, 0o751, 0o444)):
        put(work / "src" / "from" / "d" / f"file {number}", f"line one\nline {number}\n", mode)
    (work / "src" / "from" / "d").chmod(0o2750)
    (work / "src" / "from" / "link").symlink_to("d/file 1")
    (work / "src" / "from" / "broken").symlink_to("nowhere")
    (work / "src" / "from" / "same").hardlink_to(work / "src" / "from" / "d" / "file 2")
    for path in (*(work / "src" / "from").rglob("*"), work / "src" / "from"):
        os.utime(path, (86400, 1_000_000), follow_symlinks=False)


def make_repositories(work: Path) -> None:
    """The workspace itself, on a branch main beside topic; and ``two``, from which one can fetch."""
    run = partial(subprocess.run, check=True, cwd=work, stdout=subprocess.DEVNULL)
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    env |= dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "1000000000 +0000")
    named = ("-c", "user.name=Ann", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")

    def git(*arguments: str) -> None:
        run(["git", *named, *arguments], env=env)

    git("init", "-q")
    (work / "a.txt").write_text("first\n")
    git("add", "a.txt")
    git("commit", "-qm", "first")
    git("branch", "topic")
    for branch in ("main", "topic"):
        git("checkout", "-q", branch)
        (work / "a.txt").write_text(f"{branch}\n")
        git("commit", "-qam", branch)
    git("checkout", "-q", "main")
    git("clone", "-q", "--bare", "--no-hardlinks", ".", "src/two")
