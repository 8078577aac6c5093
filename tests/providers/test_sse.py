from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import ProviderError
from nousd.providers.http.sse import SseParser
from tests.providers.helpers import cuts

STREAMS = {
    "one event": (b"data: a\n\n", [b"a"]),
    "two events": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "no space behind the colon": (b"data:a\n\n", [b"a"]),
    "only one space is dropped": (b"data:  a \n\n", [b" a "]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR alone": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "line ends mixed": (b"data: a\r\ndata: b\n\rdata: c\r\n\n", [b"a\nb", b"c"]),
    "comments": (b": ping\n\ndata: a\n: in between\ndata: b\n\n:\n\n", [b"a\nb"]),
    "data over several lines": (b"data: {\ndata: }\n\n", [b"{\n}"]),
    "other fields": (b"event: x\nid: 7\nretry: 10\ndata: a\nfoo\n\n", [b"a"]),
    "an event without data": (b"event: ping\n\ndata: a\n\n", [b"a"]),
    "a field name alone": (b"data\n\ndata:\n\n", [b"", b""]),
    "the field of old llama.cpp": (b'error: {"code":400}\n\n', [b'{"code":400}']),
    "no empty line at the end": (b"data: a\n\ndata: b", [b"a", b"b"]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "a byte order mark later on": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
    "UTF-8": ("data: grüße 😀\n\n".encode(), ["grüße 😀".encode()]),
    "U+2028 ends no line": ("data: a\u2028b\n\n".encode(), ["a\u2028b".encode()]),
    "nothing": (b"", []),
    "empty lines": (b"\n\r\n\n", []),
}


def parse(chunks: list[bytes], **limits: int) -> list[bytes]:
    parser = SseParser(**limits)
    payloads = [payload for chunk in chunks for payload in parser.feed(chunk)]
    return payloads + parser.end()


@pytest.mark.parametrize(("data", "payloads"), STREAMS.values(), ids=STREAMS)
def test_payloads_do_not_depend_on_chunk_boundaries(data: bytes, payloads: list[bytes]) -> None:
    for chunks in cuts(data):
        assert parse(chunks) == payloads


@given(st.lists(st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"a", b"\xc3", b"\xa9"])))
def test_any_stream_is_parsed_alike_at_once_and_byte_by_byte(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert parse([data[i : i + 1] for i in range(len(data))]) == parse([data])


def test_an_event_is_returned_as_soon_as_it_is_complete() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [b"a"]
    assert parser.feed(b"data: b\r\r") == [b"b"]


def test_an_event_of_maximum_length_is_accepted() -> None:
    assert SseParser(event_bytes_max=20).feed(b"data: " + b"a" * 14 + b"\n\n") == [b"a" * 14]


@pytest.mark.parametrize(
    "data",
    [b"data: " + b"a" * 15 + b"\n\n", b"a" * 21, b"data: aaaaa\n" * 2, b": " + b"a" * 30],
    ids=["a line", "a line without end", "several lines", "a comment without end"],
)
def test_an_event_over_the_limit_is_an_error(data: bytes) -> None:
    for chunks in cuts(data):
        with pytest.raises(ProviderError, match="more than 20 bytes"):
            parse(chunks, event_bytes_max=20)


def test_events_that_only_together_exceed_the_limit_are_accepted() -> None:
    assert len(SseParser(event_bytes_max=20).feed(b"data: a\n\n" * 100)) == 100
