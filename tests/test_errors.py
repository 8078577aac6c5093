"""The exception tree is drawn at the top of its module; the drawing and the classes must agree."""

from __future__ import annotations

import inspect
import re

from nousd import errors


def drawn() -> list[tuple[str, str]]:
    """Returns each class of the drawing with the one that it hangs from."""
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
    assert set(drawn()) == bases - {("NousdError", "Exception")}
