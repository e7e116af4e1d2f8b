"""torch's functions that need care because the virtual GPU computes nothing. Imported after torch."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

torch: Any = sys.modules["torch"]


def _named(*names: str) -> frozenset[Any]:
    """Functions of these names in torch and on Tensor; names missing in this version are skipped."""
    return frozenset(getattr(owner, name) for owner in (torch, torch.Tensor) for name in names if hasattr(owner, name))


RANDOM = _named(
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial",
    "normal", "poisson", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_",
)  # fmt: skip
"""Repeating them on the host must not advance the host's random generator."""

UNINITIALISED = _named("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")

LIKE = _named(
    "ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full",
    "rand_like", "randn_like", "randint_like",
)  # fmt: skip
"""Only the shape and type of their first argument matter."""

KEEPS_BYTES = _named(
    "contiguous", "to", "type", "type_as", "cuda", "long", "int", "short", "bool", "float", "double", "half",
    "bfloat16", "reshape", "flatten", "ravel", "positive", "resolve_conj", "resolve_neg", "requires_grad_", "detach_",
    "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "share_memory_", "pin_memory",
)  # fmt: skip
"""If they return their argument, they have changed none of its bytes."""

RESIZES = _named("resize_", "resize_as_")

OVERWRITE = _named("fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")
"""In place, regardless of the previous contents."""

READS = _named("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "__array__", "__contains__")
"""They hand a value from the GPU to the script."""

COMPARES = _named("equal", "allclose")
"""They read one truth value back from the GPU, and hand it to the script."""

SET_ITEM = torch.Tensor.__setitem__
SELECT_BY_MASK = _named("masked_select") | {torch.Tensor.__getitem__, SET_ITEM}
COUNTS_NONZERO = _named("nonzero", "argwhere", "where")
SOFTMAX = _named("softmax") | frozenset({torch.nn.functional.softmax})
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

CHOOSES = _named("topk")
MAX_CHOICES = 1 << 10
"""A network routes to some of at most this many choices: experts, not words."""
ORDERS = _named("sort", "argsort")
FOREACH = _named(*(name for name in dir(torch) if name.startswith("_foreach_")))
"""For optimizers' lists of weights, gradients and moments, which are unknown anyway."""

MAKES_SPARSE = _named(
    "sparse_coo_tensor", "sparse_csr_tensor", "sparse_compressed_tensor", "to_sparse", "to_sparse_csr", "to_sparse_csc",
    "to_sparse_bsr", "to_sparse_bsc", "to_sparse_coo", "coalesce", "to", "cuda",
)  # fmt: skip
"""A script that calls none of these has no sparse tensors."""

SPECIAL = RESIZES | READS | COMPARES | SIZE_IS_DATA | COPIES | BATCH_NORM | CHECKS_PROBABILITIES | CHECKS_GRADIENTS

INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def name_of(func: Any) -> str:
    return getattr(func, "__name__", "")


def is_collective(func: Any) -> bool:
    """A function of torch.distributed, or one of the operators behind its functional collectives (DTensor's)."""
    if type(func) is FunctionType:
        return func.__module__.startswith("torch.distributed.")
    return type(func).__module__ == "torch._ops" and str(func).startswith(("_c10d_functional", "c10d"))


def written_arguments(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Arguments that a package's own operator (torch.ops.package.name) declares as written; [] for torch's
    functions."""
    overload = getattr(func, "default", func)  # for a packet, the overload that packages define
    schema = getattr(overload, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    values = {**{each.name: value for each, value in zip(schema.arguments, args, strict=False)}, **kwargs}
    written = (each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write)
    return [values[name] for name in written if name in values]
