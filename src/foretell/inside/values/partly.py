"""Which elements of a result are known where some elements of the arguments are not: three-valued logic.

`True | unknown` is True and `0 * unknown` is 0. Instead of a rule per operator, the operator itself runs on the host,
more than once, with different numbers in place of the unknown elements. A result that is the same each time is known.
Two numbers are enough to prove that where the operator has one of these shapes, so only such operators are listed:

- it moves elements (`cat`, indexing by a known index): 0 and 1 in place of all unknown elements;
- it adds, multiplies, or asks whether any or all are nonzero: the same;
- it is the largest or smallest of them: the ends of the type's range;
- element by element, it is affine in each argument (`+`, `*`, `where`: 0 and 1), bitwise (all bits 0 and all bits 1) or
  monotone in each argument (`<`, `maximum`: the ends of the range), in every combination over the arguments.

Of any other elementwise operator listed, an element is known if the elements it was made of are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .operators import INTEGERS, torch

MAX_PARTLY = 1 << 14
"""Most elements of a tensor that may be known in part."""


@dataclass(frozen=True, slots=True)
class Argument:
    position: int
    """In the call; -1 for a named one."""
    value: Any
    """A tensor of the host; what it holds where it is not known does not matter."""
    known: Any
    """A mask of its shape; None: all of it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    fillings: str
    """`units` (0 and 1), `bits` (0 and -1) or `ends` (of the type's range); `one` for elementwise operators without a
    rule of their own."""
    is_joint: bool = False
    """All arguments get the same filling."""
    moved: tuple[int, ...] = ()
    """Positions of arguments that may be unknown, if not all may: an index must be known."""


_MOVES = _Rule("units", is_joint=True)
_MOVES_FIRST = _Rule("units", is_joint=True, moved=(0,))
_UNITS, _BITS, _ENDS, _ONE = (_Rule(fillings) for fillings in ("units", "bits", "ends", "one"))

_RULES: dict[str, _Rule] = {
    name: rule
    for names, rule in (
        (
            "cat concat concatenate stack hstack vstack clone contiguous reshape flatten ravel flip roll fliplr flipud "
            "tile repeat pad constant_pad_nd tril triu to type long int short bool type_as _to_copy copy",
            _MOVES,
        ),
        (
            "getitem index index_select gather take take_along_dim repeat_interleave sum cumsum prod cumprod any all "
            "count_nonzero",
            _MOVES_FIRST,
        ),
        ("select_scatter slice_scatter", _Rule("units", is_joint=True, moved=(0, 1))),
        ("setitem index_put _index_put_impl", _Rule("units", is_joint=True, moved=(0, 2))),
        ("scatter scatter_add index_copy index_fill", _Rule("units", is_joint=True, moved=(0, 3))),
        (
            "add sub subtract rsub mul multiply neg negative where masked_fill logical_and logical_or logical_xor "
            "logical_not",
            _UNITS,
        ),
        ("and or xor invert bitwise_and bitwise_or bitwise_xor bitwise_not", _BITS),
        (
            "lt le gt ge less less_equal greater greater_equal maximum minimum max min amax amin clamp clamp_min "
            "clamp_max",
            _ENDS,
        ),
        (
            "eq ne not_equal abs sign floor_divide floordiv remainder mod fmod pow bitwise_left_shift "
            "bitwise_right_shift lshift rshift",
            _ONE,
        ),
        ("isin", _Rule("one", moved=(0,))),
    )
    for name in names.split()
}
_SAME = {"radd": "add", "iadd": "add", "isub": "sub", "rmul": "mul", "imul": "mul", "rand": "and", "iand": "and",
         "ror": "or", "ior": "or", "rxor": "xor", "ixor": "xor"}  # fmt: skip
_REDUCES_TO_ENDS = frozenset({"max", "min", "amax", "amin"})


def is_listed(name: str) -> bool:
    return _base(name) in _RULES


def compute(name: str, call: Callable[[list[Any]], Any], arguments: list[Argument]) -> tuple[Any, Any] | None:
    """(value, mask of what is known of it) of an operator with these arguments; None if nothing of it is known.

    `call` gets a tensor for each argument and returns the result. It may write to the tensors.
    """
    base = _base(name)
    rule = _RULES[base]
    unknown = [each for each in arguments if each.known is not None]
    if rule.moved and any(each.position not in rule.moved for each in unknown):
        return None
    is_absorbing = rule in (_UNITS, _BITS, _ENDS)  # by a number: `x * 0`
    if not is_absorbing and all(each.known is not None and not bool(each.known.any()) for each in arguments):
        return None
    if base in ("eq", "ne") and all(each.value.dtype is torch.bool for each in unknown):
        rule = _UNITS
    # A float has no two numbers that prove anything: it may be NaN, and 0 * inf is not 0.
    is_of_floats = any(each.value.dtype not in INTEGERS for each in unknown)
    if rule.fillings == "one" or (is_of_floats and not rule.is_joint):
        return _where_all_are_known(call, arguments)
    is_joint = rule.is_joint or (base in _REDUCES_TO_ENDS and len(arguments) == 1)
    count = len(unknown)
    choices = [(0,) * count, (1,) * count] if is_joint else list(itertools.product((0, 1), repeat=count))
    results = [call(_filled(arguments, choice, rule.fillings)) for choice in choices]
    known = torch.ones(results[0].shape, dtype=torch.bool, device="cpu")
    for other in results[1:]:
        known &= results[0] == other
    return (results[0], known) if bool(known.any()) else None


def _base(name: str) -> str:
    """`__ior__`, `bitwise_or_` and `bitwise_or` are one operator."""
    if name.startswith("__") and name.endswith("__"):
        return _SAME.get(name[2:-2], name[2:-2])
    return name.rstrip("_")


def _filled(arguments: list[Argument], choice: tuple[int, ...], fillings: str) -> list[Any]:
    chosen = iter(choice)
    return [
        each.value.clone() if each.known is None else _fill(each, _number(each.value.dtype, fillings, next(chosen)))
        for each in arguments
    ]


def _fill(argument: Argument, number: int) -> Any:
    return argument.value.clone().masked_fill_(~argument.known, number)


def _number(dtype: Any, fillings: str, choice: int) -> int:
    if dtype is torch.bool or dtype not in INTEGERS or fillings == "units":
        return choice
    if fillings == "bits":
        return int(torch.tensor(-choice, device="cpu").to(dtype))
    limits = torch.iinfo(dtype)
    return int((limits.min, limits.max)[choice])


def _where_all_are_known(call: Callable[[list[Any]], Any], arguments: list[Argument]) -> tuple[Any, Any] | None:
    value = call([each.value.clone() if each.known is None else _fill(each, 1) for each in arguments])
    known = torch.ones(value.shape, dtype=torch.bool, device="cpu")
    for each in arguments:
        if each.known is not None:
            if torch.broadcast_shapes(each.known.shape, value.shape) != value.shape:
                return None
            known = known & each.known
    return (value, known) if bool(known.any()) else None
