"""Operators that sort, count and gather: sizes of their results, and their sort buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ....rules import kernels as rules
from .registration import Tensor, aten, extra_memory, function, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


# ---- sorting ---------------------------------------------------------------------------------------------------------


@extra_memory("sort")
def sort(device: PythonCuda, x: Tensor, dim: int = -1, descending: bool = False) -> None:
    stable_sort(device, x, dim=dim)


@extra_memory("sort.stable")
def stable_sort(
    device: PythonCuda, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> None:
    if not x.dim() or not x.numel():
        return
    length = x.size(dim)
    with device.rule("sort"):
        is_in_rows = x.stride(dim) == 1
        sizes = rules.sort_bytes(x.numel() // length, length, x.dtype.itemsize, is_in_rows=is_in_rows)
        taken = [device.buffer(size) for size in sizes]
        del taken


@kernel("embedding_dense_backward")
def embedding_dense_backward(
    device: PythonCuda, grad: Tensor, indices: Tensor, num_weights: int, padding: int, by_frequency: bool
) -> Tensor:
    """at::native::embedding_dense_backward_cuda and embedding_backward_cuda_kernel."""
    num, width = indices.numel(), grad.size(-1)
    if num <= rules.FEW_INDICES and not by_frequency:
        return torch.zeros((num_weights, width), dtype=grad.dtype, device=grad.device)
    taken = rules.embedding_gradient(num, width, num_weights, indices.dtype.itemsize)
    with device.rule("sorted indices"):
        sorted_indices = [device.buffer(size) for size in taken.indices]
        sorting = [device.buffer(size) for size in taken.sorting]
        del sorting
    result = torch.zeros((num_weights, width), dtype=grad.dtype, device=grad.device)
    with device.rule("partial sums"):
        sums = [device.buffer(size) for size in taken.sums]
        del sums
    del sorted_indices
    return result


@kernel("_index_put_impl_", "index_put_")
def index_put_(
    device: PythonCuda, target: Tensor, indices: Any, source: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    indices = _places(indices)
    if accumulate:
        num = prod(torch.broadcast_shapes(*[index.shape for index in indices if index is not None]))
        pairs = zip(target.shape, indices, strict=False)
        num_rows = prod(extent for extent, index in pairs if index is not None)
        # One value for all places, or a gradient expanded from a scalar.
        is_plain = source.is_contiguous() and source.numel() >= num
        copy = None if is_plain else _copy_of_values(device, target, indices, num)
        with device.rule("sorted indices"):
            linear, sorted_indices, order, numbers = (device.buffer(num, torch.int64) for _ in range(4))
            scratch = device.buffer(rules.sorted_indices_bytes(num, num_rows, 8))
            del linear, sorted_indices, order, numbers, scratch, copy
    return target


def _copy_of_values(device: PythonCuda, target: Tensor, indices: Sequence[Any], num: int) -> Tensor:
    """One value for each place and each element of the dimensions without an index."""
    pairs = zip(target.shape, [*indices, *[None] * target.dim()], strict=False)
    num *= prod(extent for extent, index in pairs if index is None)
    with device.rule("copy of an operand"):
        return device.buffer(num, target.dtype)


@extra_memory("multinomial")
def multinomial(device: PythonCuda, weights: Tensor, count: int, replacement: bool = False, **kwargs: Any) -> None:
    """Random numbers like the weights; with replacement also the weights as a distribution, and its sums."""
    with device.rule("random numbers"):
        copies = rules.multinomial_copies(count, with_replacement=replacement)
        taken = [torch.empty_like(weights) for _ in range(copies)]
        del taken


# ---- indices ---------------------------------------------------------------------------------------------------------


@kernel("index.Tensor")
def index(device: PythonCuda, x: Tensor, indices: Any) -> Tensor:
    places = [each.to(x.device) if each is not None and not each.is_cuda else each for each in _places(indices)]
    like = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")
    meta = [None if each is None else torch.empty(each.shape, dtype=torch.int64, device="meta") for each in places]
    shape = aten.index.Tensor(like, meta)
    return device.memory.empty(tuple(shape.size()), tuple(shape.stride()), x.dtype)


def _places(indices: Any) -> list[Any]:
    """Indices, with each mask replaced by the places where it is true."""
    found: list[Any] = []
    for each in indices:
        if each is not None and each.dtype in (torch.bool, torch.uint8):
            found.extend(each.nonzero().unbind(1))
        else:
            found.append(each)
    return found


@function("nonzero")
def nonzero(device: PythonCuda, x: Tensor) -> Tensor:
    values = device.values
    count = device.unknown.count(x)
    result = torch.empty((x.dim(), count), dtype=torch.int64, device=x.device).t()
    if values.is_known(x) and values.may_be_known(result):
        values.write(result, values.on_host(x).nonzero())
    return result


@function("masked_select")
def masked_select(device: PythonCuda, x: Tensor, mask: Tensor) -> Tensor:
    """Indexing by the places where the mask is true."""
    values = device.values
    mask = mask.expand(torch.broadcast_shapes(x.shape, mask.shape))
    x = x.expand(mask.shape)
    count = device.unknown.count(mask)
    with device.rule("places of the mask"):
        places = device.buffer(count * max(mask.dim(), 1), torch.int64)
    result = torch.empty((count,), dtype=x.dtype, device=x.device)
    if values.is_known(x) and values.is_known(mask) and values.may_be_known(result):
        values.write(result, values.on_host(x).masked_select(values.on_host(mask)))
    del places
    return result


@kernel("masked_scatter_")
def masked_scatter_(device: PythonCuda, target: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    with device.rule("places of the mask"):
        places = device.buffer(target.numel(), torch.int64)
        copy = None if source.is_contiguous() else device.buffer(source.numel(), source.dtype)
        del places, copy
    return target


# ---- sizes that depend on values -------------------------------------------------------------------------------------


@function("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", takes_operator=True)
def unique(device: PythonCuda, operator: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Sorts the elements together with their positions."""
    num = x.numel()
    with device.rule("sort"):
        keys, order, places = (device.buffer(num, dtype) for dtype in (x.dtype, torch.int64, torch.int64))
        scratch = device.buffer(rules.radix_sort_bytes(num, x.dtype.itemsize, 8))
        del keys, order, places, scratch
    return on_host(device, operator, x, *args, **kwargs)


@function("bincount", "repeat_interleave.Tensor", takes_operator=True)
def on_host(device: PythonCuda, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Computed on the host, with assumed contents if unknown."""
    values = device.values
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if all(not each.is_cuda or values.is_known(each) for each in tensors):
        return _to_card(values.compute(operator, args, kwargs))
    # What bincount calls `minlength`: the script expects no other values.
    least = int(kwargs.get("minlength", args[2] if len(args) > 2 else 0)) if "bincount" in str(operator) else 0
    host_args = [
        device.unknown.assume(each, most=least) if isinstance(each, torch.Tensor) and each.is_cuda else each
        for each in args
    ]
    return _to_card(operator(*host_args, **kwargs))


def _to_card(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.to("cuda")
    return type(result)(_to_card(each) for each in result) if isinstance(result, (tuple, list)) else result
