"""Decoding from several threads at once, of types that nobody has decoded before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from nousd.wire.codec.decoding import convert, decode_json, json_decoder

ROOT = Path(__file__).resolve().parents[2]

RACE = """
import sys, threading, types
import msgspec
from nousd.wire.codec.decoding import decode_json, json_decoder

sys.setswitchinterval(1e-6)
module = sys.modules["made"] = types.ModuleType("made")
DEPTH, ROUNDS = 30, 40
for _ in range(ROUNDS):
    for number in range(DEPTH):
        below = f"list[S{number + 1}]" if number + 1 < DEPTH else "int"
        fields = [("a", int, 0), ("b", f"{below} | None", None), ("c", "dict[str, int] | None", None)]
        struct = msgspec.defstruct(f"S{number}", fields, namespace={"__module__": "made"})
        setattr(module, f"S{number}", struct)
    at_once = threading.Barrier(3)

    def decode(build):
        at_once.wait()
        build(b'{"b":[{"b":[{"a":2,"c":{"x":1}}]}]}')

    ways = (
        lambda line: json_decoder(module.S0).decode(line),
        lambda line: decode_json(line, type=module.S0),
        lambda line: decode_json(line, type=module.S1 | None),
    )
    threads = [threading.Thread(target=decode, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_decode_a_new_type_at_once_do_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RACE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


_BY_TYPE = frozenset({"msgspec.json.decode", "msgspec.json.Decoder", "msgspec.convert"})


@pytest.mark.slow
def test_nothing_else_has_msgspec_build_types() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "nousd").rglob("*.py"))
        if path.name != "decoding.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _BY_TYPE
    ]
    assert found == []


class Point(msgspec.Struct):
    x: int


def test_values_and_faults_are_those_of_msgspec() -> None:
    assert decode_json(b'{"x":1}', type=Point) == Point(1)
    assert decode_json(b'{"x":1}') == {"x": 1}
    assert json_decoder(Point).decode('{"x":2}') == Point(2)
    assert convert({"x": "3"}, Point, strict=False) == Point(3)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`.* at `\$\.x`"):
        convert({"x": "3"}, Point)
    with pytest.raises(msgspec.DecodeError):
        decode_json(b"{", type=Point)
