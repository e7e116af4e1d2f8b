"""What becomes of a value that was read is read off the code that follows."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from foretell.inside.values import uses

FUNCTIONS = '''
def printed(read):
    print(f"loss {read():.3f}")

def logged(read, log=[]):
    loss = read()
    log.append(loss / 2)

def compared(read):
    if read() < 1.0:
        return 1

def compared_later(read):
    loss = read()
    loss = loss / 2 + 1
    print(loss)
    best = 1
    if abs(loss) < best:
        best = loss

def in_the_next_round(read):
    loss = 2
    for _ in range(2):
        if loss < 1:
            break
        loss = read()
    return None

def kept_in_an_attribute(read):
    class Best: pass
    best = Best()
    best.loss = read()
    print("saved")
    while best.loss > 5:
        pass

def returned(read):
    def loss():
        return read() * 2
    if loss() > 4:
        return 1

def indexed(read):
    return [1, 2, 3][int(read())]

def sliced(read):
    n = int(read())
    return [1, 2, 3][:n] == 4

def sized(read):
    for _ in range(int(read())):
        pass

def overwritten(read):
    loss = read()
    print(loss)
    loss = 0
    if loss > 1:
        return 1

def measured(read, types={"float": 4}):
    tensor = read()
    length = int(tensor.shape[0]) * types[tensor.dtype]
    if tensor.dtype == "bfloat16" or length > 8 or tensor.numel() > 8 or len(tensor) > 8:
        return [1, 2, 3][length]

def checked(read, isfinite=math.isfinite):
    if not isfinite(read()):
        return 1

def unpacked(read):
    loss, accuracy = read(), 2
    return 1 if loss else 0
'''


class Value(float):
    """A number that can be asked what a tensor can."""

    shape = (1,)
    dtype = "float"

    def numel(self) -> int:
        return 1

    __len__ = numel


functions: dict[str, Any] = {"math": math}
exec(compile(FUNCTIONS, "a script", "exec"), functions)


@pytest.mark.parametrize(
    ("function", "decides"),
    [
        ("printed", None),
        ("logged", None),
        ("compared", "a branch"),
        ("compared_later", "a branch"),
        ("in_the_next_round", "a branch"),
        ("kept_in_an_attribute", "a branch"),
        ("returned", "a branch"),
        ("indexed", "an index"),
        ("sliced", "an index"),
        ("sized", "a size"),
        ("overwritten", None),
        ("measured", None),
        ("checked", None),
        ("unpacked", "a branch"),
    ],
)
def test_use_of_a_value(function: str, decides: str | None) -> None:
    found: list[uses.Use] = []

    def read() -> Value:
        found.append(uses.use_of(sys._getframe(1)))
        return Value(1.0)

    functions[function](read)
    assert found[0].decides == decides


@pytest.mark.parametrize(("text", "is_slice"), [("x[:, :length]", True), ("x[length]", False), ("x[:length]", True)])
def test_an_end_of_a_slice_is_told_from_an_index(text: str, is_slice: bool) -> None:
    found: list[uses.Use] = []

    class Tensor:
        def __getitem__(self, index: Any) -> None:
            found.append(uses.use_of(sys._getframe(1)))

    exec(compile(text, "a script", "exec"), {"x": Tensor(), "length": 1})
    assert (found[0].decides, found[0].is_slice) == ("a size" if is_slice else "an index", is_slice)


@pytest.mark.parametrize(
    ("condition", "is_negated"), [("value", False), ("negation", True), ("value + 1", None), ("bool(value)", False)]
)
def test_whether_the_value_itself_is_asked_for(condition: str, is_negated: bool | None) -> None:
    found: list[uses.Use] = []

    def read() -> bool:
        found.append(uses.use_of(sys._getframe(1)))
        return False

    script = f"value = read()\nnegation = not value\nif {condition}: pass\nelse: print()"
    exec(compile(script, "a script", "exec"), {"read": read})
    assert (found[0].decides, found[0].is_negated) == ("a branch", is_negated)


@pytest.mark.parametrize(
    ("text", "divides"),
    [
        ("hits = int(read()); print(hits / 2)", False),
        ("hits, misses = read(), 3; print(hits / (hits + misses))", True),
        ("found = read().tolist()\nwidth = 192 // found", True),
        ("hits = 0\nfor _ in range(1): hits += read()\nprint(1 % hits)", True),
    ],
)
def test_whether_something_is_divided_by_a_value(text: str, divides: bool) -> None:
    found: list[uses.Use] = []

    class Read(int):
        def tolist(self) -> int:
            return 1

    def read() -> int:
        found.append(uses.use_of(sys._getframe(1)))
        return Read(1)

    exec(compile(text, "a script", "exec"), {"read": read})
    assert found[0].divides == divides


@pytest.mark.parametrize(
    ("condition", "comparison"),
    [
        ("read() == 0", uses.Comparison("==", "0", False)),
        ("int(read()) in (job.end, 7)", uses.Comparison("in", "(job.end, 7, )", False)),
        ("ids['end'] != value", uses.Comparison("!=", "ids['end']", True)),
        ("is_end", uses.Comparison("==", "job.end", False)),
        ("value > most()", None),
        ("value > value - 1", None),
    ],
)
def test_what_a_value_is_compared_with(condition: str, comparison: uses.Comparison | None) -> None:
    found: list[uses.Use] = []

    def read() -> int:
        found.append(uses.use_of(sys._getframe(1)))
        return 0

    text = f"""
def script(read, job, ids, most):
    value = read()
    is_end = value == job.end
    if {condition}:
        print()
"""
    names: dict[str, Any] = {}
    exec(compile(text, "a script", "exec"), names)
    names["script"](read, type("Job", (), {"end": 3}), {"end": 3}, lambda: 3)
    assert found[-1].comparison == comparison
