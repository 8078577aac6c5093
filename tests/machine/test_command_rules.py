"""Command lines and rules for them: no hidden second command is allowed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import RuleInvalid
from nousd.machine.policy.command_lines import (
    JUDGED_CHARS_MAX,
    JUDGED_PARTS_MAX,
    JUDGED_WORDS_MAX,
    parts_of,
)
from nousd.machine.policy.permission import Case, judge
from nousd.machine.policy.rules import check_rule, rules_of
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.tool_footprint import Access
from tests.harness.daemon import WAIT_SECONDS


def verdict(
    line: str,
    *,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    granted: Sequence[str] = (),
    mode: PermissionMode = "ask",
) -> str:
    access = Access(classes=frozenset({"exec"}), command=line, is_confined=True)
    rules = (
        *rules_of("allow", allow, "test"),
        *rules_of("ask", ask, "test"),
        *rules_of("deny", deny, "test"),
        *rules_of("allow", granted, "the user", is_grant=True),
    )
    return judge(Case("bash", access, mode, rules)).verdict


# --- the grammar -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("git log", (("git", "log"),)),
        ("  git\t log  ", (("git", "log"),)),
        ("'git' l\"o\"g", (("git", "log"),)),
        ("echo 'a b' \"c;d|e\" ''", (("echo", "a b", "c;d|e", ""),)),
        ("a && b||c;d|e", (("a",), ("b",), ("c",), ("d",), ("e",))),
        ("echo '$x `y` \\ ! * #'", (("echo", "$x `y` \\ ! * #"),)),
        ("echo if then", (("echo", "if", "then"),)),
        ("grep a=b --x=y @ % + ^ , :", (("grep", "a=b", "--x=y", "@", "%", "+", "^", ",", ":"),)),
    ],
)
def test_a_line_in_the_grammar_splits_into_commands_and_words(line: str, parts: object) -> None:
    assert parts_of(line) == parts


OUTSIDE = [
    *("git log > x", "git log >> x", "git log < x", "git log 2>&1", "git log <<< x", "cat <<E"),
    *("git log &", "a & b", "a &&& b", "a |& b", "git log $(x)", "git log `x`", "git log $x"),
    *("git log ${x}", 'echo "$(x)"', 'echo "`x`"', 'echo "$x"', "echo $'x'", 'echo $"x"'),
    *("A=b git log", "A+=b git log", "A=b", "a && B=c d", "git log\nrm x", "git log\rrm x"),
    *("'git\nlog'", '"a\nb"', "git log\\\nrm", "git \\log", 'echo "\\x"', "ls *", "ls ?", "ls [a]"),
    *("ls ~", "ls a~", "ls {a,b}", "{ ls; }", "(ls)", "f() { ls; }", "ls #x", "! ls", "!ls"),
    *(
        'echo "!x"',
        "if ls; then rm; fi",
        "time ls",
        "function f",
        "for x in a",
        "while ls",
        "coproc a",
    ),
    *(
        "ls\0rm",
        "'a\0b'",
        "ls\x1b[0m",
        "'unclosed",
        '"unclosed',
        "a &&",
        "&& a",
        "a ;; b",
        "a;",
        ";",
    ),
    *(
        "a || | b",
        "",
        "   ",
        "''",
        "'' a",
        "ls ü",
        "ls\u00a0x",
        "ls\u2028rm",
        "case x in",
        "a | | b",
        "%1",
        "a; %b",
    ),
]


@pytest.mark.parametrize("line", OUTSIDE)
def test_a_line_outside_the_grammar_has_no_parts_and_matches_no_allow_pattern(line: str) -> None:
    assert parts_of(line) is None
    assert verdict(line, allow=["bash(*)", "bash(git *)", "bash(ls *)", "bash(echo *)"]) == "ask"


def test_a_line_that_is_too_long_has_no_parts() -> None:
    longest = "a" * JUDGED_CHARS_MAX
    assert parts_of(longest) == ((longest,),)
    assert parts_of(longest + "a") is None


def test_a_line_with_too_many_words_or_commands_has_no_parts() -> None:
    words = " ".join(["a"] * JUDGED_WORDS_MAX)
    commands = ";".join(["a"] * JUDGED_PARTS_MAX)
    assert parts_of(words) is not None
    assert parts_of(commands) is not None
    assert parts_of(words + " a") is None
    assert parts_of(commands + ";a") is None


_lines = st.lists(
    st.sampled_from(
        ["a", "b1", " ", " ", "'", '"', ";", "|", "&", "&&", "||", "$", "\\", "x=y", "~", "'c d'"]
    ),
    min_size=1,
    max_size=8,
).map("".join)


@given(_lines)
def test_bash_splits_a_line_in_the_grammar_into_the_same_words(line: str) -> None:
    parts = parts_of(line)
    if parts is None:
        return
    # For each command name a shell function prints the words of its call on one line.
    names = sorted({part[0] for part in parts})
    if not all(name.isalnum() for name in names):
        return
    shows = "".join(
        f"{name}() {{ printf '<%s>' {name} \"$@\" >&2; echo >&2; }}\n" for name in names
    )
    # A part after || would not run; one after | would run concurrently, in unknown order.
    script = shows + line.replace("||", ";").replace("|", ";").replace("&&", ";")
    printed = subprocess.run(
        ["/bin/bash", "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    if not set("|&;") & set("".join(word for part in parts for word in part)):
        wanted = ["".join(f"<{word}>" for word in part) for part in parts]
        assert printed.stderr.splitlines() == wanted


# --- allow rules ---------------------------------------------------------------------------------


ALLOWED = [
    ("git log", "git log"),
    ("git log *", "git log"),
    ("git log *", "git log -5 --oneline HEAD^"),
    ("git log *", "'git' \"log\" 'a;rm -rf x'"),
    ("git  log  *", "git log"),
    ("git commit -m 'a b'", 'git commit -m "a b"'),
    ("python -m pytest *", "python -m pytest -x -k tests"),
    ("git *", "git add ."),
    ("go test *", "go test -short -count=1"),
    ("python tool.py *", "python tool.py -c x"),
    ("uv run pytest *", "uv run pytest tests"),
    ("sed *", "sed -n 1,20p a.txt"),
    ("sed *", "sed 's/a b/c/g' a.txt"),
    ("find *", "find src -name '*.py' -type f"),
    ("tar *", "tar tf a.tar"),
    ("env", "env"),
    ("timeout 60 pytest", "timeout 60 pytest"),
    ("*", "ls -l"),
    ("=git log > x", "git log > x"),
    ("=a\nb", "a\nb"),
]


@pytest.mark.parametrize(("pattern", "line"), ALLOWED)
def test_an_allow_rule_allows_a_matching_line(pattern: str, line: str) -> None:
    assert verdict(line, allow=[f"bash({pattern})"]) == "allow"


FOR_THE_FIRST = [
    # another program, or another line
    *(("git log *", line) for line in ("git logs", "git", "/tmp/git log", "./git log", "GIT log")),
    *(("git log", line) for line in ("git log -5", "git log ''", "gitlog")),
    ("=git log > x", "git log >  x"),
    ("=git log", "git log; rm x"),
    # a second command in the line
    *(
        ("git log *", f"git log {more}")
        for more in (
            "; rm x",
            "&& rm x",
            "|| rm x",
            "| sh",
            "& rm x",
            "\nrm x",
            "\rrm x",
            "$(rm x)",
        )
    ),
    *(
        ("git log *", f"git log {more}")
        for more in ("`rm x`", '"$(rm x)"', "<(rm x)", "> x", "${x}")
    ),
    *(("git log *", f"{before} git log") for before in ("rm x;", "rm x &&", "rm x |", "rm x\n")),
    *(("git log *", f"{before}git log") for before in ("X=1 ", "GIT_PAGER='sh -c x' ", "PATH=. ")),
    # programs that run others
    *(
        ("*", f"{runner} rm x")
        for runner in (
            *(
                "env",
                "sudo",
                "xargs",
                "nice",
                "nohup",
                "timeout 5",
                "exec",
                "eval",
                "command",
                "source",
            ),
            *(
                "builtin",
                "watch",
                "parallel",
                "ssh host",
                "setsid",
                "stdbuf -o0",
                "strace",
                "script -c",
            ),
            *(
                "/usr/bin/env",
                "busybox",
                "npx",
                "doas",
                "unshare",
                "chroot .",
                "flock x",
                "bash",
                ".",
            ),
            *(
                "python3.11 -c",
                "bash -c",
                "zsh -c",
                "dash",
                "fish -c",
                "trap",
                "alias a=",
                "awk",
                "vim",
            ),
            *(
                "jobs -x",
                "printf -v",
                "test -v 'a[$(x)]'",
                "export PATH=.;",
                "declare x=1;",
                "gawk",
            ),
        )
    ),
    ("*", "env -S 'rm x'"),
    ("*", "'bash' -c 'rm x'"),
    ("*", "ls | xargs rm"),
    ("ls *", "ls | xargs rm"),
    # options that do
    *(
        ("find *", f"find . {option} x")
        for option in (
            "-exec rm",
            "-execdir rm",
            "-ok rm",
            "-okdir rm",
            "-delete",
            "-fprint",
            "-fls",
        )
    ),
    ("find . -exec grep x '{}' *", "find . -exec grep x '{}' ';' -exec rm y ';'"),
    *(
        ("git *", f"git {more}")
        for more in (
            *("-c core.pager=x log", "-c alias.l='!rm' l", "--exec-path=. log", "--exec-p=. log"),
            *("--config-env=core.pager=X log", "log --output=x", "log --outp=x", "grep -Oless x"),
            *(
                "rebase -x rm",
                "rebase --exec=rm",
                "bisect run rm",
                "submodule foreach rm",
                "clone -u x .",
            ),
            *(
                "config alias.x '!rm'",
                "--git-dir=x log",
                "-C x log",
                "difftool -x rm",
                "fetch ext::sh",
            ),
            *(
                "filter-branch --x",
                "log --ext-diff",
                "clone --template=x .",
                "push --receive-pack=x",
            ),
        )
    ),
    *(
        ("tar *", f"tar {more}")
        for more in ("--to-command=rm tf x", "--to-c=rm tf x", "tfI x rm", "-I rm")
    ),
    *(
        ("tar *", f"tar {more}")
        for more in ("--checkpoint-action=exec=rm", "--use-compress-program=rm")
    ),
    *(("rsync *", f"rsync {more}") for more in ("-e rm a b", "-ave rm a b", "--rsh=rm a b")),
    *(
        ("sort *", f"sort {more}")
        for more in ("--compress-program=rm x", "--compress-prog=rm x", "-o x")
    ),
    *(
        ("sed *", f"sed {more}")
        for more in (
            *(
                "'s/a/b/e'",
                "'1e rm'",
                "'w x'",
                "'s/a/b/w x'",
                "-i s/a/b/ x",
                "-f x",
                "-n -e p",
                "--file=x",
            ),
            *(
                "'s/a/b/;e rm'",
                "p --in-place x",
                "'s|a/b/e|x|;1e rm'",
                "--expression=1e",
                "'s/a\\/;e x/b/'",
            ),
        )
    ),
    ("python *", "python -c 'import os'"),
    ("python3 *", "python3 -Ic 'import os'"),
    ("python -W ignore *", "python -W ignore -c x"),
    ("perl *", "perl -e x"),
    ("perl *", "perl -ne x"),
    ("node *", "node --eval=x"),
    ("make *", "make SHELL=./x"),
    ("make *", "make --eval=x"),
    ("rg *", "rg --pre=x y"),
    ("fd *", "fd -x rm"),
    ("go *", "go test -exec=x"),
    ("go test *", "go test --exec x"),
    ("npm *", "npm exec x"),
    ("uv *", "uv run x"),
    ("wget *", "wget --use-askpass=x y"),
    ("split *", "split --filter=x y"),
    ("curl *", "curl -o .bashrc x"),
    ("curl *", "curl -D .bashrc x"),
    ("curl *", "curl --cookie-jar=.bashrc x"),
    ("python -m pytest *", "python -m pytest -p evil"),
    ("python -m pytest *", "python -m pytest -vp evil"),
    ("python -m mypy *", "python -m mypy --python-exec=./evil"),
    ("perl -m strict *", "perl -m strict -e code"),
    ("mypy *", "mypy --python-executable ./evil"),
    ("eslint *", "eslint --rulesdir evil"),
    ("npm test *", "npm test --userconfig=evil"),
    ("npm test *", "npm test -C evil"),
    ("yarn test *", "yarn test --cwd evil"),
    ("cargo test *", "cargo test --manifest-path=evil"),
    ("go test *", "go test -ldflags=-extld=./evil"),
    ("pip list *", "pip list --python ./evil"),
    ("bat *", "bat --pager=./evil"),
    *(
        ("git *", f"git {more}")
        for more in (
            *("./x", "--no-pager ../x", "merge-index ./evil -a", "remote-ext origin evil"),
            *("for-each-repo --config=a.b evil", "filter-repo --blob-callback evil", "instaweb"),
        )
    ),
    *(
        ("*", f"{runner} evil")
        for runner in (
            *(
                "/usr/bin/time",
                "eatmydata",
                "systemd-cat",
                "vim.basic",
                "bash-static",
                "nc.openbsd",
            ),
            *("busybox.static", "gosu me", "tini"),
        )
    ),
]


@pytest.mark.behaviour("a_rule_for_one_command_allows_no_other")
@pytest.mark.parametrize(("pattern", "line"), FOR_THE_FIRST)
def test_an_allow_rule_for_one_command_allows_no_other(pattern: str, line: str) -> None:
    assert verdict(line, allow=[f"bash({pattern})"]) == "ask"


def test_every_command_in_a_line_must_be_allowed() -> None:
    rules = ["bash(git log *)", "bash(head *)"]
    assert verdict("git log | head -5", allow=rules) == "allow"
    assert verdict("git log | head -5 && wc", allow=rules) == "ask"
    assert verdict("git log | head -5", allow=rules[:1]) == "ask"


@pytest.mark.parametrize(
    "rule",
    [
        *(
            "bash(sudo *)",
            "bash(bash -c *)",
            "bash(find . -exec *)",
            "bash(uv run *)",
            "bash(git -c *)",
        ),
        *(
            "bash(git * log)",
            "bash(git:*)",
            "bash(git log; ls)",
            "bash(a > b)",
            "bash()",
            "bash(x",
            "(x)",
        ),
        *(
            "ba sh(x)",
            "",
            "read(/etc)",
            "read(../x)",
            "bash(python -m *)",
            "write(~/x)",
            "bash(xargs *)",
        ),
    ],
)
def test_an_allow_rule_that_is_malformed_or_allows_any_command_is_refused(rule: str) -> None:
    with pytest.raises(RuleInvalid, match="allow rule"):
        check_rule(rule, "allow")


def test_a_deny_rule_may_name_a_program_that_runs_others() -> None:
    check_rule("bash(sudo *)", "deny")
    assert verdict("sudo rm x", deny=["bash(sudo *)"], mode="yolo") == "deny"


# --- deny and ask rules --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("curl x", "curl", "ls; curl x", "ls | curl x", "/usr/bin/curl x", "'cu''rl' x"),
        *(
            "bash -c 'curl x'",
            "sh -ec 'ls && curl x'",
            "bash -c \"bash -c 'curl x'\"",
            "true && curl x",
        ),
    ],
)
@pytest.mark.parametrize("mode", ["ask", "auto", "yolo"])
def test_a_deny_rule_matches_any_command_in_the_line_in_every_mode(
    line: str, mode: PermissionMode
) -> None:
    rules = {"allow": ["bash", "bash(*)", f"bash(={line})"], "granted": [f"bash(={line})"]}
    assert verdict(line, deny=["bash(curl *)"], mode=mode, **rules) == "deny"


DOUBTFUL = [
    *(
        "env curl x",
        "timeout 5 curl x",
        "nice curl x",
        "env -S 'curl x'",
        "sudo -u me /usr/bin/curl x",
    ),
    *(
        "xargs ls",
        "find . -exec curl x ';'",
        "eval ls",
        "ssh host ls",
        "bash x.sh",
        "bash -c 'ls > x'",
    ),
    *(
        "ls > x",
        "ls $(x)",
        "X=1 curl",
        "curl\\ x",
        "cur? x",
        "python -c 'run(curl)'",
        "awk x",
        ". x",
    ),
    *("git -c alias.x='!curl' x", "tar --to-command=curl tf x", "ls\ncurl x", "bash -c"),
]


DODGES = [
    # options of a shell after -c, and words that are parsed a second time
    *("bash -c -- 'curl x'", "bash -c -x 'curl x'", "sh -c +x 'curl x'", "bash -co posix 'curl x'"),
    *("env -S 'cu\"\"rl x'", "env -vS 'cu\\rl x'", "env --split='cu\\rl x'", "sudo -s 'cu\\rl x'"),
    *(
        "nice bash -c \"cu''rl x\"",
        "timeout -s 9 5 bash -c \"cu''rl x\"",
        "env A=b sh -c \"cu''rl\"",
    ),
    *(
        "sudo -u bash sh -c \"cu''rl x\"",
        "nice env nice sh -c 'cu\\rl x'",
        "command eval 'cu\\rl x'",
    ),
    *("nice " * 9 + "sh -c 'cu\\rl x'", "env" + " -u a" * 9 + " sh -c 'cu\\rl x'"),
    *("find . -exec sh -c 'cu\\rl x' ';'", "find . -exec env -S 'cu\\rl x' ';'"),
    *("find . -exec cu''rl x ';'", "tar tf x --to-command='cu\\rl x'", "git rebase -x 'cu$x''rl'"),
    *("/usr/bin/time curl x", "/usr/bin/time -o f sh -c 'cu\\rl'", "eatmydata curl x"),
    *("bash --rcfile -c ls", "bash ls", "ls | sh -s"),
]


@pytest.mark.parametrize("line", DODGES)
def test_an_obfuscated_command_does_not_evade_a_deny_rule(line: str) -> None:
    assert verdict(line, deny=["bash(curl *)"], mode="auto") == "ask"
    assert verdict(line, deny=["bash(curl *)"], mode="yolo") == "deny"


@pytest.mark.parametrize(
    "line",
    [
        *("git -c alias.p=push p", "git -c 'alias.p=pu\"\"sh' p", "git -c include.path=f p"),
        *("git --config-env=alias.p=X p", "git config alias.p push", "env git -C x push"),
        "env X=alias.p git p",
    ],
)
def test_options_that_may_hide_a_denied_git_command_need_approval(line: str) -> None:
    assert verdict(line, deny=["bash(git push *)"], mode="auto") == "ask"


def test_a_deny_rule_matches_a_git_command_run_as_its_own_program() -> None:
    assert verdict("/usr/lib/git-core/git-push x", deny=["bash(git push *)"]) == "deny"
    assert verdict("git-lfs x", deny=["bash(git-lfs *)"]) == "deny"


@pytest.mark.parametrize("line", DOUBTFUL)
def test_a_possible_match_of_a_deny_rule_needs_approval_and_is_denied_in_yolo(line: str) -> None:
    deny = ["bash(curl *)"]
    assert verdict(line, deny=deny, mode="auto") == "ask"
    assert verdict(line, deny=deny, mode="yolo") == "deny"
    assert verdict(line, deny=deny, allow=["bash"], mode="auto") == "ask"
    assert verdict(line, deny=deny, allow=[f"bash(={line})"], mode="auto") == "allow"
    assert verdict(line, deny=deny, granted=[f"bash(={line})"], mode="yolo") == "allow"


@pytest.mark.parametrize(
    "line",
    [
        *("ls", "echo curl", "env ls", "timeout 5 pytest", "bash -c 'ls'", "grep curl x"),
        *("python x.py", "timeout 60 bash -lc 'pytest -q'", "timeout -s KILL 5 npm run watch"),
        *("python -c 'print(\"$x\")'", "nice -n 5 grep '$x' f", "git -C bash-lib log"),
        *("git -c color.ui=never log", "find . -exec grep y '{}' ';'", "env A=b make all"),
    ],
)
def test_a_deny_rule_does_not_affect_other_commands(line: str) -> None:
    assert verdict(line, deny=["bash(curl *)"], mode="auto") == "allow"
    assert verdict(line, deny=["bash(curl *)"], mode="yolo") == "allow"


def test_options_before_or_between_the_words_of_a_deny_rule_do_not_hide_a_match() -> None:
    deny = ["bash(git push *)"]
    assert verdict("git -C x push", deny=deny, mode="auto") == "ask"
    assert verdict("git --no-pager push origin", deny=deny, mode="auto") == "ask"
    assert verdict("git log push", deny=deny, mode="auto") == "allow"
    assert verdict("git commit -m push", deny=deny, mode="auto") == "allow"
    assert (
        verdict("git push origin --force", deny=["bash(git push --force *)"], mode="auto") == "ask"
    )


def test_a_possible_match_of_an_ask_rule_needs_approval_except_in_yolo() -> None:
    ask = ["bash(curl *)"]
    assert verdict("curl x", ask=ask, mode="auto") == "ask"
    assert verdict("ls > x", ask=ask, mode="auto") == "ask"
    assert verdict("ls > x", ask=ask, mode="yolo") == "allow"
    assert verdict("curl x", ask=ask, mode="yolo") == "allow"


def test_the_mode_decides_a_line_outside_the_grammar_if_no_command_pattern_applies() -> None:
    assert verdict("ls > x", mode="auto") == "allow"
    assert verdict("ls > x", mode="auto", deny=["read(secret/**)", "bash(=rm)"]) == "allow"
    assert verdict("rm", mode="auto", deny=["bash(=rm)"]) == "deny"
