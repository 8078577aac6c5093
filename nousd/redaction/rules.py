"""Patterns of secrets: the one table of rules, and the names under which secrets are kept.

Every rule is read against whole texts, so whoever has a text in pieces joins them first. The time a rule
takes grows with the text and with nothing else. What is done with a match is not known here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from nousd.errors import ConfigError


class Rule(NamedTuple):
    """How one kind of secret looks.

    Args:
        kind: what is put in the secret's place, as ``[redacted:kind]``.
        source: a regular expression; what is replaced is the named group that matched, or the whole
            match if there are no groups.
        signs: literals in lower case, one of which stands in every text that has such a secret.
            Looking for them first is what makes the search quick, as most texts have none. Empty if
            there are no such.
    """

    kind: str
    source: str
    signs: tuple[str, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        # Compiled when something is first looked for: most processes never do.
        return _compiled(self.source)


@functools.cache
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(source)


def _any_case(*words: str) -> str:
    """Return an alternation that matches the words in any case.

    Spelled out as classes instead of with the flag ``(?i)``, because without it the engine looks for the
    first letters directly, which is ten times as fast.
    """
    return "|".join(
        re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", word) for word in words
    )


_KEYS: Final = ("api", "access", "auth", "account", "private", "signing", "encryption", "master")
_WORDS: Final = (
    "token",
    "passwords?",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "credentials?",
)
_NAMES: Final = (
    rf"(?<=[_.-])(?:{_any_case('key')})|"
    + _any_case(*(f"{word}key" for word in _KEYS), *_WORDS)
    + rf"|(?:{_any_case('secret')})[A-Za-z0-9_.-]{{0,40}}+"
)
"""How the name of a variable that holds a secret ends; how it begins does not matter."""

_SIGNS_OF_NAMES: Final = "key|token|passw|passphrase|passcode|pwd|credential|secret"

_ALREADY: Final = r"(?!\[redacted)"

_CLOSED: Final = r"(?![A-Za-z0-9])"
"""Must follow the quote that ends a value. If a word follows it, then that quote opened a new
value, and the one before was never closed."""

_VALUE: Final = (
    r"(?:"
    r'"""(?P<toml>(?:[^"\\]|\\.|"(?!""))*)"""'
    r"|'''(?P<triple>(?:[^'\\]|\\.|'(?!''))*)'''"
    rf"|\"(?P<double>(?:[^\"\\\n]|\\.)*)\"{_CLOSED}"
    rf"|'(?P<single>(?:[^'\"\\\n]|\\[^\"\n])*)'{_CLOSED}"
    rf"|(?P<mark>(?:\\+[\"']){{3}}|\\+[\"'])(?P<escaped>.{{0,4096}}?)(?P=mark){_CLOSED}"
    r"|\\*[\"'](?P<cut>[^\n]+)"
    r"|(?P<bare>[^\s\"'\\,;&<>(){}\[\]|]+)"
    r")"
)
"""A value behind ``NAME=`` or ``"name":``: in quotes of any depth; in quotes that are never closed,
where it is the rest of the line; or in none."""

_NO_VALUES: Final = (
    r"(?!\\*[\"']{0,3}(?:"
    r"(?:set|not set|null|none|None|true|false|\$\{?[A-Z_][A-Z0-9_]*\}?)"
    r"(?=\\*[\"']|[,;)}\]\n]|\s*$|\s{2}|\s\()"
    r"|\$\(|-----BEGIN ))"
)
"""What stands there and is no secret: a word that says whether there is one, the name of another
variable, a command. A private key is one, but has a rule of its own, as it has many lines."""

_PEM: Final = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_TEXT: Final = r"[A-Za-z0-9+/=:,.\s\\-]"


def _rule(kind: str, signs: str, pattern: str) -> Rule:
    return Rule(kind, pattern, tuple(signs.split("|")))


RULES: Final[tuple[Rule, ...]] = (
    _rule(
        "private_key",
        "private key",
        rf"-----BEGIN {_PEM}(?:(?:(?!-----BEGIN )[\s\S])*?-----END {_PEM})",
    ),
    _rule("url_password", "://", r"(?<=://)[^\s/:@\"'\\]{0,256}:(?P<secret>[^\s?#\"'\\]{1,512})@"),
    _rule(
        "authorization",
        "authorization",
        rf"(?i)\b(?:proxy-)?authorization\\*[\"']?\s{{0,8}}[:=]\s{{0,8}}\\*[\"']?"
        rf"(?:(?:bearer|basic|token|digest|negotiate|apikey)\s{{1,8}})?+"
        rf"{_ALREADY}(?P<secret>[^\s\"'\\,;]{{2,}})",
    ),
    _rule(
        "authorization",
        "bearer|basic",
        rf"(?i)\b(?:bearer|basic)\s{{1,8}}{_ALREADY}(?P<secret>[A-Za-z0-9._~+/=-]{{8,}})",
    ),
    _rule("anthropic_key", "sk-ant-", r"(?<![A-Za-z0-9])sk-ant-[A-Za-z0-9_-]{8,}"),
    _rule(
        "api_key",
        "sk-|sk_|rk-|rk_",
        r"(?<![A-Za-z0-9])[sr]k[-_](?:live_|test_|proj-|or-)?[A-Za-z0-9_-]{10,}",
    ),
    _rule("google_key", "aiza", r"AIza[0-9A-Za-z_-]{30,}"),
    _rule(
        "github_token",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
        r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}",
    ),
    _rule("gitlab_token", "glpat-", r"glpat-[A-Za-z0-9_-]{16,}"),
    _rule("slack_token", "xox|xapp-", r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"),
    _rule(
        "hub_token",
        "hf_|hf-|npm_|npm-|dckr_pat|pypi",
        r"(?<![A-Za-z0-9])(?:hf|npm|dckr_pat|pypi)[_-][A-Za-z0-9_-]{20,}",
    ),
    _rule(
        "aws_key",
        "akia|asia",
        r"(?<![A-Z0-9])A(?:KIA|SIA)[0-9A-Z]{16}(?:[\s\"'\\:,;=/|]{1,8}[A-Za-z0-9/+=]{40}(?![A-Za-z0-9]))?",
    ),
    _rule(
        "jwt",
        "eyj",
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{5,}+\.[A-Za-z0-9_-]{5,}+(?:\.[A-Za-z0-9_-]*+)?",
    ),
    _rule(
        "variable",
        _SIGNS_OF_NAMES,
        rf"(?:{_NAMES})\\*[\"']?\s{{0,8}}(?:=>|:=|[:=])\s{{0,8}}{_NO_VALUES}{_ALREADY}{_VALUE}",
    ),
    _rule(
        "variable",
        _SIGNS_OF_NAMES,
        rf"(?i)(?<![A-Za-z0-9])--?[a-z-]{{0,40}}(?:key|token|secret|passw(?:or)?d|passphrase)"
        rf"\s{{1,8}}{_NO_VALUES}{_ALREADY}(?P<secret>[^\s\"'\\-][^\s\"'\\]*)",
    ),
    # Headers as pairs of name and value.
    _rule(
        "variable",
        "key|token|secret",
        rf"(?i)-(?:key|token|secret)\\*[\"'],\s{{0,8}}b?\\*[\"']{_ALREADY}(?P<secret>[^\n\"'\\]+)",
    ),
    # The rest of one that was cut off, at its end or at its beginning. Last: the name of a variable
    # on the next line could be its text as well.
    _rule("private_key", "private key", rf"-----BEGIN {_PEM}{_PEM_TEXT}*+"),
    _rule(
        "private_key",
        "private key",
        rf"(?<![A-Za-z0-9+/=\\\s])[A-Za-z0-9+/=\\\s]{{40,}}+-----END {_PEM}",
    ),
    # What stands where a text was cut may be the beginning of anything.
    _rule(
        "cut",
        "[... the whole output|[output cut|[output goes on",
        r"(?<!\S)(?P<secret>\S{6,})(?=\s{1,4}\[(?:\.\.\. the whole output|Output cut|Output goes on))",
    ),
    _rule("cut", "...|…|u2026", r"(?<!\S)(?P<secret>[^\s…]{16,})(?=…|\\+u2026|\.\.\.\Z)"),
)
"""In the order in which they are applied; what one rule has replaced the next ones leave alone."""

_SECRET_NAME: Final = rf"(?:{_NAMES}|{_any_case('authorization')})$|(?<=[a-z0-9])Key$"


def names_secret(name: str) -> bool:
    """Whether a variable, or a JSON key, of that name holds a secret."""
    return _compiled(_SECRET_NAME).search(name) is not None


_LIKELY_NAME: Final = (
    r"(?i)(?:^|[_-])(?:[a-z0-9]*(?:key|token|secret)s?|passw[a-z]*|pass|pwd|credentials?|auth|cookies?"
    r"|pat)(?:$|[_-])"
)


def may_name_secret(name: str) -> bool:
    """Whether a variable of that name could hold a secret: every one that ``names_secret`` knows, and
    such as often hold none (``MAX_TOKENS``). For whoever only asks for care, and takes nothing out.
    """
    return names_secret(name) or _compiled(_LIKELY_NAME).search(name) is not None


def user_rules(patterns: Iterable[str]) -> tuple[Rule, ...]:
    """Return rules of the kind ``user`` for the user's own regular expressions.

    What an expression matches is replaced, or only its group ``secret`` if it has one.

    Raises:
        ConfigError: one is no regular expression.
    """
    return tuple(_user_rule(pattern) for pattern in patterns)


def _user_rule(pattern: str) -> Rule:
    try:
        # Numbered groups are the user's own business: a named one around them all says what to replace.
        compiled = re.compile(pattern)
        named = "secret" in compiled.groupindex
        return Rule("user", pattern if named else f"(?P<secret>{pattern})")
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error
