"""Operators that sort, count and gather: what decides their results' sizes, and what they sort in."""

from __future__ import annotations

from typing import Any

_PLAIN_EMBEDDING = 3072
_SORT_BYTES = 6655
"""Beside the second copy of keys and values, of a radix sort (seen: 4,096 of them)."""


def add(device: Any) -> None:
    torch, values = device.torch, device.values
    aten = torch.ops.aten
    functions, kernels, besides = device.functions, device.kernels, device.besides

    def temporary(num_elements: int, dtype: Any) -> Any:
        return device.memory.empty((num_elements,), (1,), dtype)

    def embedding_dense_backward(grad: Any, indices: Any, num_weights: int, padding: int, by_frequency: bool) -> Any:
        """at::native::embedding_dense_backward_cuda and embedding_backward_cuda_kernel."""
        num, width = indices.numel(), grad.size(-1)
        if num <= _PLAIN_EMBEDDING and not by_frequency:
            return torch.zeros((num_weights, width), dtype=grad.dtype, device=grad.device)
        with device.rule("sorted indices"):
            kind = indices.dtype
            sorted_indices, order = temporary(num, kind), temporary(num, kind)
            numbers = temporary(num, kind)
            scratch = temporary(2 * num * kind.itemsize + _SORT_BYTES, torch.uint8)
            del numbers, scratch
        result = torch.zeros((num_weights, width), dtype=grad.dtype, device=grad.device)
        with device.rule("partial sums"):
            num_segments = min(num, num_weights)
            offsets = temporary(num, kind)
            per_segment, per_segment_offset = temporary(num_segments, kind), temporary(num_segments, kind)
            partial_segments = num // 10 + num_segments
            partial_offsets = temporary(partial_segments, kind)
            sums = temporary(partial_segments * width, torch.float32)
            del offsets, per_segment, per_segment_offset, partial_offsets, sums
        del sorted_indices, order
        return result

    def nonzero(tensor: Any) -> Any:
        count = device.unknown.count(tensor)
        result = torch.empty((tensor.dim(), count), dtype=torch.int64, device=tensor.device).t()
        if values.is_known(tensor) and values.may_be_known(result):
            values.on_host(result).copy_(values.on_host(tensor).nonzero())
        return result

    def masked_select(tensor: Any, mask: Any) -> Any:
        mask = mask.expand(torch.broadcast_shapes(tensor.shape, mask.shape))
        tensor = tensor.expand(mask.shape)
        count = device.unknown.count(mask)
        result = torch.empty((count,), dtype=tensor.dtype, device=tensor.device)
        if values.is_known(tensor) and values.is_known(mask) and values.may_be_known(result):
            values.on_host(result).copy_(values.on_host(tensor).masked_select(values.on_host(mask)))
        return result

    def size_is_data(operator: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            if all(not each.is_cuda or values.is_known(each) for each in tensors):
                result = values.compute(operator, args, kwargs)
                return to_device(result)
            assumed = [device.unknown.assume(each) if each.is_cuda else each for each in tensors]
            replaced = iter(assumed)
            host_args = [next(replaced) if isinstance(each, torch.Tensor) else each for each in args]
            return to_device(operator(*host_args, **kwargs))

        functions[operator] = call

    def to_device(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return result.to("cuda")
        return type(result)(to_device(each) for each in result) if isinstance(result, (tuple, list)) else result

    def index_put_(target: Any, indices: Any, source: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
        indices = expanded(indices)
        if accumulate:
            num = 1
            for each in torch.broadcast_shapes(*[index.shape for index in indices if index is not None]):
                num *= each
            with device.rule("sorted indices"):
                linear, order, sorted_indices = (temporary(num, torch.int64) for _ in range(3))
                scratch = temporary(2 * num, torch.int64)
                del linear, order, sorted_indices, scratch
        return target

    def expanded(indices: Any) -> list[Any]:
        """A mask stands for the places where it is true."""
        found: list[Any] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                found.extend(index.nonzero().unbind(1))
            else:
                found.append(index)
        return found

    def index(tensor: Any, indices: Any) -> Any:
        indices = [
            each.to(tensor.device) if each is not None and not each.is_cuda else each for each in expanded(indices)
        ]
        like = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        meta = [None if each is None else torch.empty(each.shape, dtype=torch.int64, device="meta") for each in indices]
        shape = aten.index.Tensor(like, meta)
        return device.memory.empty(tuple(shape.size()), tuple(shape.stride()), tensor.dtype)

    def sort(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with device.rule("sort"):
            return temporary(2 * tensor.numel(), torch.int64) if tensor.numel() > 4096 else None

    kernels[aten.embedding_dense_backward.default] = embedding_dense_backward
    functions[aten.nonzero.default] = nonzero
    functions[aten.masked_select.default] = masked_select
    kernels[aten._index_put_impl_.default] = index_put_
    kernels[aten.index_put_.default] = index_put_
    kernels[aten.index.Tensor] = index
    besides[aten.sort.default] = besides[aten.sort.stable] = sort
    for name in ("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "bincount"):
        size_is_data(getattr(aten, name).default)
    size_is_data(aten.repeat_interleave.Tensor)
