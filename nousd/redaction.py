"""Takes secrets out of texts on their way out of nousd: those it holds, and what looks like one.

Two ways, which go together. A ``Redactor`` knows the secrets of the daemon by value; that is all it does
for the daemon's own log and for what tools say, for what a user or a tool wrote is theirs. Given
``RULES`` as well, it finds what merely looks like a secret: that is for what is handed to others, like
a support bundle. There it rather takes too much than too little.

``RULES`` is the one table of what secrets look like. It is read against whole texts only: whoever has a
text in pieces joins them first. JSON is redacted value by value, so that it stays JSON. No I/O; the time
it takes grows with the text and with nothing else.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nousd.errors import ConfigError

REDACTED: Final = "[redacted]"

SECRET_CHARS_MIN: Final = 6
"""Shorter values are no secrets, and replacing every ``test`` would spoil the text."""


LONG_SECRET_CHARS_MIN: Final = 12
"""What is taken out of what tools say, or is a variable that merely sounds like a secret's. The key of a
server on this machine is often a word, such as ``ollama``, which a model has to see in the code it is
working on."""


class Rule(NamedTuple):
    """How one kind of secret looks.

    Args:
        kind: stands in its place.
        source: a regular expression; what is replaced is that of its named groups which is there, or all
            of it if it has no groups.
        signs: in lower case; a text with none of them has no such secret. It is what makes the looking
            quick, as most texts have nothing in them. Empty where there is no telling.
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


# --- what secrets look like ------------------------------------------------------------------


