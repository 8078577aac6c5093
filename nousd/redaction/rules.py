"""Patterns of secrets: the one table of rules, and the names of variables and keys with secrets.

Rules apply to whole texts, so callers join the pieces of a text first. The time of a rule is linear in
the length of the text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from nousd.errors import ConfigError


class Rule(NamedTuple):
    """The pattern of one kind of secret.

    Args:
        kind: names the replacement, ``[redacted:kind]``.
        source: a regular expression; the named group that matched is replaced, or the whole match if
            there are no groups.
        signs: literals in lower case, one of which occurs in every text with such a secret. Searching
            for them first makes redaction fast, because most texts have none. Empty if no literal does.
    """

    kind: str
    source: str
    signs: tuple[str, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        # Compiled on first use: most processes never need it.
        return _compile(self.source)


@functools.cache
def _compile(source: str) -> re.Pattern[str]:
    return re.compile(source)


def _any_case(*words: str) -> str:
    """Return an alternation that matches the words in any case.

    Spelled out as classes instead of with the flag ``(?i)``, because without it the engine searches the
    first letters directly, which is ten times as fast.
    """
    return "|".join(
        re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", word) for word in words
    )


_KEYS: Final = (
    *("api", "access", "auth", "account", "private", "priv", "signing", "encryption", "master"),
    *("client", "service", "database", "db"),
)
_WORDS: Final = (
    "token",
    "passwords?",
    "passwd",
    "passphrase",
    "passcode",
    "pwd",
    "credentials?",
    "dbpass",
    "databasepass",
    "keypass",
    "contrasena",
    "contrase(?:ñ|Ñ)a",
)
_NAMES: Final = (
    rf"(?<=[_.-])(?:{_any_case('key', 'pass')})|"
    + _any_case(*(f"{word}key" for word in _KEYS), *_WORDS)
    + rf"|(?:{_any_case('secret')})[A-Za-z0-9_.-]{{0,40}}+"
)
"""The ends of the names of variables with secrets; the beginning does not matter."""

_NAME_MARKERS: Final = "key|token|pass|pwd|credential|secret|contrase"

_FLAGS: Final = "key|token|secret|passw(?:or)?d|passphrase|pass|pwd|contrase[nñ]a"

_NOT_REDACTED: Final = r"(?!\[redacted)"

_START: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""Must precede a key, which does not begin within a word. The letter of an escaped line break or tab is
not part of a word: a text may be escaped within another, as in the arguments of a tool call.
"""

_CLOSED: Final = r"(?![A-Za-z0-9])"
"""Must follow the closing quote of a value. If a word follows, that quote opens a new value, and the
previous quote was never closed."""

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
"""A value after ``NAME=`` or ``"name":``: in quotes of any depth; in quotes that are never closed,
where it is the rest of the line; or without quotes."""

