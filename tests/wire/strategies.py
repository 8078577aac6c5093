"""Arbitrary values of any wire struct, made from its type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

_CHARS_MAX: Final = 40

TEXT: Final = st.characters(codec="utf-8")

json_values: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(TEXT, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(TEXT, max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def structs(struct: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of a struct."""
    return _of(inspect.type_info(struct))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    return _STRATEGIES[type(info)](info)


def _struct(info: inspect.StructType) -> st.SearchStrategy[Any]:
    required = {field.name: _of(field.type) for field in info.fields if field.required}
    optional = {field.name: _of(field.type) for field in info.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: info.cls(**given))


def _text(info: inspect.StrType) -> st.SearchStrategy[str]:
    if info.pattern is None:
        size_max = min(_CHARS_MAX, info.max_length or _CHARS_MAX)
        return st.text(TEXT, min_size=info.min_length or 0, max_size=size_max)
    matches = re.compile(info.pattern).search
    return st.from_regex(info.pattern, alphabet=TEXT).filter(lambda text: bool(matches(text)))


def _integer(info: inspect.IntType) -> st.SearchStrategy[int]:
    return st.integers(
        -(2**53) if info.ge is None else info.ge, 2**53 if info.le is None else info.le
    )


_STRATEGIES: Final[dict[type[inspect.Type], Callable[[Any], st.SearchStrategy[Any]]]] = {
    inspect.Metadata: lambda info: _of(info.type),
    inspect.StructType: _struct,
    inspect.UnionType: lambda info: st.one_of([_of(type_) for type_ in info.types]),
    inspect.LiteralType: lambda info: st.sampled_from(info.values),
    inspect.VarTupleType: lambda info: st.lists(_of(info.item_type), max_size=3).map(tuple),
    inspect.DictType: lambda info: st.dictionaries(_of(info.key_type), _of(info.value_type)),
    inspect.StrType: _text,
    inspect.BytesType: lambda _: st.binary(max_size=_CHARS_MAX),
    inspect.IntType: _integer,
    inspect.FloatType: lambda info: st.floats(
        info.ge, info.le, allow_nan=False, allow_infinity=False
    ),
    inspect.BoolType: lambda _: st.booleans(),
    inspect.NoneType: lambda _: st.none(),
    inspect.AnyType: lambda _: json_values,
}
"""Other types, such as ``msgspec.Raw``, have no arbitrary values."""
