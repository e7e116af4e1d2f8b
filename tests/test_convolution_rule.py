"""The virtual GPU's rule for the workspaces of convolutions (native/libraries/convolution.c) is that of
rules/convolution_workspaces.py.

The virtual GPU is asked as PyTorch asks it, through cuDNN's backend API, in a process without a cuDNN that plans."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from foretell import gpus
from foretell.records import LibraryBytes
from foretell.rules.convolution import Convolution, Direction
from foretell.rules.convolution_workspaces import fitted_workspace, largest_workspace, next_workspace
from foretell.virtual.environment import Workspaces, environment, library_paths

TABLE = Path(__file__).parent / "data" / "convolution_workspaces.csv"
WITH_A_RULE, WITHOUT = "a100-40gb", "rtx-3060"
DIRECTIONS: tuple[Direction, ...] = ("forward", "data", "weights")
ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

ASKING = """
import ctypes, json, sys

cuda = ctypes.CDLL(sys.argv[1])
TENSOR, GRAPH, ENGINE, CONFIG, PLAN = 17, 15, 2, 3, 5
OPERATIONS = {"forward": (10, 703), "data": (12, 709), "weights": (11, 715)}
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}

def made(kind):
    descriptor = ctypes.c_void_p()
    cuda.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor))
    return descriptor

def put(descriptor, attribute, kind, *values, of=ctypes.c_int64):
    given = (of * len(values))(*values)
    assert cuda.cudnnBackendSetAttribute(descriptor, attribute, kind, ctypes.c_int64(len(values)), given) == 0

def point(descriptor, attribute, other):
    put(descriptor, attribute, 15, other, of=ctypes.c_void_p)

def tensor(shape, dtype):
    descriptor = made(TENSOR)
    put(descriptor, 901, 1, DATA_TYPES[dtype], of=ctypes.c_int)
    put(descriptor, 902, 3, *shape)
    return descriptor

for line in sys.stdin:
    direction, dtype, x, y, w = json.loads(line)
    kind, first = OPERATIONS[direction]
    operation, graph, engine, config, plan = (made(each) for each in (kind, GRAPH, ENGINE, CONFIG, PLAN))
    for number, shape in enumerate((w, x, y)):
        point(operation, first + number, tensor(shape, dtype))
    point(graph, 801, operation)
    point(engine, 1300, graph)
    point(config, 300, engine)
    point(plan, 401, config)
    size = ctypes.c_int64(-1)
    assert cuda.cudnnBackendGetAttribute(plan, 402, 3, ctypes.c_int64(1), None, ctypes.byref(size)) == 0
    print(size.value)
