"""Making, copying and reading tensors."""

from __future__ import annotations

from typing import Any

from ..memory import address_of


def add(device: Any) -> None:
    torch, memory, values, dispatch = device.torch, device.memory, device.values, device.dispatch
    aten = torch.ops.aten
    functions = device.functions
    on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
        """at::native::copy_kernel_cuda: between host and card only whole, equal pieces of memory travel."""
        if target is source or target.numel() == 0:
            return target
        if target.is_cuda and source.is_cuda:
            if source.size() != target.size():
                source = source.expand_as(target)
            settle_copy(target, source)
            return target
        if source.size() != target.size():
            source = source.expand_as(target)
        if not _is_one_piece(target, source):
            # What has to be converted is converted on the host, unless the copy need not be waited for.
            converts_at_source = source.is_cuda == bool(non_blocking)
            if converts_at_source:
                there = target if target.is_contiguous() else torch.empty_like(target, memory_format=contiguous)
                piece = source.to(target.dtype).contiguous()
            else:
                is_same = target.is_contiguous() and target.dtype == source.dtype
                there = target
                if not is_same:
                    there = torch.empty_like(target, dtype=source.dtype, memory_format=contiguous)
                piece = source.contiguous()
            transfer(there, piece)
            wait(non_blocking)
            if there is not target:
                target.copy_(there, non_blocking)
            return target
        transfer(target, source)
        wait(non_blocking)
        return target

    def wait(non_blocking: bool) -> None:
        """The host waits for the stream of the copy, unless it is told not to."""
        if not non_blocking:
            memory.allocator.synchronize(memory.where.stream)

    contiguous = torch.contiguous_format

    def settle_copy(target: Any, source: Any) -> None:
        if values.is_known(source) and values.may_be_known(target):
            values.on_host(target).copy_(values.on_host(source))
        else:
            values.forget(target)

    def transfer(target: Any, source: Any) -> None:
        if target.is_cuda:
            is_weight = source.requires_grad or target.requires_grad
            if values.may_be_known(target) and (values.keeps_all or not is_weight):
                values.on_host(target).copy_(source)
            else:
                values.forget(target)
        elif values.is_known(source):
            target.copy_(values.on_host(source))
        else:
            device.unknown.read(source, into=target)

    def item(tensor: Any) -> Any:
        memory.allocator.synchronize(memory.where.stream)
        if values.is_known(tensor):
            return values.on_host(tensor).item()
        return device.unknown.item(tensor)

    def set_storage(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return aten.set_.source_Storage_storage_offset.redispatch(on_cpu, tensor, *args, **kwargs)

    def resize_(tensor: Any, size: Any, memory_format: Any = None) -> Any:
        like = torch.empty(size, device="meta", memory_format=memory_format or contiguous)
        dispatch.resize(tensor, tuple(size), like.stride())
        return tensor

    def set_source(tensor: Any, source: Any) -> Any:
        return set_storage(tensor, source, 0, [source.nbytes() // tensor.dtype.itemsize], [1])

    functions[aten.copy_.default] = copy_
    functions[aten._local_scalar_dense.default] = item
    functions[aten.set_.source_Storage_storage_offset] = set_storage
    functions[aten.set_.source_Storage] = set_source
    functions[aten.set_.source_Tensor] = lambda tensor, source: set_storage(
        tensor, source.untyped_storage(), source.storage_offset(), source.size(), source.stride()
    )
    functions[aten.set_.default] = lambda tensor: set_storage(
        tensor, memory.empty((0,), (1,), torch.uint8).untyped_storage(), 0, [0], [1]
    )
    functions[aten.resize_.default] = resize_
    functions[aten.is_set_to.default] = lambda a, b: (
        address_of(a) == address_of(b)
        and a.size() == b.size()
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
    )
    functions[aten.equal.default] = lambda a, b: _equal(device, a, b)
    functions[aten._nested_tensor_from_mask_left_aligned.default] = lambda tokens, mask: _stay_padded(device)


def _is_one_piece(target: Any, source: Any) -> bool:
    if target.dtype != source.dtype:
        return False
    if target.is_contiguous() and source.is_contiguous():
        return True
    return target.stride() == source.stride() and _is_dense(target)


def _is_dense(tensor: Any) -> bool:
    """Its elements fill a piece of memory without holes, in whatever order: channels-last, transposed."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def _stay_padded(device: Any) -> bool:
    """nn.TransformerEncoder asks this before it packs the tokens for an evaluation."""
    device.unknown.caveat_once("nn.TransformerEncoder evaluates padded tokens on the CPU engine; a card packs them")
    return False


def _equal(device: Any, a: Any, b: Any) -> bool:
    if a.size() != b.size():
        return False
    values = device.values
    if all(not each.is_cuda or values.is_known(each) for each in (a, b)):
        return bool(values.compute(device.torch.ops.aten.equal.default, (a, b), {}))
    return bool(device.unknown.item(a > b))