def _any_case(*words: str) -> str:
    """Returns the alternatives of one pattern, whatever case a letter has. Where no flag says so, the
    first letters are looked for at once, which is ten times as fast.
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
"""How the name of a variable ends that holds a secret. How it begins does not matter."""

_SIGNS_OF_NAMES: Final = "key|token|passw|passphrase|passcode|pwd|credential|secret"

_ALREADY: Final = r"(?!\[redacted)"

_CLOSED: Final = r"(?![A-Za-z0-9])"
"""Behind the quote that ends a value. If a word goes on there, a new quotation began: the one before it
was never closed."""

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
"""A value behind ``NAME=`` or ``"name":``, in quotes of any depth, in quotes that are never closed (then
all that is left of the line), or in none."""

_NO_VALUES: Final = (
    r"(?!\\*[\"']{0,3}(?:"
    r"(?:set|not set|null|none|None|true|false|\$\{?[A-Z_][A-Z0-9_]*\}?)"
    r"(?=\\*[\"']|[,;)}\]\n]|\s*$|\s{2}|\s\()"
    r"|\$\(|-----BEGIN ))"
)
"""What a secret is not: a word that says whether there is one, the name of another variable, a command;
nor a private key, which has many lines."""

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
"""In the order in which they are looked for; what one has taken is nothing to the others."""

_SECRET_NAME: Final = rf"(?:{_NAMES}|{_any_case('authorization')})$|(?<=[a-z0-9])Key$"


def names_secret(name: str) -> bool:
    """Whether a variable, or a key of JSON, of that name holds a secret."""
    return _compiled(_SECRET_NAME).search(name) is not None


def user_rules(patterns: Iterable[str]) -> tuple[Rule, ...]:
    """Returns the rules for regular expressions of the user's: what they match is of the kind ``user``,
    or what their group ``secret`` does, if they have one.

    Raises:
        ConfigError: one is no regular expression.
    """
    return tuple(_user_rule(pattern) for pattern in patterns)


def _user_rule(pattern: str) -> Rule:
    try:
        # Around a pattern with numbered groups, which say nothing of the secret.
        compiled = re.compile(pattern)
        named = "secret" in compiled.groupindex
        return Rule("user", pattern if named else f"(?P<secret>{pattern})")
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error


# --- taking them out -------------------------------------------------------------------------


class Redactor:
    """Replaces secrets in texts. ``counts`` says how many of each kind it has replaced.

    Args:
        secrets: values of keys and tokens; empty and too short ones are skipped.
        rules: what else counts as a secret, by its looks.
        mark: stands in the place of a secret that is known by its value.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        *,
        rules: Sequence[Rule] = (),
        mark: str = REDACTED,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._rules = rules
        self._mark = mark
        self._signs = _signs_of(rules)
        self._spellings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._long: set[str] = set()
        self._known = _NOTHING_KNOWN
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Makes one more secret known, such as a token that was made just now."""
        secret = secret.strip()
        if len(secret) < SECRET_CHARS_MIN:
            return
        self._spellings.update(_spellings(secret))
        # Longest first: a secret may begin with another one.
        ordered = sorted(self._spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(spelling) for spelling in ordered))
        if len(secret) >= LONG_SECRET_CHARS_MIN:
            self._long.update(_spellings(secret))
            self._known = _known(self._long)

    def redact_text(self, text: str) -> str:
        """Returns what a tool says without the long secrets that are known by their values."""
        if not any(known in text for known in self._long):
            return text
        return self.redact_bytes(text.encode(errors="surrogateescape")).decode(
            errors="surrogateescape"
        )

    def redact_bytes(self, data: bytes) -> bytes:
        """The same for bytes, of a text in UTF-8."""
        return self._known.without(data, self._mark.encode())

    def stream(self) -> SecretStream:
        """Returns what does the same to one stream of such a text."""
        return SecretStream(self._known, self._mark.encode())

    def redact(self, text: str) -> str:
        """Returns ``text`` with every secret replaced."""
        if self._rules:
            # A text in UTF-16 that was read as UTF-8, in which no secret would be seen.
            text = text.replace("\0", "")
        # Most texts have none; that is found ten times as fast without the pattern.
        if self._pattern is not None and any(known in text for known in self._spellings):
            text, times = self._pattern.subn(self._mark, text)
            self._count("known", times)
        for rule in self._rules if self._may_hold_one(text) else ():
            text = self._without(rule, text)
        return text

    def _may_hold_one(self, text: str) -> bool:
        return self._signs is None or self._signs.search(text.lower()) is not None

    def redact_json(self, value: Any) -> Any:
        """Returns a decoded JSON value with its texts, and its keys, redacted one by one. What stands
        under a key that names a secret is one, whatever it looks like.
        """
        match value:
            case str():
                return self.redact(value)
            case list():
                return [self.redact_json(item) for item in value]
            case dict():
                return {
                    self.redact(name): (
                        self._hidden(item)
                        if self._rules and names_secret(name)
                        else self.redact_json(item)
                    )
                    for name, item in value.items()
                }
            case _:
                return value

    def _hidden(self, value: Any) -> Any:
        match value:
            case None | bool() | "":
                return value
            case list():
                return [self._hidden(item) for item in value]
            case dict():
                return {self.redact(name): self._hidden(item) for name, item in value.items()}
            case _:
                self._count("variable", 1)
                return _marked("variable")

    def _without(self, rule: Rule, text: str) -> str:
        times = 0

        def replaced(found: re.Match[str]) -> str:
            nonlocal times
            start, end = _place_of_secret(found)
            if start == end or text.startswith(REDACTED[:-1], start):
                return found[0]
            times += 1
            return f"{text[found.start() : start]}{_marked(rule.kind)}{text[end : found.end()]}"

        redacted = rule.pattern.sub(replaced, text)
        self._count(rule.kind, times)
        return redacted

    def _count(self, kind: str, times: int) -> None:
        if times:
            self.counts[kind] += times


class _Known(NamedTuple):
    """Known secrets as bytes, longest first.

    Args:
        starts: their first bytes.
        longest: the length of the first.
    """

    spellings: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    starts: frozenset[int]
    longest: int

    def without(self, data: bytes, mark: bytes) -> bytes:
        # Most texts have none; that is found ten times as fast without the pattern.
        if not any(spelling in data for spelling in self.spellings):
            return data
        return self.pattern.sub(lambda _: mark, data)

    def begun(self, data: bytes) -> int:
        """Returns how many bytes at the end may be the beginning of a secret."""
        for start in range(max(0, len(data) - self.longest + 1), len(data)):
            if data[start] in self.starts:
                end = data[start:]
                if any(spelling.startswith(end) for spelling in self.spellings):
                    return len(end)
        return 0


def _known(spellings: Iterable[str]) -> _Known:
    encoded = sorted({each.encode(errors="surrogateescape") for each in spellings}, key=len)[::-1]
    return _Known(
        tuple(encoded),
        re.compile(b"|".join(map(re.escape, encoded)) or rb"(?!)"),
        frozenset(each[0] for each in encoded),
        len(encoded[0]) if encoded else 0,
    )


_NOTHING_KNOWN: Final = _known(())


class SecretStream:
    """Takes known secrets out of bytes as they come, also those that lie across two pieces."""

    def __init__(self, known: _Known, mark: bytes) -> None:
        self._known = known
        self._mark = mark
        self._waiting = b""

    def feed(self, chunk: bytes) -> bytes:
        """Returns what can be told by now: bytes that may be the beginning of a secret wait."""
        told = self._known.without(self._waiting + chunk, self._mark)
        begun = self._known.begun(told)
        self._waiting = told[len(told) - begun :]
        return told[: len(told) - begun]

    def finish(self) -> bytes:
        """Returns the rest."""
        rest, self._waiting = self._waiting, b""
        return rest


def secret_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the values of the variables whose names say that they hold a secret.

    The path of where one lies is none, nor is a word that may stand anywhere.
    """
    for name, value in environ.items():
        is_path = value.startswith(("/", "~", "."))
        if names_secret(name) and not is_path and len(value) >= LONG_SECRET_CHARS_MIN:
            yield value