"""


class Case(NamedTuple):
    direction: Direction
    dtype: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]


def in_c(cases: list[Case], gpu: str, workspaces: Workspaces = "asked") -> list[int]:
    nothing = LibraryBytes(cublas=0, cudnn=0, nccl=0)
    run = subprocess.run(
        [sys.executable, "-c", ASKING, str(library_paths().cuda)],
        input="".join(f"{json.dumps(case)}\n" for case in cases),
        env=environment(
            gpus.find(gpu), context_bytes=0, libraries=nothing, log_prefix="", base={}, workspaces=workspaces
        ),
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [int(line) for line in run.stdout.split()]


def in_python(cases: list[Case], gpu: str) -> list[int]:
    capability = gpus.find(gpu).compute_capability
    return [fitted_workspace(convolution(case), capability) for case in cases]


def convolution(case: Case) -> Convolution:
    """The rule looks at nothing else of it."""
    ones = (1,) * (len(case.x) - 2)
    return Convolution(
        direction=case.direction, x=case.x, y=case.y, w=case.w, stride=ones, padding=ones, dilation=ones,
        groups=case.x[1] // case.w[1], element_bytes=ELEMENT_BYTES[case.dtype], is_channels_last=False,
    )  # fmt: skip


def rows_of(gpu: str) -> list[Case]:
    def shape(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split("x")))

    with TABLE.open() as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    return [
        Case(row["direction"], row["dtype"], shape(row["x"]), shape(row["y"]), shape(row["w"]))  # type: ignore[arg-type]
        for row in rows
    ]


@pytest.mark.parametrize("gpu", ["t4", "a100-40gb", "rtx-3060", "rtx-4090", "h100-sxm", "b200", "rtx-5090"])
def test_both_rules_agree_on_layers_of_real_models(gpu: str) -> None:
    cases = rows_of(gpu)
    assert len(cases) == 60
    assert in_c(cases, gpu) == in_python(cases, gpu)


def drawn(count: int) -> Iterator[Case]:
    """Shapes on both sides of every border of the rule, and a few of other types and dimensions."""
    generator = random.Random(7)
    channels = (1, 3, 4, 5, 7, 8, 39, 40, 41, 42, 43, 44, 64, 127, 128, 129, 256, 511, 512, 2048)
    for _ in range(count):
        rank = generator.choice((2, 2, 2, 2, 2, 2, 1, 3))
        c, k, n = generator.choice(channels), generator.choice(channels), generator.choice((1, 2, 32))
        filters = tuple(generator.choice((1, 1, 3, 5)) for _ in range(rank))
        x, y = (tuple(generator.choice((1, 7, 14, 56)) for _ in range(rank)) for _ in range(2))
        per_group = c // 2 if c % 2 == 0 and generator.random() < 0.1 else c
        dtype = generator.choice(("float32",) * 6 + ("float16", "bfloat16", "float64"))
        yield Case(generator.choice(DIRECTIONS), dtype, (n, c, *x), (n, k, *y), (k, per_group, *filters))


def test_both_rules_agree_on_both_sides_of_every_border() -> None:
    cases = list(drawn(4000))
    expected = in_python(cases, WITH_A_RULE)
    assert in_c(cases, WITH_A_RULE) == expected
    assert in_c(cases[:200], WITHOUT) == [0] * 200
    for direction in DIRECTIONS:
        sizes = [size for case, size in zip(cases, expected, strict=True) if case.direction == direction]
        assert min(sizes) == 0 < sum(size > 0 for size in sizes), direction


def test_both_say_what_the_next_engine_needs() -> None:
    cases = list(drawn(1000))
    for gpu in (WITH_A_RULE, WITHOUT):
        usual = in_python(cases, gpu)
        expected = [next_workspace(convolution(case), size) for case, size in zip(cases, usual, strict=True)]
        assert in_c(cases, gpu, "next") == expected
        assert all(more >= size for more, size in zip(expected, usual, strict=True))
    assert in_c(cases[:100], WITH_A_RULE, "none") == [0] * 100


@pytest.mark.parametrize(("usual", "copies"), [(0, 1), (1, 2), (2, 2)])
def test_the_next_engine_copies_once_or_twice(usual: int, copies: int) -> None:
    computed = convolution(square("data", 64, 64, 3))
    once = computed.x_bytes + computed.y_bytes + computed.w_bytes
    assert next_workspace(computed, usual * once) == copies * once
    assert largest_workspace(computed, usual * once) == 2 * once


@pytest.mark.parametrize(
    ("direction", "inside", "outside"),
    [
        ("forward", (41, 41, 3), (40, 41, 3)),  # few channels: none
        ("weights", (41, 41, 3), (41, 40, 3)),
        ("forward", (41, 41, 3), (41, 41, 1)),  # 1 x 1: none
        ("data", (5, 41, 3), (4, 41, 3)),  # the first layer: none
    ],
)  # fmt: skip
def test_the_rule_ends_where_both_say(
    direction: Direction, inside: tuple[int, int, int], outside: tuple[int, int, int]
) -> None:
    cases = [square(direction, *inside), square(direction, *outside)]
    found = in_c(cases, WITH_A_RULE)
    assert found == in_python(cases, WITH_A_RULE)
    assert found[0] > 0 == found[1]


@pytest.mark.parametrize(
    ("direction", "more", "fewer"),
    [
        ("data", (43, 42, 3), (42, 42, 3)),  # wide layers: their copies twice
        ("data", (43, 128, 3), (43, 129, 3)),
        ("weights", (512, 1536, 3), (512, 1537, 3)),  # 36 x 12 = 432 tiles: partial sums
    ],
)  # fmt: skip
def test_what_is_asked_for_jumps_where_both_say(
    direction: Direction, more: tuple[int, int, int], fewer: tuple[int, int, int]
) -> None:
    cases = [square(direction, *more), square(direction, *fewer)]
    found = in_c(cases, WITH_A_RULE)
    assert found == in_python(cases, WITH_A_RULE)
    assert found[0] > 1.2 * found[1]


def square(direction: Direction, c: int, k: int, size: int) -> Case:
    return Case(direction, "float32", (2, c, 9, 9), (2, k, 9, 9), (k, c, size, size))
