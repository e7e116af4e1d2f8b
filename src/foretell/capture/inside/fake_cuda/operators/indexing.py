"""Operators that sort, count and gather: what decides their results' sizes, and what they sort in."""

from __future__ import annotations

from typing import Any

from ..recording import foretell_module

_PLAIN_EMBEDDING = 3072


def add(device: Any) -> None:
    torch, values = device.torch, device.values
    aten = torch.ops.aten
    functions, kernels, besides = device.functions, device.kernels, device.besides
    rules = foretell_module("overhead.kernels")

    def temporary(num_elements: int, dtype: Any) -> Any:
        return device.memory.empty((num_elements,), (1,), dtype)

    def sort_scratch(num: int, index_bytes: int, num_rows: int) -> Any:
        """Indices and their order, sorted by as many bits as the rows need."""
        num_bits = max(1, (num_rows - 1).bit_length())
        return temporary(rules.radix_sort_bytes(num, index_bytes, index_bytes, num_bits), torch.uint8)

    def embedding_dense_backward(grad: Any, indices: Any, num_weights: int, padding: int, by_frequency: bool) -> Any:
        """at::native::embedding_dense_backward_cuda and embedding_backward_cuda_kernel."""
        num, width = indices.numel(), grad.size(-1)
        if num <= _PLAIN_EMBEDDING and not by_frequency:
            return torch.zeros((num_weights, width), dtype=grad.dtype, device=grad.device)
        with device.rule("sorted indices"):
            kind = indices.dtype
            sorted_indices, order = temporary(num, kind), temporary(num, kind)
            numbers = temporary(num, kind)
            scratch = sort_scratch(num, kind.itemsize, num_weights)
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
        """An index by the mask, and so by its places."""
        mask = mask.expand(torch.broadcast_shapes(tensor.shape, mask.shape))
        tensor = tensor.expand(mask.shape)
        count = device.unknown.count(mask)
        with device.rule("places of the mask"):
            places = temporary(count * max(mask.dim(), 1), torch.int64)
        result = torch.empty((count,), dtype=tensor.dtype, device=tensor.device)
        if values.is_known(tensor) and values.is_known(mask) and values.may_be_known(result):
            values.on_host(result).copy_(values.on_host(tensor).masked_select(values.on_host(mask)))
        del places
        return result

    def size_is_data(operator: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            if "unique" in operator.name():
                sorted_with_places(tensors[0])
            if all(not each.is_cuda or values.is_known(each) for each in tensors):
                result = values.compute(operator, args, kwargs)
                return to_device(result)
            assumed = [device.unknown.assume(each) if each.is_cuda else each for each in tensors]
            replaced = iter(assumed)
            host_args = [next(replaced) if isinstance(each, torch.Tensor) else each for each in args]
            return to_device(operator(*host_args, **kwargs))

        functions[operator] = call

    def sorted_with_places(tensor: Any) -> None:
        num, key_bytes = tensor.numel(), tensor.dtype.itemsize
        with device.rule("sort"):
            keys, order, places = temporary(num, tensor.dtype), temporary(num, torch.int64), temporary(num, torch.int64)
            scratch = temporary(rules.radix_sort_bytes(num, key_bytes, 8), torch.uint8)
            del keys, order, places, scratch

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
            num_rows = 1
            for extent, index in zip(target.shape, indices, strict=False):
                num_rows *= 1 if index is None else extent
            # A value for all of them, or a gradient that one number was expanded to.
            copy = None if source.is_contiguous() and source.numel() >= num else values_of(target, indices, num)
            with device.rule("sorted indices"):
                linear, sorted_indices, order, numbers = (temporary(num, torch.int64) for _ in range(4))
                scratch = sort_scratch(num, 8, num_rows)
                del linear, sorted_indices, order, numbers, scratch, copy
        return target

    def values_of(target: Any, indices: Any, num: int) -> Any:
        with device.rule("copy of an operand"):
            for extent, index in zip(target.shape, [*indices, *[None] * target.dim()], strict=False):
                num *= extent if index is None else 1
            return temporary(num, target.dtype)

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

    def sort(tensor: Any, dim: int = -1) -> None:
        if not tensor.dim() or not tensor.numel():
            return
        length = tensor.size(dim)
        with device.rule("sort"):
            kept = []
            if tensor.stride(dim) != 1 and length > rules.SMALL_SORT:  # sorted in rows, and copied back
                kept = [torch.empty_like(tensor), torch.empty_like(tensor), temporary(tensor.numel(), torch.int64)]
            sizes = rules.sort_bytes(tensor.numel() // length, length, tensor.dtype.itemsize)
            kept += [temporary(size, torch.uint8) for size in sizes]
            del kept

    def multinomial(weights: Any, count: int, replacement: bool = False, **kwargs: Any) -> None:
        """Random numbers like the weights; with replacement the weights as a distribution, and its sums."""
        with device.rule("random numbers"):
            kept = [torch.empty_like(weights) for _ in range(2 if replacement and count > 1 else 1)]
            del kept

    def masked_scatter_(target: Any, mask: Any, source: Any) -> Any:
        with device.rule("places of the mask"):
            places = temporary(target.numel(), torch.int64)
            copy = None if source.is_contiguous() else temporary(source.numel(), source.dtype)
            del places, copy
        return target

    kernels[aten.embedding_dense_backward.default] = embedding_dense_backward
    functions[aten.nonzero.default] = nonzero
    functions[aten.masked_select.default] = masked_select
    kernels[aten._index_put_impl_.default] = index_put_
    kernels[aten.index_put_.default] = index_put_
    kernels[aten.index.Tensor] = index
    besides[aten.sort.default] = lambda tensor, dim=-1, descending=False: sort(tensor, dim)
    besides[aten.sort.stable] = lambda tensor, *, stable=None, dim=-1, descending=False: sort(tensor, dim)
    besides[aten.multinomial.default] = multinomial
    kernels[aten.masked_scatter_.default] = masked_scatter_
    for name in ("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "bincount"):
        size_is_data(getattr(aten, name).default)
    size_is_data(aten.repeat_interleave.Tensor)
