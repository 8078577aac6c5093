"""Malformed conversations: the corpus of ``fixtures/conversations``, mutated.

A case is bytes for both sockets and how the client leaves. What is done to a line follows from the
seed and from the ids that the daemon has told so far; nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from nousd.wire.commands import COMMANDS
from tests.harness.conversation import load

FOLDER: Final = Path(__file__).resolve().parents[2] / "fixtures" / "conversations"

LINE_BYTES_MAX: Final = 64 * 1024
"""What the daemon under test is told to take; lines past it are cheap to make."""

_LEFT_OUT: Final = frozenset({"add_mcp"})
"""Commands that start programs: nobody knows which one a mutation names."""

_TYPES: Final = tuple(name for name in COMMANDS if name not in _LEFT_OUT)

Ending = Literal["half_close", "wait", "leave"]
"""``half_close``: says all, then reads to the end. ``wait``: reads what is owed, then closes.
``leave``: closes in the middle of everything."""


@dataclass(frozen=True)
class Case:
    """The bytes that one client sends. ``cuts``: where those for the command socket are split into
    writes.
    """

    commands: bytes
    events: bytes
    cuts: tuple[int, ...]
    ending: Ending

    def writes(self) -> list[bytes]:
        """Return the bytes for the command socket as they are written."""
        edges = [0, *self.cuts, len(self.commands)]
        return [self.commands[a:b] for a, b in pairwise(edges)]


class Ids:
    """Ids received from the daemon, so that mutated lines can still refer to something."""

    _PATTERN: Final = re.compile(rb'"((sess|run|msg|in|cmp|evt)-[0-9a-f]+)"')
    _BY_NAME: Final = {"S": "sess", "R": "run", "I": "in", "F": "in", "L": "msg", "C": "evt"}

    def __init__(self) -> None:
        self._known: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=50))

    def learn(self, data: bytes) -> None:
        """Take the ids that stand in lines of the daemon."""
        for id_, kind in self._PATTERN.findall(data):
            self._known[kind.decode()].append(id_.decode())

    def like(self, name: str, random: Random) -> str:
        """Return an id for a placeholder of a conversation."""
        kinds = sorted(self._known)
        kind = self._BY_NAME.get(name[0]) or (random.choice(kinds) if kinds else "sess")
        known = self._known.get(kind)
        return random.choice(known) if known else f"{kind}-none"


class Cases:
    """Makes cases. The caller adds received ids to ``ids``."""

    def __init__(self, seed: int) -> None:
        self.ids = Ids()
        self._random = Random(seed)
        conversations = [
            load(path) for path in sorted(FOLDER.glob("*.ndjson")) if not _is_left_out(path)
        ]
        self._conversations = [
            [_as_bytes(step.content) for step in each.steps if step.kind in (">", ">b")]
            for each in conversations
        ]
        self._subscriptions = [
            _as_bytes(step.content)
            for each in conversations
            for step in each.steps
            if step.kind == "*>"
        ]
        self._lines = [line for lines in self._conversations for line in lines]

    def next(self) -> Case:
        """Return the next case."""
        random = self._random
        lines = [self._filled(line) for line in random.choice(self._conversations)]
        start = random.randrange(len(lines) + 1)
        lines = lines[start : start + random.randint(1, 12)] or [self._filled(self._any())]
        subscriptions = [
            self._filled(random.choice(self._subscriptions)) for _ in range(random.randrange(4))
        ]
        commands = self._mutated(lines)
        cuts = sorted(random.randrange(len(commands) + 1) for _ in range(random.randrange(6)))
        ending: Ending = random.choice(("half_close", "half_close", "wait", "leave"))
        return Case(commands, self._mutated(subscriptions), tuple(cuts), ending)

    def _any(self) -> bytes:
        return self._random.choice(self._lines)

    def _filled(self, line: bytes) -> bytes:
        return re.sub(
            rb"\$([A-Z][A-Z0-9_]*)",
            lambda match: self.ids.like(match[1].decode(), self._random).encode(),
            line,
        )

    def _mutated(self, lines: list[bytes]) -> bytes:
        random = self._random
        for _ in range(random.choice((0, 1, 1, 2, 3, 6))):
            if lines:
                index = random.randrange(len(lines))
                mutate = random.choice(LINE_MUTATIONS)
                lines[index] = mutate(lines[index], self._filled(self._any()), random)
        for _ in range(random.choice((0, 0, 1, 2))):
            lines = random.choice(ORDER_MUTATIONS)(lines, random)
        data = b"".join(line + random.choice(_LINE_ENDS) for line in lines)
        return data[: random.randrange(len(data) + 1)] if random.random() < 0.1 else data


def _is_left_out(path: Path) -> bool:
    """Whether any line of the conversation, whatever it is called, holds such a command."""
    text = path.read_text()
    return any(f'"{name}"' in text for name in _LEFT_OUT)


def _as_bytes(content: str | bytes) -> bytes:
    data = content if isinstance(content, bytes) else content.encode()
    return data.removesuffix(b"\n")


_LINE_ENDS: Final = (b"\n",) * 20 + (b"\r\n", b"\n\n", b"")

# --- one line ------------------------------------------------------------------------------------

_TOKENS: Final = (
    *(b"\x00", b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\udc00\\ud800"),
    *(b"\\u0000", b"\r", b"\x1b[2J", "\u2028".encode(), b"NaN", b"-Infinity", b"1e999", b"-0"),
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"//", b"[[", b"]]"),
    *(b"$", b"%s%n", b"../../etc", b"9" * 5000, b"0." + b"0" * 400 + b"1"),
)
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308),
    *("", " ", "\x00", "\ud800", "x" * 300, "x" * 70_000, "evt-0", "evt-99999999999", "evt--1"),
    *([], {}, [[]], [None], ["all", 1], {"": ""}, ["agent_end"] * 2000, "all", "v1", "2"),
)


def _flip(line: bytes, _other: bytes, random: Random) -> bytes:
    flipped = bytearray(line or b"\x00")
    for _ in range(random.choice((1, 1, 2, 8))):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    return bytes(flipped)


def _span(line: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(line) + 1)
    return start, min(len(line), start + random.choice((1, 2, 5, 40)))


def _cut(line: bytes, _other: bytes, random: Random) -> bytes:
    start, end = _span(line, random)
    return line[:start] + line[end:]


def _repeat(line: bytes, _other: bytes, random: Random) -> bytes:
    start, end = _span(line, random)
    return line[:end] + line[start:end] * random.choice((1, 2, 300)) + line[end:]


def _truncate(line: bytes, _other: bytes, random: Random) -> bytes:
    return line[: random.randrange(len(line) + 1)]


def _insert(line: bytes, _other: bytes, random: Random) -> bytes:
    at = random.randrange(len(line) + 1)
    return line[:at] + random.choice(_TOKENS) + line[at:]


def _splice(line: bytes, other: bytes, random: Random) -> bytes:
    return line[: random.randrange(len(line) + 1)] + other[random.randrange(len(other) + 1) :]


def _number(line: bytes, _other: bytes, random: Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+", line))
    if not numbers:
        return line
    found = random.choice(numbers)
    number = random.choice((b"0", b"-1", b"1e5", b"99999", b"18446744073709551616", b"9" * 400))
    return line[: found.start()] + number + line[found.end() :]


def _nest(line: bytes, _other: bytes, random: Random) -> bytes:
    depth = random.choice((200, 254, 255, 256, 257, 1000, 20_000))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")))
    nested = opening * depth + b"0" + closing * depth
    return line.replace(b'"payload":{', b'"payload":{"n":' + nested + b",", 1) or nested


def _lengthen(line: bytes, _other: bytes, random: Random) -> bytes:
    room = LINE_BYTES_MAX - len(line)
    pad = max(0, room + random.choice((-1, 0, 1, 2, 100_000)))
    at = line.find(b'"') + 1
    return line[:at] + random.choice((b"x", b" ", b"\xff", b"\\")) * pad + line[at:]


def _value(line: bytes, _other: bytes, random: Random) -> bytes:
    """Put a strange value, or a strange key, somewhere into the object."""
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(whole, dict):
        return line
    where = random.choice(
        [item for item in (whole, whole.get("payload")) if isinstance(item, dict)]
    )
    key = random.choice([*where, "session_id", "text", "limit", "after", "extra"])
    where[key] = random.choice(_VALUES)
    return json.dumps(whole, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


def _retype(line: bytes, _other: bytes, random: Random) -> bytes:
    type_ = random.choice((*_TYPES, "subscribe", "nope", "Ping")).encode()
    return re.sub(rb'"type":"[^"]*"', b'"type":"%b"' % type_, line, count=1)


def _recase(line: bytes, _other: bytes, random: Random) -> bytes:
    key = random.choice((b"id", b"type", b"payload", b"v", b"text"))
    return line.replace(b'"%b"' % key, b'"%b"' % random.choice((key.upper(), key.title())), 1)


LINE_MUTATIONS: Final[tuple[Callable[[bytes, bytes, Random], bytes], ...]] = (
    _flip,
    _cut,
    _repeat,
    _truncate,
    _insert,
    _splice,
    _number,
    _nest,
    _lengthen,
    _value,
    _value,
    _retype,
    _recase,
)

# --- their order ---------------------------------------------------------------------------------


def _duplicated(lines: Sequence[bytes], random: Random) -> list[bytes]:
    return [line for line in lines for _ in range(random.choice((1, 1, 2, 5)))]


def _shuffled(lines: Sequence[bytes], random: Random) -> list[bytes]:
    return random.sample(lines, len(lines))


def _dropped(lines: Sequence[bytes], random: Random) -> list[bytes]:
    return [line for line in lines if random.random() < 0.7]


def _flooded(lines: Sequence[bytes], random: Random) -> list[bytes]:
    return [*lines, *[b'{"id":"p","type":"ping"}'] * random.choice((10, 10, 10, 3000))]


ORDER_MUTATIONS: Final[tuple[Callable[[Sequence[bytes], Random], list[bytes]], ...]] = (
    _duplicated,
    _shuffled,
    _dropped,
    _flooded,
)
