"""Decoders that are built when they are first used."""

from __future__ import annotations

import msgspec
import pytest

from nousd.wire.codec import late_decoder
from nousd.wire.codec.late_decoder import LateDecoder, build_all


class Point(msgspec.Struct):
    x: int


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The types of the decoders that were built."""
    types: list[object] = []
    real = msgspec.json.Decoder

    def decoder(kind: type[Point]) -> msgspec.json.Decoder[Point]:
        types.append(kind)
        return real(kind)

    monkeypatch.setattr(late_decoder, "_unbuilt", [])
    monkeypatch.setattr("msgspec.json.Decoder", decoder)
    return types


def test_a_decoder_is_built_once_when_it_is_first_used(built: list[object]) -> None:
    points = LateDecoder(Point)
    assert built == []
    assert [points.decode(b'{"x":1}'), points.decode('{"x":2}')] == [Point(1), Point(2)]
    assert built == [Point]


def test_a_fault_is_that_of_the_decoder() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`.* at `\$\.x`"):
        LateDecoder(Point).decode(b'{"x":"one"}')


def test_all_can_be_built_before_they_are_used(built: list[object]) -> None:
    points = LateDecoder(Point)
    build_all()
    build_all()
    assert built == [Point]
    assert points.decode(b'{"x":1}') == Point(1)
    assert built == [Point]
