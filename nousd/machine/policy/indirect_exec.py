"""Programs and options that make one command run another.

One conservative table: whatever a rule for the outer command must not allow is recognised by name, never
by parsing arguments as the program does. A word that only looks like such an option costs one approval
request. It cannot be known which programs are harmless: a user who allows ``python *`` allows everything
that Python can do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from nousd.machine.policy.command_lines import Words


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


SHELLS: Final = _words("sh bash dash ash zsh ksh mksh rbash")
"""Programs that run the line after ``-c``."""

TRANSPARENT: Final = _words(
    "env nice ionice nohup timeout stdbuf setsid chrt taskset sudo doas command exec builtin time"
)
"""Programs that run the program named in their arguments, and no other."""

_OPERANDS: Final = _words("timeout chrt taskset")
"""Transparent programs that take an operand before the program."""

_LINES: Final = {
    "env": "-S --split-string",
    "sudo": "-s -i -e --shell --login --edit",
    "doas": "-s",
}
"""Options of transparent programs that make a shell, or the program itself, read a line."""

_BUILTINS: Final = frozenset().union(
    # shell builtins that run words, or change the meaning of the words after them
    _words("eval source . trap enable alias unalias hash jobs compgen complete compopt bind fc"),
    _words("history mapfile readarray read getopts let declare typeset local readonly export set"),
    _words("shopt unset coproc"),
)

_PROGRAMS: Final = SHELLS | TRANSPARENT.union(
    # other shells, and multi-call programs
    _words("fish csh tcsh elvish nu pwsh powershell cmd busybox toybox coreutils"),
    # as another user, elsewhere, in a container
    _words("su pkexec runuser run0 setpriv sg newgrp chroot unshare nsenter bwrap firejail nsjail"),
    _words(
        "minijail0 flatpak snap systemd-run systemd-nspawn machinectl capsh fakeroot proot runc"
    ),
    _words(
        "crun ctr nerdctl lxc-execute lxc-attach distrobox toolbox dbus-run-session dbus-launch"
    ),
    _words("ssh slogin scp sftp rsh rlogin mosh sshpass ssh-agent autossh pssh dsh clush fab salt"),
    _words("ansible ansible-playbook ansible-console telnet socat nc ncat netcat ftp lftp"),
    # with many inputs, repeatedly, later, under limits, watched
    _words("xargs parallel sem watch watchexec entr nodemon hyperfine multitime run-parts rlwrap"),
    _words("at batch crontab anacron logrotate daemonize start-stop-daemon service launchctl"),
    _words("screen tmux byobu zellij dtach abduco xterm konsole alacritty kitty gnome-terminal"),
    _words(
        "setarch uname26 linux32 linux64 i386 x86_64 personality prlimit numactl cpulimit choom flock"
    ),
    _words("chpst faketime torsocks proxychains proxychains4 unbuffer script expect xvfb-run"),
    _words(
        "valgrind strace ltrace perf gdb lldb rr catchsegv ld.so ld-linux.so ld-linux-x86-64.so"
    ),
    _words("chronic ifne pee mispipe vipe vidir direnv mise asdf dotenv op aws-vault fnm volta"),
    _words("npx bunx pnpx uvx pipx xdg-open open gio wslview"),
    # the same for services, with limits or locks
    _words("eatmydata systemd-inhibit systemd-cat cgexec gosu su-exec tini dumb-init catatonit"),
    _words(
        "setuidgid envdir envuidgid softlimit setlock execlineb torify tsocks fakechroot nq ts tsp"
    ),
    # languages, editors and pagers that can run anything
    _words("awk gawk mawk nawk original-awk goawk vi vim view vimdiff nvim ex ed red emacs"),
    _words("emacsclient nano pico joe less more most pg man info dc m4 gnuplot mail mailx mutt"),
)

_RUNNERS: Final = _PROGRAMS | _BUILTINS
"""Programs that run the commands in their arguments or input, whatever these are."""

_INTERPRETER: Final = "-c -e -E -r -R -p -x -i - --eval --execute --print --run --command"

_OPTIONS: Final = {
    "find": "-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls",
    "fd": "-x -X --exec --exec-batch",
    "fdfind": "-x -X --exec --exec-batch",
    "git": "-c -C -x -O -u --config --config-env --exec-path --exec --git-dir --work-tree --ext-diff "
    "--textconv --open-files-in-pager --output --output-directory --upload-pack --receive-pack "
    "--template --extcmd --tool --sendmail-cmd --smtp-server --to-cmd --cc-cmd --paginate --editor "
    "--filter ext::* config bisect submodule filter-branch filter-repo difftool mergetool hook "
    "credential send-email daemon maintenance merge-index remote-ext remote-fd for-each-repo "
    "instaweb web--browse gui citool p4 svn cvsimport cvsserver",
    "hg": "--config --cwd --repository --debugger -R",
    "svn": "--config-option --diff-cmd --diff3-cmd --editor-cmd --config-dir",
    "tar": "-I -F --use-compress-program --to-command --checkpoint-action --rsh-command --rmt-command "
    "--info-script --new-volume-script",
    "bsdtar": "--use-compress-program",
    "cpio": "--rsh-command --rmt-command",
    "rsync": "-e --rsh --rsync-path --config --daemon",
    "sort": "-o --output --compress-program",
    "split": "--filter",
    "install": "--strip-program",
    "sdiff": "--diff-program",
    "gpg": "--photo-viewer --exec-path --agent-program --options --homedir",
    "ssh-keygen": "-D -w",
    "apt": "-o -c --option --config-file",
    "apt-get": "-o -c --option --config-file",
    "dpkg": "--pre-invoke --post-invoke --instdir --root --admindir",
    "gradle": "-I --init-script -c -b",
    "mvn": "exec:exec exec:java -f -s",
    "tex": "-shell-escape -enable-write18",
    "zip": "-T --unzip-command --test",
    "rg": "--pre --hostname-bin",
    "ack": "--pager --ackrc",
    "ag": "--pager",
    "fzf": "--bind --preview --become",
    "tree": "-o",
    "tcpdump": "-z -w",
    "wget": "-e -O -o --execute --use-askpass --config",
    "curl": "-K -o -O -D -c -J --config --engine --output --output-dir --remote-name "
    "--remote-name-all --remote-header-name --dump-header --cookie-jar --trace --trace-ascii "
    "--stderr --libcurl --hsts --alt-svc --etag-save",
    "ip": "netns vrf -batch -force -b",
    "openssl": "-engine -provider engine",
    "test": "-v -R",
    "printf": "-v",
    "wait": "-p",
    "cc": "-wrapper -B -fplugin* -specs* @*",
    "ld": "-plugin --plugin -dynamic-linker @*",
    "make": "-f -E -I -C --file --makefile --eval --directory --include-dir =",
    "ninja": "-f -C",
    "cmake": "-E -P -C",
    "just": "-f --justfile --shell --shell-arg --command",
    "meson": "--wrap-mode exec",
    "go": "run generate tool -exec -toolexec -vettool* -overlay -C "
    "-ldflags -modfile -coverprofile -cpuprofile -memprofile -blockprofile -mutexprofile -trace "
    "-outputdir",
    "cargo": "run --config -Z -C --manifest-path",
    "npm": "exec x init create explore edit config set --script-shell --node-options --shell --prefix "
    "-C --userconfig --globalconfig",
    "yarn": "dlx exec node create config --cwd --use-yarnrc",
    "pnpm": "dlx exec create config --script-shell --shell-emulator -C --dir",
    "bun": "x run create -e --eval --print --preload",
    "uv": "run tool",
    "poetry": "run shell config",
    "pipenv": "run shell",
    "pdm": "run config",
    "hatch": "run shell",
    "rye": "run",
    "conda": "run init config",
    "nix": "run shell develop repl -c --command --run",
    "bundle": "exec config",
    "rbenv": "exec init",
    "pyenv": "exec init",
    "docker": "run exec compose buildx build --host --config plugin",
    "podman": "run exec build unshare --runtime --remote",
    "kubectl": "exec run debug cp plugin edit config --kubeconfig",
    "systemctl": "edit start restart --host -H",
    "pytest": "-p -c -o --pdbcls --pyargs --rootdir --confcutdir",
    "python": f"{_INTERPRETER} -m",
    "pypy": f"{_INTERPRETER} -m",
    "perl": f"{_INTERPRETER} -M -m -I -n -s -d -D",
    "ruby": f"{_INTERPRETER} -I -n -S",
    "node": f"{_INTERPRETER} --require --import --loader --experimental-loader",
    "deno": "eval run repl task -A",
    "php": f"{_INTERPRETER} -B -F -S -a -d -z",
    "lua": f"{_INTERPRETER} -l",
    "luajit": f"{_INTERPRETER} -l",
    "tclsh": "-",
    "rscript": _INTERPRETER,
    "julia": f"{_INTERPRETER} -L",
    "osascript": "-",
    "groovy": _INTERPRETER,
    "scala": _INTERPRETER,
    "elixir": _INTERPRETER,
    "erl": "-eval -run -s",
    "racket": _INTERPRETER,
    "guile": _INTERPRETER,
    "sbcl": "--eval --load",
    "clojure": _INTERPRETER,
    "octave": "--eval",
    "java": "-XX:* -agentpath* -agentlib* -javaagent* @*",
    "rustc": "-C --codegen",
    "patch": "-e -i -o --ed --input --output",
    "diff3": "--diff-program",
    "exiftool": "-config -if",
    "latexmk": "-e -r -pdflatex* -latex*",
    "pandoc": "-F -L -o --filter --lua-filter --pdf-engine --output",
    "bazel": "run --run_under --shell_executable",
    "jshell": "-",
    "ghc": "-e -F -pgmF",
    "sqlite3": "-cmd -init .*",
    "mypy": "--python-executable --config-file --install-types",
    "eslint": "-c -f --config --format --rulesdir --plugin --parser -o --output-file "
    "--resolve-plugins-relative-to",
    "pip": "--python --config-settings --global-option --build-option",
    "bat": "--pager",
    "delta": "--pager",
    "file": "-C --compile",
    "r": "-e -f --file",
    "psql": "-c -f --command --file -o",
    "mysql": "-e --execute --pager",
}
"""program -> arguments that make it run another program or write a file that they name.

