"""The rule for cuDNN's workspaces against what cuDNN 9.26 answered (torch 2.15, benchmarks/convolution_workspaces.py).

tests/data/convolution_workspaces.csv: `... tests/data/convolution_workspaces.csv --layers 80 --rows 60 --seed 1`."""

from __future__ import annotations

import csv
from functools import cache
from math import prod
from pathlib import Path

import pytest

from foretell.rules.convolution import Convolution, Direction
from foretell.rules.convolution_plans import planned_workspace

TABLE = Path(__file__).parent / "data" / "convolution_workspaces.csv"
CAPABILITIES = {
    "t4": (7, 5),
    "a100-40gb": (8, 0),
    "rtx-3060": (8, 6),
    "rtx-4090": (8, 9),
    "h100-sxm": (9, 0),
    "b200": (10, 0),
    "rtx-5090": (12, 0),
}
SAME_BLOCK = {
    "t4": 0.66,
    "a100-40gb": 0.58,
    "rtx-3060": 0.71,
    "rtx-4090": 0.60,
    "h100-sxm": 0.75,
    "b200": 0.78,
    "rtx-5090": 0.71,
}
"""Measured on the sample; of all its rows 69 %, and as many of the 270 whose shapes the rule was not made from."""
BLOCK = 512  # what PyTorch's allocator rounds to

Shape = tuple[int, ...]

# Of ResNet-50 with 64 images of 224 x 224 on A100: direction, bytes of an element, channels-last, x, y, w, stride.
RESNET_50: list[tuple[Direction, int, bool, Shape, Shape, Shape, int, int]] = [
    ("forward", 4, False, (64, 3, 224, 224), (64, 64, 112, 112), (64, 3, 7, 7), 2, 244_093_712),
    ("forward", 4, False, (64, 64, 56, 56), (64, 64, 56, 56), (64, 64, 1, 1), 1, 51_396_624),
    ("forward", 4, False, (64, 64, 56, 56), (64, 64, 56, 56), (64, 64, 3, 3), 1, 51_527_696),
    ("data", 4, False, (64, 64, 56, 56), (64, 64, 56, 56), (64, 64, 3, 3), 1, 102_907_920),
    ("data", 4, False, (64, 64, 56, 56), (64, 256, 56, 56), (256, 64, 1, 1), 1, 256_966_672),
    ("data", 4, True, (64, 64, 56, 56), (64, 256, 56, 56), (256, 64, 1, 1), 1, 205_586_448),
    ("forward", 4, True, (64, 256, 56, 56), (64, 512, 28, 28), (512, 256, 1, 1), 2, 206_045_200),
    ("data", 4, False, (64, 256, 28, 28), (64, 256, 14, 14), (256, 256, 3, 3), 2, 66_584_592),
    ("forward", 4, False, (64, 1024, 14, 14), (64, 256, 14, 14), (256, 1024, 1, 1), 1, 52_428_816),
    ("weights", 4, False, (64, 512, 7, 7), (64, 2048, 7, 7), (2048, 512, 1, 1), 1, 32_112_656),
    ("forward", 2, False, (64, 128, 28, 28), (64, 128, 28, 28), (128, 128, 3, 3), 1, 25_985_040),
    ("data", 2, False, (64, 256, 56, 56), (64, 64, 56, 56), (64, 256, 1, 1), 1, 128_450_576),
    ("data", 2, True, (64, 256, 56, 56), (64, 64, 56, 56), (64, 256, 1, 1), 1, 0),
]


@pytest.mark.parametrize(
    ("direction", "element_bytes", "is_channels_last", "x", "y", "w", "stride", "asked"), RESNET_50
)
def test_layers_of_resnet_50_get_what_cudnn_asks_for(
    direction: Direction,
    element_bytes: int,
    is_channels_last: bool,
    x: Shape,
    y: Shape,
    w: Shape,
    stride: int,
    asked: int,
) -> None:
    convolution = Convolution(
        direction=direction,
        x=x,
        y=y,
        w=w,
        stride=(stride, stride),
        padding=(w[2] // 2, w[3] // 2),
        dilation=(1, 1),
        groups=1,
        element_bytes=element_bytes,
        is_channels_last=is_channels_last,
    )
    assert planned_workspace(convolution, (8, 0)) == asked


def test_channels_are_padded_to_sixteen_bytes_for_the_copy() -> None:
    """33 channels to 40 and 65 to 72 in half precision; the number is cuDNN's for RTX 5090."""
    convolution = Convolution(
        direction="data",
        x=(64, 33, 128, 128),
        y=(64, 65, 128, 128),
        w=(65, 33, 3, 3),
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        groups=1,
        element_bytes=2,
        is_channels_last=False,
    )
    assert planned_workspace(convolution, (12, 0)) == 2 * (64 * 128 * 128 * (40 + 72) + 40 * 72 * 9) + 16 == 234_932_880


@pytest.mark.parametrize(("gpu", "measured"), SAME_BLOCK.items())
def test_most_of_a_sample_comes_out_in_the_same_block(gpu: str, measured: float) -> None:
    rows = [row for row in sample() if row["gpu"] == gpu]
    hits = sum(abs(planned(row) - int(row["workspace"])) < BLOCK for row in rows)
    assert hits >= (measured - 0.03) * len(rows)


def test_four_of_five_errors_are_at_most_a_tenth_of_the_tensors() -> None:
    errors = [abs(planned(row) - int(row["workspace"])) for row in sample()]
    tensors = [element_bytes(row) * sum(prod(numbers(row, name)) for name in "xyw") for row in sample()]
    assert sum(error <= 0.1 * size for error, size in zip(errors, tensors, strict=True)) >= 0.8 * len(errors)


@cache
def sample() -> list[dict[str, str]]:
    with TABLE.open() as file:
        return list(csv.DictReader(file))


def planned(row: dict[str, str]) -> int:
    direction: Direction = row["direction"]  # type: ignore[assignment]
    convolution = Convolution(
        direction=direction,
        x=numbers(row, "x"),
        y=numbers(row, "y"),
        w=numbers(row, "w"),
        stride=numbers(row, "stride"),
        padding=numbers(row, "padding"),
        dilation=numbers(row, "dilation"),
        groups=int(row["groups"]),
        element_bytes=element_bytes(row),
        is_channels_last=row["format"] == "channels_last",
    )
    return planned_workspace(convolution, CAPABILITIES[row["gpu"]])


def numbers(row: dict[str, str], name: str) -> Shape:
    return tuple(map(int, row[name].split("x")))


def element_bytes(row: dict[str, str]) -> int:
    return 4 if row["dtype"] == "float32" else 2
