"""Three-valued logic: what is called known is what every value of the unknown elements gives."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretell.inside.values import partly

VALUES = {torch.bool: [0, 1], torch.int64: [-(2**63), -7, -1, 0, 1, 2, 3, 2**63 - 1], torch.uint8: [0, 1, 2, 255]}
OPERATORS: dict[str, Callable[..., Any]] = {
    "__or__": operator.or_, "__and__": operator.and_, "__xor__": operator.xor, "logical_or": torch.logical_or,
    "logical_and": torch.logical_and, "logical_xor": torch.logical_xor, "add": torch.add, "__rsub__": torch.rsub,
    "sub": torch.sub, "mul": torch.mul, "lt": torch.lt, "__ge__": operator.ge, "maximum": torch.maximum,
    "minimum": torch.minimum, "max": torch.max, "eq": torch.eq, "ne": torch.ne,
    "masked_fill": lambda a, b: a.masked_fill(b.bool(), 1), "where": lambda a, b: torch.where(a.bool(), b, a),
    "cat": lambda a, b: torch.cat([a, b]), "stack": lambda a, b: torch.stack([a, b]),
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "any": torch.any, "all": torch.all, "sum": torch.sum, "prod": torch.prod, "cumsum": lambda a: a.cumsum(0),
    "max": torch.max, "amin": torch.amin, "count_nonzero": torch.count_nonzero, "__invert__": torch.bitwise_not,
    "logical_not": torch.logical_not, "neg": torch.neg, "bool": lambda a: a.bool(), "int": lambda a: a.int(),
    "abs": torch.abs, "__mul__": lambda a: a * 0, "flip": lambda a: a.flip(0), "tril": lambda a: a.view(1, -1).tril(),
    "gather": lambda a: a.gather(0, torch.tensor([2, 0])), "clamp": lambda a: a.clamp(1, 1),
}  # fmt: skip


def check(name: str, function: Callable[..., Any], *tensors: torch.Tensor) -> int:
    """Compares with many completions; returns how many elements are known."""
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(each.shape, generator=generator) < 0.5 for each in tensors]
    arguments = [
        partly.Argument(number, each, None if mask.all() else mask)
        for number, (each, mask) in enumerate(zip(tensors, masks, strict=True))
    ]
    try:
        found = partly.compute(name, lambda given: function(*given), arguments)
    except RuntimeError:
        pytest.skip(f"torch has no {name} for these types")
    if found is None:
        return 0
    value, known = found
    for _ in range(50):
        completed = []
        for each, mask in zip(tensors, masks, strict=True):
            numbers = torch.tensor(VALUES[each.dtype]).to(each.dtype)
            others = numbers[torch.randint(len(numbers), each.shape, generator=generator)]
            completed.append(torch.where(mask, each, others))
        assert torch.equal(function(*completed)[known], value[known]), (name, completed)
    return int(known.sum())


def numbers(dtype: torch.dtype, start: int) -> torch.Tensor:
    values = torch.tensor(VALUES[dtype])
    return values[(torch.arange(16) * 5 + start) % len(values)].to(dtype)


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("name", OPERATORS)
def test_what_two_arguments_give_is_known_only_if_nothing_else_is_possible(name: str, dtype: torch.dtype) -> None:
    assert check(name, OPERATORS[name], numbers(dtype, 0), numbers(dtype, 3)) > 0


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_one_argument_gives_is_known_only_if_nothing_else_is_possible(name: str, dtype: torch.dtype) -> None:
    check(name, REDUCTIONS[name], numbers(dtype, 0))


@pytest.mark.parametrize(
    ("name", "function", "value", "known"),
    [
        ("__or__", lambda a: a | True, [True, False], [True, True]),
        ("__mul__", lambda a: a * 0, [3, 4], [True, True]),
        ("any", lambda a: a.any(), [True, True], True),
        ("all", lambda a: a.all(), [False, True], True),
        ("sum", lambda a: a.sum(), [1, 1], False),
        ("max", lambda a: a.max(), [2**63 - 1, 0], True),
        ("lt", lambda a: a < 5, [1, 1], [True, False]),
    ],
)
def test_a_number_can_decide_the_result(
    name: str, function: Callable[..., Any], value: list[Any], known: list[bool] | bool
) -> None:
    found = partly.compute(
        name, lambda given: function(*given), [partly.Argument(0, torch.tensor(value), torch.tensor([True, False]))]
    )
    assert (found[1].tolist() if found else False) == known


def test_an_index_that_is_not_known_leaves_nothing_known() -> None:
    index = partly.Argument(1, torch.tensor([0, 1]), torch.tensor([True, False]))
    value = partly.Argument(0, torch.tensor([5, 5]), None)
    assert partly.compute("__getitem__", lambda given: given[0][given[1]], [value, index]) is None


def test_unknown_floats_prove_nothing() -> None:
    floats = partly.Argument(0, torch.tensor([1.0, 1.0]), torch.tensor([True, False]))
    found = partly.compute("__ge__", lambda given: given[0] >= float("-inf"), [floats])
    assert found is not None
    assert found[1].tolist() == [True, False]  # NaN is not
