"""Reductions: thread blocks that share a result exchange partial results through a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....rules.kernels import reduction_buffer
from .registration import Tensor, extra_memory, function, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


# ---- reductions ------------------------------------------------------------------------------------------------------


@extra_memory("sum.dim_IntList", "nansum", "prod", "prod.dim_int")
def sum_(device: PythonCuda, x: Tensor, dims: Any = None, *args: Any, dtype: Any = None) -> None:
    if dtype is None and not (x.dtype.is_floating_point or x.dtype.is_complex):
        dtype = torch.int64
    mean(device, x, dims, dtype=dtype)


@extra_memory("mean.dim")
def mean(device: PythonCuda, x: Tensor, dims: Any = None, *args: Any, dtype: Any = None) -> None:
    copy = _copy_in_type(device, x, dtype)
    x = x if copy is None else copy
    _take_buffer(device, x, dims, 8 if x.dtype is torch.float64 or not x.dtype.is_floating_point else 4)


@extra_memory("linalg_vector_norm")
def vector_norm(device: PythonCuda, x: Tensor, order: Any = 2, dims: Any = None, *args: Any, dtype: Any = None) -> None:
    mean(device, x, dims, dtype=dtype)


@extra_memory("amax", "amin", "max", "min")
def extreme(device: PythonCuda, x: Tensor, dims: Any = None, *args: Any) -> None:
    _take_buffer(device, x, dims, int(x.dtype.itemsize))


@extra_memory("argmax", "argmin")
def place_of_extreme(device: PythonCuda, x: Tensor, dims: Any = None, *args: Any) -> None:
    """The largest value so far, and its index."""
    _take_buffer(device, x, dims, 16)


@extra_memory("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def moments(device: PythonCuda, x: Tensor, dims: Any = None, *args: Any, **kwargs: Any) -> None:
    """Mean, sum of squares and two counts."""
    _take_buffer(device, x, dims, 32 if x.dtype is torch.float64 else 16)


@function("count_nonzero.dim_IntList")
def count_nonzero(device: PythonCuda, x: Tensor, dims: Any) -> Tensor:
    return (x != 0).sum(dims)


@kernel("median")
def median(device: PythonCuda, x: Tensor) -> Tensor:
    """Sorting.cpp, median_impl: sorts all elements; the last is the result if it is NaN."""
    if not x.numel():
        return torch.empty((), dtype=x.dtype, device=x.device)
    ordered = x.flatten().sort()[0]
    return torch.where(ordered[-1].isnan(), ordered[-1], ordered[(x.numel() - 1) // 2])


@extra_memory("median.dim_values")
def median_of_dimension(device: PythonCuda, x: Tensor, dim: int, keepdim: bool = False, **results: Tensor) -> None:
    """Sorting.cpp, median_with_indices_impl: copies an operand that is not contiguous."""
    if x.dim() and not x.is_contiguous():
        with device.rule("copy of an operand"):
            copy = device.buffer(x.numel(), x.dtype)
            del copy


def _copy_in_type(device: PythonCuda, x: Tensor, dtype: Any) -> Tensor | None:
    """ReduceOps.cpp, make_reduction: a copy in the result's type, unless the kernel converts."""
    if not x.numel() or dtype in (None, x.dtype):
        return None
    if dtype is torch.float32 and x.dtype in (torch.float16, torch.bfloat16):
        return None
    with device.rule("copy in the type of the sum"):
        return torch.empty_like(x, dtype=dtype)


def _take_buffer(device: PythonCuda, x: Tensor, dims: Any, bytes_per_result: int) -> None:
    if not x.numel():
        return
    sizes = reduction_buffer(x.size(), x.stride(), dims, bytes_per_result, device.num_sms, device.threads_per_sm)
    if sizes is not None:
        with device.rule("partial sums"):
            buffers = [device.buffer(size) for size in sizes]
            del buffers


# ---- losses ----------------------------------------------------------------------------------------------------------


@kernel("mse_loss", "smooth_l1_loss", takes_operator=True)
def loss(device: PythonCuda, operator: Any, x: Tensor, target: Tensor, reduction: int = 1, *args: Any) -> Tensor:
    """Loss.cpp: the result is first allocated in the size of the terms, before them, and its block stays that large."""
    if not reduction:
        return device.dispatch.general(operator, (x, target, reduction, *args), {})
    shape, dtype = torch.broadcast_shapes(x.shape, target.shape), torch.result_type(x, target)
    out, terms = (torch.empty(shape, dtype=dtype, device=x.device) for _ in range(2))
    mean(device, terms)
    return out.flatten()[:1].view(()) if out.numel() else torch.empty((), dtype=dtype, device=x.device)


@kernel("huber_loss")
def huber_loss(device: PythonCuda, x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """Here the terms are allocated first, and freed."""
    shape = torch.broadcast_shapes(x.shape, target.shape)
    terms = torch.empty(shape, dtype=torch.result_type(x, target), device=x.device)
    if not reduction:
        return terms
    return terms.mean() if reduction == 1 else terms.sum()


@kernel("binary_cross_entropy")
def binary_cross_entropy(
    device: PythonCuda, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Loss.cu: the terms become the result, whose block keeps their size."""
    terms = torch.empty_like(x)
    if not reduction or not terms.numel():
        return terms if not reduction else torch.empty((), dtype=x.dtype, device=x.device)
    terms.mean()
    return terms.flatten()[:1].view(())
