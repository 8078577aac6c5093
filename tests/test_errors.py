"""The drawing of the exception tree in its module matches the classes."""

from __future__ import annotations

import inspect
import re

import pytest

from nousd import errors


def classes_in_drawing() -> list[tuple[str, str]]:
    """Return each class of the drawing with its base."""
    lines = re.findall(
        r"^    ([\u2502 ]*)[\u251c\u2514]\u2500\u2500 (\w+)", errors.__doc__ or "", re.MULTILINE
    )
    above = ["NousdError"]
    pairs = []
    for indent, name in lines:
        del above[len(indent) // 4 + 1 :]
        pairs.append((name, above[-1]))
        above.append(name)
    return pairs


def test_the_drawing_shows_every_error_below_its_base() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    ours = [each for each in classes if issubclass(each, errors.NousdError)]
    bases = {(each.__name__, each.__bases__[0].__name__) for each in ours}
    assert set(classes_in_drawing()) == bases - {("NousdError", "Exception")}


def test_without_frames_also_clears_the_causes() -> None:
    def fail() -> None:
        try:
            raise OSError("the disk")
        except OSError as cause:
            raise errors.ToolError("cannot be read") from cause

    with pytest.raises(errors.ToolError) as caught:
        fail()
    error = caught.value
    assert isinstance(error.__cause__, OSError)
    assert errors.without_frames(error) is error
    assert error.__traceback__ is None
    assert error.__cause__.__traceback__ is None


def test_without_frames_clears_cyclic_causes() -> None:
    first, second = errors.ToolError("first"), errors.ToolError("second")

    def fail() -> None:
        try:
            raise first
        except errors.ToolError:
            second.__cause__ = first
            first.__cause__ = second
            raise second  # noqa: B904  the causes are set

    with pytest.raises(errors.ToolError) as caught:
        fail()
    assert errors.without_frames(caught.value) is second
    assert first.__traceback__ is None
    assert second.__traceback__ is None
