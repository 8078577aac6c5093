"""Path globs: what they match, what they do not match, and bounded matching time."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import RuleInvalid
from nousd.machine.policy.path_globs import (
    ALTERNATIVES_MAX,
    REGEX_CHARS_MAX,
    deep_glob_regex,
    glob_regex,
    literal_glob,
)


def matches(glob: str, place: str) -> bool:
    return re.fullmatch(glob_regex(glob), place) is not None


@pytest.mark.parametrize(
    ("glob", "places", "others"),
    [
        ("src/**", "src src/a src/a/b", "srca x/src"),
        ("src/*", "src/a src/.a", "src src/a/b"),
        ("src/", "src", "src/a"),
        ("./src", "src", "x/src"),
        ("*.py", "a.py .py", "a/b.py a.pyc"),
        ("**/x", "x a/x a/b/x", "ax x/y"),
        ("a/**/b", "a/b a/1/b a/1/2/b", "ab a/b/c b"),
        ("a/**/b/**/c", "a/b/c a/1/b/2/3/c", "a/c b/c"),
        ("a/**/b/**", "a/b a/1/b a/b/c/d", "a b"),
        ("**/**/x", "x a/x", "y"),
        ("**", ". a a/b", ""),
        ("a**b", "ab axxb", "a/b"),
        ("*a*b*c", "abc xaybzc aabbcc", "ab acb"),
        ("a?c", "abc", "ac a/c"),
        ("[ab]x", "ax bx", "cx"),
        ("[!a]x", "bx", "ax"),
        ("[a-c]", "b", "d"),
        ("[[]x[]]", "[x]", "x"),
        ("[]]", "]", "["),
        ("[x", "[x", "x"),
        ("{a,b/c}/*.t", "a/x.t b/c/y.t", "c/x.t"),
        ("{a", "{a", "a"),
        ("a.b", "a.b", "axb"),
        (".", ".", "a"),
    ],
)
def test_a_glob_matches_these_paths_and_no_others(glob: str, places: str, others: str) -> None:
    assert [place for place in places.split() if not matches(glob, place)] == []
    assert [place for place in others.split() if matches(glob, place)] == []


@pytest.mark.parametrize(
    ("glob", "places", "others"),
    [
        (".env", ".env a/.env a/b/.env", "x.env a/.env/b .envx"),
        (".env*", ".env .env.x a/.env.x", "a/x.env .env/x"),
        ("src/", "src a/src", "srcx src/a"),
        ("./src", "src", "a/src"),
        ("src/x", "src/x", "a/src/x"),
        ("**/x", "x a/x", "ax"),
        ("{x,a/y}", "x b/x a/y", "y b/a/y"),
        ("**", ". a a/b", ""),
        (".", ".", "a a/b"),
    ],
)
def test_a_deep_glob_without_a_slash_matches_at_any_depth(
    glob: str, places: str, others: str
) -> None:
    regex = re.compile(deep_glob_regex(glob))
    assert [place for place in places.split() if not regex.fullmatch(place)] == []
    assert [place for place in others.split() if regex.fullmatch(place)] == []


def test_the_longest_accepted_glob_is_still_accepted_at_any_depth() -> None:
    longest = "{" + ",".join(f"[a-z]{n}" + "x" * 200 for n in range(60)) + "}"
    assert len(glob_regex(longest)) <= REGEX_CHARS_MAX
    assert re.fullmatch(deep_glob_regex(longest), f"a/b/c59{'x' * 200}")


@pytest.mark.parametrize("glob", ["/etc", "~/x", "../x", "a/../b", "[z-a]", "{a,b}" * 7])
def test_a_glob_that_is_invalid_or_leaves_the_workspace_is_refused(glob: str) -> None:
    with pytest.raises(RuleInvalid):
        glob_regex(glob)


def test_braces_expand_to_a_limited_number_of_globs() -> None:
    most = "{" + ",".join(map(str, range(ALTERNATIVES_MAX))) + "}"
    assert matches(most, str(ALTERNATIVES_MAX - 1))
    with pytest.raises(RuleInvalid, match="more than 64"):
        glob_regex(most.replace("{", "{more,"))


_names = st.text(st.sampled_from("ab*?[]{},=#!^-.\\ ü"), min_size=1, max_size=6).filter(
    lambda name: name not in {".", ".."}
)
_places = st.lists(_names, min_size=1, max_size=3).map("/".join)


@given(st.lists(_places, min_size=1, max_size=3), _places)
def test_a_literal_glob_matches_only_its_paths(paths: list[str], other: str) -> None:
    glob = literal_glob(paths)
    assert [path for path in paths if not matches(glob, path)] == []
    assert matches(glob, other) == (other in paths)


def matches_plainly(glob: tuple[str, ...], place: tuple[str, ...]) -> bool:
    """Match part by part, without an expression of ``glob_regex``."""

    @cache
    def rest(want: int, part: int) -> bool:
        if want == len(glob):
            return part == len(place)
        if glob[want] == "**":
            return any(rest(want + 1, later) for later in range(part, len(place) + 1))
        return part < len(place) and (
            fnmatchcase(place[part], glob[want]) and rest(want + 1, part + 1)
        )

    return rest(0, 0)


_parts = st.text(st.sampled_from("ab"), min_size=1, max_size=4)
_wanted = st.one_of(st.just("**"), st.text(st.sampled_from("ab*?"), min_size=1, max_size=6))


@given(
    st.lists(_wanted.filter(lambda name: name == "**" or "**" not in name), min_size=1, max_size=5),
    st.lists(_parts, min_size=1, max_size=5),
)
def test_stars_without_backtracking_match_like_a_plain_matcher(
    glob: list[str], place: list[str]
) -> None:
    assert matches("/".join(glob), "/".join(place)) == matches_plainly(tuple(glob), tuple(place))


def test_a_hostile_glob_is_matched_without_backtracking() -> None:
    # With backtracking this would take longer than the age of the universe.
    glob = "/".join(["**", "*a" * 50 + "*b"] * 20)
    assert not matches(glob, "/".join(["a" * 200] * 100))


def test_the_regular_expression_of_a_glob_has_a_maximum_length() -> None:
    one, several = (len(glob_regex("[a-z]" * count)) for count in (1, 101))
    each = (several - one) // 100
    fits = (REGEX_CHARS_MAX - one) // each + 1
    assert REGEX_CHARS_MAX - each < len(glob_regex("[a-z]" * fits)) <= REGEX_CHARS_MAX
    with pytest.raises(RuleInvalid, match="stands for too much"):
        glob_regex("[a-z]" * (fits + 1))
    with pytest.raises(RuleInvalid, match="stands for too much"):
        glob_regex("{a,b}" * 6 + "x" * 1000)