``--long`` also matches its abbreviations and ``--long=...``; ``-x`` any cluster of letters that contains
it; ``-word`` and ``word`` themselves; a star any ending; ``=`` any word that contains that sign.
"""

_SAME_AS: Final = {
    "gfind": "find",
    "gtar": "tar",
    "gsort": "sort",
    "gsplit": "split",
    "gmake": "make",
    "gsed": "sed",
    "gcc": "cc",
    "g++": "cc",
    "c++": "cc",
    "clang": "cc",
    "clang++": "cc",
    "nodejs": "node",
    "batcat": "bat",
    "gtime": "time",
    "ipython": "python",
    "pdflatex": "tex",
    "latex": "tex",
    "xelatex": "tex",
    "lualatex": "tex",
    "genv": "env",
    "gxargs": "xargs",
    "gawk": "awk",
    "gtimeout": "timeout",
    "gnice": "nice",
    "gnohup": "nohup",
    "gstdbuf": "stdbuf",
}

_SED_OPTION: Final = re.compile(r"-[nErsuz]+|--quiet|--silent|--regexp-extended|--posix|--debug")
_SED_SCRIPT: Final = re.compile(
    r"(?:[0-9]+|\$)?(?:,\+?(?:[0-9]+|\$))?[pdq=]"
    r"|s(?P<end>[/|,#:@])(?:(?!(?P=end))[^\\\[\n])*(?P=end)(?:(?!(?P=end))[^\\\n])*(?P=end)[gpI0-9]*"
)
"""Scripts of sed that certainly neither run a command (``e``) nor read or write a file
(``r``, ``w``)."""

_VERSION: Final = re.compile(r"[-.0-9]+$")

_TAKE_SCRIPTS: Final = frozenset(
    [
        "python",
        "pypy",
        "perl",
        "ruby",
        "node",
        "php",
        "lua",
        "luajit",
        "tclsh",
        "rscript",
        "julia",
        "osascript",
    ]
)
"""Programs whose own options end at the name of a script."""

_TAKE_MODULES: Final = frozenset({"python", "pypy"})
"""Programs among them that run a module with ``-m``."""


def program_of(words: Words) -> str:
    """Return the name of the program, without its directory and version, in lower case."""
    return _program(words[0])


@lru_cache(maxsize=4096)
def _program(word: str) -> str:
    name = word.rpartition("/")[2].lower()
    # As in python3.11, vim.basic and bash-static.
    names = (name, _VERSION.sub("", name), name.partition(".")[0], name.removesuffix("-static"))
    known = (each for each in names if each in _OPTIONS or each in _RUNNERS or each in _SAME_AS)
    found = next(known, names[1])
    return _SAME_AS.get(found, found)


def runs_others(words: Words) -> bool:
    """Return whether the purpose of the program is to run others."""
    return program_of(words) in _RUNNERS


def starts_others(word: str) -> bool:
    """Return whether a word names a program (not a shell builtin) whose purpose is to run others."""
    return program_of((word,)) in _PROGRAMS


@lru_cache(maxsize=256)
def reads_line(words: Words) -> bool:
    """Return whether an option makes a transparent program read a line, in which a word can be spelled
    in many ways.
    """
    options = _LINES.get(program_of(words), "").split()
    return any(_means(option, word) for word in words[1:] for option in options)


def find_wrapped_commands(words: Words) -> Iterator[Words]:
    """Yield the commands that a transparent program may run: one from each word that can be the first of
    a command.
    """
    may_be_operand = program_of(words) in _OPERANDS
    may_be_value = False
    for index, word in enumerate(words[1:], 1):
        if word.startswith("-"):
            may_be_value = True
        elif "=" not in word:
            yield words[index:]
            if not (may_be_value or may_be_operand):
                return
            may_be_operand = may_be_operand and may_be_value
            may_be_value = False


@lru_cache(maxsize=256)
def may_hide_command(words: Words, literal: int = 1) -> bool:
    """Return whether a command may run another that its first words do not show.

    Args:
        literal: number of words that the rule spells out, including the program.
    """
    program = program_of(words)
    if program in _RUNNERS:
        return True
    if program == "sed":
        return not _is_plain_sed(words[1:])
    if program in _TAKE_MODULES and words[1:2] == ("-m",) and literal > 2:
        # The module is a program of its own, with its own options.
        return may_hide_command(words[2:], literal - 2)
    if program in _TAKE_SCRIPTS and literal > 1 and not words[1].startswith("-"):
        return False
    options = _OPTIONS.get(program, "").split()
    behind = words[literal:]
    if program == "tar" and literal == 1 and behind and not behind[0].startswith("-"):
        # The first argument of tar is a cluster of options without a dash.
        behind = (f"-{behind[0]}", *behind[1:])
    if program == "git" and literal == 1 and "/" in next(_no_options(behind), ""):
        # git ./x runs the file git-./x.
        return True
    return any(_means(option, word) for word in behind for option in options)


def _no_options(words: Words) -> Iterator[str]:
    return (word for word in words if not word.startswith("-"))


def takes_script(words: Words) -> bool:
    """Return whether the program is an interpreter, so that its arguments are code in a language
    other than the shell's.
    """
    return program_of(words) in _TAKE_SCRIPTS


def _means(option: str, word: str) -> bool:
    name = word.partition("=")[0]
    if option == "=":
        return "=" in word
    if option.endswith("*"):
        return word.startswith(option[:-1])
    if option.startswith("--"):
        return len(name) > 2 and option.startswith(name)
    if option.startswith("-") and len(option) == 2:
        return word[:1] == "-" != word[1:2] and option[1] in word
    return name in (option, f"-{option}")


def _is_plain_sed(arguments: Words) -> bool:
    """Return whether the first argument that is not an option is a certainly harmless sed script."""
    options = 0
    while options < len(arguments) and _SED_OPTION.fullmatch(arguments[options]):
        options += 1
    rest = arguments[options:]
    return (
        bool(rest)
        and _SED_SCRIPT.fullmatch(rest[0]) is not None
        and not any(word.startswith("-") for word in rest[1:])
    )