_NOT_PLACEHOLDER: Final = (
    r"(?!\\*[\"']{0,3}(?:"
    r"(?:set|not set|null|none|None|true|false|\$\{?[A-Z_][A-Z0-9_]*\}?)"
    r"(?=\\*[\"']|[,;)}\]\n]|\s*$|\s{2}|\s\()"
    r"|\$\(|-----BEGIN ))"
)
"""Values that are not secrets: a word for the presence or absence of one, the name of another variable,
a command. A private key is a secret, but has its own rule, because it spans many lines."""

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
        rf"(?i){_START}(?:proxy-)?authorization\\*[\"']?\s{{0,8}}[:=]\s{{0,8}}\\*[\"']?"
        rf"(?:(?:bearer|basic|token|digest|negotiate|apikey)\s{{1,8}})?+"
        rf"{_NOT_REDACTED}(?P<secret>[^\s\"'\\,;]{{2,}})",
    ),
    _rule(
        "authorization",
        "bearer|basic",
        rf"(?i)(?<!_){_START}(?:bearer|basic)\s{{1,8}}{_NOT_REDACTED}(?P<secret>[A-Za-z0-9._~+/=-]{{8,}})",
    ),
    _rule(
        "cookie",
        "cookie",
        rf"(?i){_START}(?:set-)?cookie\\*[\"']?\s{{0,8}}[:=]\s{{0,8}}\\*[\"']?"
        rf"{_NOT_REDACTED}(?P<secret>[^\s\"'\\][^\r\n\"'\\]{{3,}})",
    ),
    _rule("anthropic_key", "sk-ant-", rf"{_START}sk-ant-[A-Za-z0-9_-]{{8,}}"),
    _rule(
        "api_key",
        "sk-|sk_|rk-|rk_",
        rf"{_START}[sr]k[-_](?:live_|test_|proj-|or-)?[A-Za-z0-9_-]{{10,}}",
    ),
    _rule("google_key", "aiza", r"AIza[0-9A-Za-z_-]{30,}"),
    _rule(
        "github_token",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
        r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}",
    ),
    _rule(
        "gitlab_token",
        "glpat-|gldt-|glft-|glsoat-|glrt-|glcbt-|glimt-|glptt-|glagent-|gloas-|gr1348941",
        r"(?:gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-|GR1348941)[A-Za-z0-9_-]{16,}",
    ),
    _rule(
        "slack_token",
        "xox|xapp-|hooks.slack.com",
        r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"
        r"|(?<=hooks\.slack\.com/services/)[A-Za-z0-9_/]{4,}",
    ),
    _rule("age_key", "age-secret-key-1", r"AGE-SECRET-KEY-1[A-Z0-9]{8,}"),
    _rule("sendgrid_key", "sg.", rf"{_START}SG\.[A-Za-z0-9_-]{{16,}}\.[A-Za-z0-9_-]{{16,}}"),
    _rule("telegram_token", ":", r"(?<![0-9])[0-9]{8,10}:[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _rule(
        "discord_token",
        ".",
        rf"(?<![_-]){_START}[MNO][A-Za-z0-9_-]{{23,25}}\.[A-Za-z0-9_-]{{6}}\.[A-Za-z0-9_-]{{27,}}",
    ),
    _rule("mailchimp_key", "-us", rf"{_START}[0-9a-z]{{32}}-us[0-9]{{1,2}}"),
    _rule("square_key", "sq0", r"sq0[a-z]{3}-[0-9A-Za-z\\_-]{22,}"),
    _rule("twilio_key", "ac|sk", rf"{_START}(?:AC|SK)[a-z0-9]{{32}}(?![A-Za-z0-9])"),
    _rule(
        "artifactory_key",
        "akc|ap",
        rf"(?<!_){_START}(?:AKC[A-Za-z0-9]{{10,}}|AP[0-9A-F][A-Za-z0-9]{{8,}})",
    ),
    _rule(
        "hub_token",
        "hf_|hf-|npm_|npm-|dckr_pat|pypi",
        rf"{_START}(?:hf|npm|dckr_pat|pypi)[_-][A-Za-z0-9_-]{{20,}}",
    ),
    _rule(
        "aws_key",
        "akia|asia|abia|acca|a3t",
        r"(?<![A-Z0-9])A(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[0-9A-Z]{16}(?:[\s\"'\\:,;=/|]{1,8}[A-Za-z0-9/+=]{40}(?![A-Za-z0-9]))?",
    ),
    _rule(
        "jwt",
        "eyj",
        rf"(?<![_-]){_START}eyJ[A-Za-z0-9_-]{{5,}}+\.[A-Za-z0-9_-]{{5,}}+(?:\.[A-Za-z0-9_-]*+)?",
    ),
    _rule(
        "variable",
        _NAME_MARKERS,
        rf"(?:{_NAMES})\\*[\"']?\]?\s{{0,8}}(?:=>|:=|==?|::?)\s{{0,8}}{_NOT_PLACEHOLDER}{_NOT_REDACTED}{_VALUE}",
    ),
    _rule(
        "variable",
        _NAME_MARKERS,
        rf"(?i){_START}--?[a-z_-]{{0,40}}(?:{_FLAGS})"
        rf"\s{{1,8}}{_NOT_PLACEHOLDER}{_NOT_REDACTED}(?P<secret>[^\s\"'\\-][^\s\"'\\]*)",
    ),
    # Shorter names and looser punctuation, if the value is as long as a key and, where neither ``=``,
    # ``:``, ``(`` nor a quote precedes it, has a digit.
    _rule(
        "variable",
        "pw|pass|key|token",
        r"(?i)(?:pw|pwd|pass|password|key|token)(?:[\s\"'\\\],>]{0,8}[=:(][\s\"'\\=:>]{0,8}"
        r"|[\s\"'\\\],]{0,12}[\"']|[\s\"'\\\],]{1,12}(?=[a-z_-]{0,80}[0-9]))"
        rf"{_NOT_REDACTED}(?P<secret>[a-z0-9_-]{{24,}})",
    ),
    _rule(
        "aws_key",
        "aws",
        r"(?i)aws[^\n]{0,20}?(?:key|pwd|pw|password|pass|token)[^\n]{0,20}?[\"'](?P<secret>[0-9a-z/+]{40})[\"']",
    ),
    _rule("softlayer_key", "/soap/v3", r"(?<=/soap/v3/)[a-z0-9]{64}|(?<=/soap/v3.1/)[a-z0-9]{64}"),
    # Headers as pairs of name and value.
    _rule(
        "variable",
        "key|token|secret",
        rf"(?i)-(?:key|token|secret)\\*[\"'],\s{{0,8}}b?\\*[\"']{_NOT_REDACTED}(?P<secret>[^\n\"'\\]+)",
    ),
    _rule(
        "private_key",
        "putty-user-key-file",
        r"PuTTY-User-Key-File-[0-9]+:[^\n]*(?:\n[^\n]+){0,200}(?:Private-MAC:[^\n]*)?",
    ),
    # A private key that is cut off at its end or beginning. After the rules for variables, because the
    # pattern of its text also matches the name of a variable on the next line.
    _rule("private_key", "private key", rf"-----BEGIN {_PEM}{_PEM_TEXT}*+"),
    _rule(
        "private_key",
        "private key",
        rf"(?<![A-Za-z0-9+/=\\\s])[A-Za-z0-9+/=\\\s]{{40,}}+-----END {_PEM}",
    ),
    # Text at a cut may be the beginning of anything.
    _rule(
        "cut",
        "[... the whole output|[output cut|[output goes on",
        r"(?<!\S)(?P<secret>\S{6,})(?=\s{1,4}\[(?:\.\.\. the whole output|Output cut|Output goes on))",
    ),
    _rule("cut", "...|…|u2026", r"(?<!\S)(?P<secret>[^\s…]{16,})(?=…|\\+u2026|\.\.\.\Z)"),
)
"""In the order of application; a rule does not replace the marks of earlier ones."""