def _signs_of(rules: Sequence[Rule]) -> re.Pattern[str] | None:
    """Returns what every text has that any of the rules could be about; None if there is no telling."""
    if not all(rule.signs for rule in rules):
        return None
    signs = sorted({sign for rule in rules for sign in rule.signs})
    return re.compile("|".join(map(re.escape, signs)) if signs else r"(?!)")


def _place_of_secret(found: re.Match[str]) -> tuple[int, int]:
    """Returns where in the text the secret of a match stands: its only group, or all of it."""
    groups = found.groupdict()
    names = ["secret"] if "secret" in groups else [name for name in groups if name != "mark"]
    for name in names:
        if groups[name]:
            return found.span(name)
    return found.span() if not found.re.groups else (0, 0)


def _marked(kind: str) -> str:
    return f"[redacted:{kind}]"


def _spellings(secret: str) -> set[str]:
    """The forms in which a secret turns up: as it is, in a URL, in the JSON of any encoder, in a repr,
    in Base64 with something before it and behind it.
    """
    in_json = json.dumps(secret)[1:-1]
    data = secret.encode("utf-8", "surrogateescape")
    return {
        secret,
        urllib.parse.quote(secret, errors="surrogateescape"),
        urllib.parse.quote(secret, safe="", errors="surrogateescape"),
        urllib.parse.quote_plus(secret, errors="surrogateescape"),
        in_json,
        in_json.replace("/", "\\/"),
        in_json.translate(_ESCAPED_FOR_HTML),
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        *(_base64(data, before, signs) for before in range(3) for signs in (b"+/", b"-_")),
    }


_ESCAPED_FOR_HTML: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def _base64(data: bytes, before: int, signs: bytes) -> str:
    """Returns what is the same in the Base64 of every text that has ``data`` behind so many bytes, or
    a multiple of three more: the letters that tell of nothing else.
    """
    first = -(-before * 8 // 6)
    encoded = base64.b64encode(bytes(before) + data, signs).decode()
    return encoded[first : (before + len(data)) * 8 // 6]
