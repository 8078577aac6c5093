"""Canonical JSON: the vectors of RFC 8785, and one text for each value."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import NotCanonical
from nousd.wire.codec.canonical_json import (
    canonical,
    digest,
    expressible,
    hash_of,
    is_simple,
    nearest,
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def test_the_hash_of_a_value_is_the_sha256_of_its_canonical_json() -> None:
    of_one = "sha256:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    assert hash_of({"a": 1}) == of_one
    assert digest(b'{"a":1}') == of_one


def test_keys_are_sorted_and_numbers_are_written_as_in_ecmascript() -> None:
    value = {"b": 1, "a": [1, {"c": None}], "z": 1e21, "f": 1.0, "é": 2}
    assert canonical(value).decode() == '{"a":[1,{"c":null}],"b":1,"f":1,"z":1e+21,"é":2}'


def test_the_example_of_the_rfc_is_encoded_as_printed_there() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f",
        "literals": [None, True, False],
    }
    assert canonical(value).decode() == (
        '{"literals":[null,true,false],'
        '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_keys_are_sorted_by_their_utf_16_code_units() -> None:
    names = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical(names)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_the_numbers_of_the_rfc_are_encoded_as_printed_there(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number).decode() == text


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53 + 1,
        -(2**53) - 1,
        10**400,
        {1: 2},
        {"é": 1, 2: 3},
        b"bytes",
        {"a": {1, 2}},
    ],
    ids=repr,
)
def test_a_value_that_json_cannot_express_exactly_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonical(value)


def test_lone_surrogates_become_replacement_characters() -> None:
    assert canonical({"a\ud800": ["\udfff"]}).decode() == '{"a\ufffd":["\ufffd"]}'
    assert canonical("\ud83d\ude00").decode() == '"\U0001f600"'


@given(VALUES)
def test_canonical_json_decodes_to_an_equal_value_and_encodes_to_the_same_text(value: Any) -> None:
    text = canonical(value)
    assert json.loads(text, parse_int=float) == value
    assert canonical(json.loads(text)) == text


KEYS = st.text(st.characters(max_codepoint=200), max_size=3)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.just(0.5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    )
)
def test_any_encoder_with_sorted_keys_writes_a_simple_value(value: Any) -> None:
    if is_simple(value):
        assert msgspec.json.Encoder(order="sorted").encode(value) == rfc8785.dumps(value)


def test_simple_are_texts_booleans_and_small_whole_numbers_under_keys_of_ascii() -> None:
    assert is_simple({"a": ["é", True, None, 2**53 - 1, {"\x1f": ()}]})
    for value in (0.5, 2**53, [1.0], {"é": 1}, {"a": {1: 2}}, b"", {1}):
        assert not is_simple(value)


@given(st.dictionaries(st.text(), st.integers(0, 9)), st.randoms())
def test_the_order_of_keys_makes_no_difference(value: dict[str, int], random: Any) -> None:
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert canonical(dict(shuffled)) == canonical(value)


@given(st.integers())
def test_an_integer_is_encoded_exactly_or_refused(number: int) -> None:
    replaced = expressible(number)
    if isinstance(replaced, str):
        assert replaced == str(number)
        with pytest.raises(NotCanonical):
            canonical(number)
    else:
        assert float(canonical(number)) == float(number)


def test_expressible_replaces_only_the_numbers_that_no_double_holds() -> None:
    value = {"id": 12345678901234567891, "n": [1, 2.5, True], "s": "x"}
    assert expressible(value) == {"id": "12345678901234567891", "n": [1, 2.5, True], "s": "x"}
    assert expressible({"max": 2**64 - 1}, nearest) == {"max": float(2**64)}
    assert nearest(10**400) == str(10**400)
    fits = {"n": [1, {"m": 2**53 - 1}]}
    assert expressible(fits) is fits


@given(VALUES)
def test_the_reference_package_writes_the_same_bytes_in_its_domain(value: Any) -> None:
    """The domain: integers below 2**53, finite floats, strings without lone surrogates."""
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [2**53, -(2**60)])
def test_integers_that_the_reference_package_refuses_are_encoded(value: int) -> None:
    with pytest.raises(rfc8785.IntegerDomainError):
        rfc8785.dumps(value)
    assert float(json.loads(canonical(value))) == float(value)