_SECRET_NAME: Final = rf"(?:{_NAMES}|{_any_case('authorization')})$|(?<=[a-z0-9])Key$"


def names_secret(name: str) -> bool:
    """Return whether a variable, or a JSON key, of that name contains a secret."""
    return _compile(_SECRET_NAME).search(name) is not None


_LIKELY_NAME: Final = (
    r"(?i)(?:^|[_-])(?:[a-z0-9]*(?:key|token|secret)s?|passw[a-z]*|pass|pwd|credentials?|auth|cookies?"
    r"|pat)(?:$|[_-])"
)


def may_name_secret(name: str) -> bool:
    """Return whether a variable of that name could contain a secret: true for every name of
    ``names_secret``, and for others that often have none (``MAX_TOKENS``). For callers that need caution
    and remove nothing.
    """
    return names_secret(name) or _compile(_LIKELY_NAME).search(name) is not None


def user_rules(patterns: Iterable[str]) -> tuple[Rule, ...]:
    """Return rules of the kind ``user`` for the user's own regular expressions.

    The match of an expression is replaced, or only its group ``secret`` if it has one.

    Raises:
        ConfigError: one is not a regular expression.
    """
    return tuple(_user_rule(pattern) for pattern in patterns)


def _user_rule(pattern: str) -> Rule:
    try:
        # Numbered groups belong to the user, so a named group around the pattern marks the replacement.
        compiled = re.compile(pattern)
        named = "secret" in compiled.groupindex
        return Rule("user", pattern if named else f"(?P<secret>{pattern})")
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error
