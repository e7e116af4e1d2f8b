"""Which of torch's functions need care because the virtual GPU computes nothing. Imported once torch is there."""

from __future__ import annotations

import sys
from typing import Any

torch: Any = sys.modules["torch"]


def _named(*names: str) -> frozenset[Any]:
    """The functions of these names in torch and on Tensor; a name this version does not have is left out."""
    return frozenset(getattr(owner, name) for owner in (torch, torch.Tensor) for name in names if hasattr(owner, name))


RANDOM = _named(
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial",
    "normal", "poisson", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_",
)  # fmt: skip
"""Their results on the host must not move the host's random generator."""

UNINITIALISED = _named("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")

OVERWRITE = _named("fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")
"""In place, and what was there before does not matter."""

READS = _named("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "__array__", "__contains__")
"""A value leaves the GPU for the script to look at."""

SET_ITEM = torch.Tensor.__setitem__
SELECT_BY_MASK = _named("masked_select") | {torch.Tensor.__getitem__, SET_ITEM}
COUNTS_NONZERO = _named("nonzero", "argwhere", "where")
MAXIMUM_IS_SIZE = _named("bincount") | frozenset({torch.nn.functional.one_hot})
COUNTS_GROUPS = _named("unique", "unique_consecutive", "repeat_interleave")
SIZE_IS_DATA = SELECT_BY_MASK | COUNTS_NONZERO | MAXIMUM_IS_SIZE | COUNTS_GROUPS
"""The result's size is read back from the GPU while the operator runs."""

COPIES = _named("to", "cuda", "copy_", "type", "type_as", "cpu") | frozenset({torch.tensor, torch.as_tensor})
ASKS_FOR_BAD_NUMBERS = _named("isnan", "isinf", "isposinf", "isneginf")
ASKS_FOR_GOOD_NUMBERS = _named("isfinite")
BATCH_NORM = _named("batch_norm")
CHECKS_PROBABILITIES = _named("multinomial")
CHECKS_GRADIENTS = _named("_amp_foreach_non_finite_check_and_unscale_")

SPECIAL = READS | SIZE_IS_DATA | COPIES | BATCH_NORM | CHECKS_PROBABILITIES | CHECKS_GRADIENTS

INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
