"""Making, copying and reading tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..memory import address_of
from .registration import Tensor, aten, function, torch

if TYPE_CHECKING:
    from ..device import PythonCuda

_ON_CPU: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


# ---- copies ----------------------------------------------------------------------------------------------------------


@function("copy_")
def copy_(device: PythonCuda, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """at::native::copy_kernel_cuda: between host and card, only dense pieces of the same type and layout are
    transferred."""
    if target is source or target.numel() == 0:
        return target
    if source.size() != target.size():
        source = source.expand_as(target)
    if target.is_cuda and source.is_cuda:
        _copy_on_card(device, target, source)
    elif _is_one_piece(target, source):
        _transfer(device, target, source, non_blocking)
    else:
        _transfer_in_pieces(device, target, source, non_blocking)
    return target


def _copy_on_card(device: PythonCuda, target: Tensor, source: Tensor) -> None:
    values = device.values
    if values.is_known(source) and values.may_be_known(target):
        values.write(target, values.on_host(source))
    elif values.is_known_in_part(source) and values.may_be_known(target):
        values.write(target, values.on_host(source), values.known_elements(source))
    else:
        values.forget(target)


def _transfer_in_pieces(device: PythonCuda, target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Conversions happen on the host, unless the copy is non-blocking."""
    converts_at_source = source.is_cuda == bool(non_blocking)
    there = target
    if converts_at_source:
        if not target.is_contiguous():
            there = torch.empty_like(target, memory_format=torch.contiguous_format)
        piece = source.to(target.dtype).contiguous()
    else:
        if not target.is_contiguous() or target.dtype != source.dtype:
            there = torch.empty_like(target, dtype=source.dtype, memory_format=torch.contiguous_format)
        piece = source.contiguous()
    _transfer(device, there, piece, non_blocking)
    if there is not target:
        target.copy_(there, non_blocking)


def _transfer(device: PythonCuda, target: Tensor, source: Tensor, non_blocking: bool) -> None:
    """Transfer between host and card. The host waits for the copy's stream, unless told not to."""
    values = device.values
    if target.is_cuda:
        is_weight = source.requires_grad or target.requires_grad
        if values.may_be_known(target) and (values.keeps_all or not is_weight):
            values.write(target, source)
        else:
            values.forget(target)
    elif values.is_known(source):
        target.copy_(values.on_host(source))
    else:
        device.unknown.read(source, into=target)
    if not non_blocking:
        _wait(device)


def _wait(device: PythonCuda) -> None:
    memory = device.memory
    memory.allocator.synchronize(memory.where.stream)


def _is_one_piece(target: Tensor, source: Tensor) -> bool:
    if target.dtype != source.dtype:
        return False
    if target.is_contiguous() and source.is_contiguous():
        return True
    return target.stride() == source.stride() and _is_dense(target)


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill a piece of memory without holes, in any order: channels-last, transposed."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


# ---- values read by the host -----------------------------------------------------------------------------------------


@function("_local_scalar_dense")
def item(device: PythonCuda, tensor: Tensor) -> Any:
    _wait(device)
    if device.values.is_known(tensor):
        return device.values.on_host(tensor).item()
    return device.unknown.item(tensor)


@function("equal")
def equal(device: PythonCuda, a: Tensor, b: Tensor) -> bool:
    if a.size() != b.size():
        return False
    values = device.values
    if all(not each.is_cuda or values.is_known(each) for each in (a, b)):
        return bool(values.compute(aten.equal.default, (a, b), {}))
    return bool(device.unknown.item(a > b))


@function("_nested_tensor_from_mask_left_aligned")
def stay_padded(device: PythonCuda, tokens: Tensor, mask: Tensor) -> bool:
    """nn.TransformerEncoder calls this before it packs the tokens for evaluation."""
    device.unknown.caveat_once("nn.TransformerEncoder evaluates padded tokens on the CPU engine; a GPU packs them")
    return False


# ---- storages --------------------------------------------------------------------------------------------------------


@function("resize_")
def resize_(device: PythonCuda, tensor: Tensor, size: Any, memory_format: Any = None) -> Tensor:
    like = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    device.dispatch.resize(tensor, tuple(size), like.stride())
    return tensor


@function("set_.source_Storage_storage_offset")
def set_storage(device: PythonCuda, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return aten.set_.source_Storage_storage_offset.redispatch(_ON_CPU, tensor, *args, **kwargs)


@function("set_.source_Storage")
def set_whole_storage(device: PythonCuda, tensor: Tensor, source: Any) -> Tensor:
    return set_storage(device, tensor, source, 0, [source.nbytes() // tensor.dtype.itemsize], [1])


@function("set_.source_Tensor")
def set_tensor(device: PythonCuda, tensor: Tensor, source: Tensor) -> Tensor:
    storage = source.untyped_storage()
    return set_storage(device, tensor, storage, source.storage_offset(), source.size(), source.stride())


@function("set_")
def set_nothing(device: PythonCuda, tensor: Tensor) -> Tensor:
    storage = device.memory.empty((0,), (1,), torch.uint8).untyped_storage()
    return set_storage(device, tensor, storage, 0, [0], [1])


@function("is_set_to")
def is_set_to(device: PythonCuda, a: Tensor, b: Tensor) -> bool:
    return bool(
        address_of(a) == address_of(b)
        and a.size() == b.size()
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
    )
