"""Convolutions by cuDNN: copies into its layout, and its workspaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ....protocol.native_log import CONVOLUTION, CUDNN_DATA_TYPES, DIRECTIONS, WORKSPACE_SOURCES
from ....rules.convolution import Convolution, Direction, convolved, is_channels_last, spread
from ..cudnn import Layer, Placement
from .registration import Tensor, aten, extra_memory, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


class _How(NamedTuple):
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    is_benchmarked: bool
    is_deterministic: bool
    allows_tf32: bool


# ---- operators -------------------------------------------------------------------------------------------------------


@kernel("cudnn_convolution")
def convolution(
    device: PythonCuda, x: Tensor, w: Tensor, padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
    groups: int, *flags: bool,
) -> Tensor:  # fmt: skip
    how = _How(stride, padding, dilation, groups, *flags)
    shape = convolved(x.shape, w.shape, stride=stride, padding=padding, dilation=dilation)
    return _forward(device, x, w, shape, how)


@kernel("cudnn_convolution_transpose")
def transposed_convolution(
    device: PythonCuda, x: Tensor, w: Tensor, padding: Sequence[int], output_padding: Sequence[int],
    stride: Sequence[int], dilation: Sequence[int], groups: int, *flags: bool,
) -> Tensor:  # fmt: skip
    how = _How(stride, padding, dilation, groups, *flags)
    shape = spread(
        x.shape, w.shape, stride=stride, padding=padding, dilation=dilation, output_padding=output_padding,
        groups=groups,
    )  # fmt: skip
    return _backward_input(device, shape, x, w, how)


@kernel("convolution_backward")
def convolution_backward(
    device: PythonCuda, grad: Tensor, x: Tensor, w: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], is_transposed: bool, output_padding: Sequence[int], groups: int,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    """at::native::convolution_backward: one dimension is computed as two."""
    given = grad, x, w, bias_sizes, stride, padding, dilation, is_transposed, output_padding, groups
    backend = torch._C._select_conv_backend(x, w, None, *given[4:], bias_sizes).name
    is_flat = w.dim() == 3
    if is_flat:
        grad, x, w = (each.unsqueeze(2) for each in (grad, x, w))
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    if backend in ("Cudnn", "CudnnTranspose"):
        how = _How(stride, padding, dilation, groups, *_flags_now())
        results = _backward_by_cudnn(device, grad, x, w, how, is_transposed, mask)
    elif backend == "CudaDepthwise2d":
        results = _depthwise_backward(grad, x, w, mask)
    elif backend == "CudaDepthwise3d":
        return _depthwise_backward_3d(grad, x, w, mask)
    else:
        return device.dispatch.general(aten.convolution_backward.default, (*given, mask), {})
    if is_flat:
        results = [None if each is None else each.squeeze(2) for each in results]
    return *results, _grad_of_bias(grad) if mask[2] else None


@kernel("_conv_depthwise2d", "conv_depthwise3d")
def depthwise_convolution(
    device: PythonCuda, x: Tensor, w: Tensor, size: Sequence[int], bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    shape = convolved(x.shape, w.shape, stride=stride, padding=padding, dilation=dilation)
    x, w = x.contiguous(), w.contiguous()
    return torch.empty(shape, dtype=x.dtype, device=x.device)


@kernel("im2col")
def unfold(
    device: PythonCuda, x: Tensor, size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:  # fmt: skip
    *batch, channels = x.shape[:-2]
    image, filters = (1, 1, *x.shape[-2:]), (1, 1, *size)
    _, _, *extents = convolved(image, filters, stride=stride, padding=padding, dilation=dilation)
    return _begun_as_input(x, [*batch, channels * prod(size), prod(extents)])


@kernel("col2im")
def fold(device: PythonCuda, x: Tensor, output_size: Sequence[int], size: Sequence[int], *args: Any) -> Tensor:
    *batch, channels, _ = x.shape
    return _begun_as_input(x, [*batch, channels // prod(size), *output_size])


@extra_memory("max_pool2d_with_indices_backward")
def pool_backward(device: PythonCuda, grad: Tensor, x: Tensor, *args: Any) -> None:
    """The gradient is copied into the layout of the input."""
    if not grad.is_contiguous(memory_format=layout_of(x)):
        with device.rule("copy of an operand"):
            torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)


@extra_memory("reflection_pad2d", "reflection_pad2d_backward")
def reflection_pad(device: PythonCuda, x: Tensor, *args: Any) -> None:
    """ReflectionPad.cu, forward and backward: the input is made contiguous."""
    device.contiguous_copies(x)


# ---- by cuDNN --------------------------------------------------------------------------------------------------------


def _forward(device: PythonCuda, x: Tensor, w: Tensor, shape: Sequence[int], how: _How) -> Tensor:
    layout = layout_of(x, w)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
    w, x = w.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
    _run(device, "forward", x, out, w, how, layout)
    return out


def _backward_input(device: PythonCuda, shape: Sequence[int], grad: Tensor, w: Tensor, how: _How) -> Tensor:
    layout = layout_of(grad, w)
    out = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
    w, grad = w.contiguous(memory_format=layout), grad.contiguous(memory_format=layout)
    _run(device, "data", out, grad, w, how, layout)
    return out


def _backward_weight(device: PythonCuda, shape: Sequence[int], grad: Tensor, x: Tensor, how: _How) -> Tensor:
    layout = layout_of(x, grad)
    grad, x = grad.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
    out = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
    _run(device, "weights", x, grad, out, how, layout)
    return out


def _backward_by_cudnn(
    device: PythonCuda, grad: Tensor, x: Tensor, w: Tensor, how: _How, is_transposed: bool, mask: Sequence[bool]
) -> list[Tensor | None]:
    layout = layout_of(x, w)
    x_there = x.contiguous(memory_format=layout) if mask[1] else x
    suggested = _suggested(x_there)
    grad_there = grad.contiguous(memory_format=suggested) if is_transposed else grad.to(memory_format=suggested)
    results = [None, None]
    if mask[0] and is_transposed:
        results[0] = _forward(device, grad_there, w, x.shape, how)
    elif mask[0]:
        results[0] = _backward_input(device, x.shape, grad_there, w, how)
    if mask[1]:
        pair = (x_there, grad_there) if is_transposed else (grad_there, x_there)
        results[1] = _backward_weight(device, w.shape, *pair, how)
    return results


def _run(device: PythonCuda, direction: Direction, x: Tensor, y: Tensor, w: Tensor, how: _How, layout: Any) -> None:
    """run_single_conv of ATen/native/cudnn/Conv_v8.cpp; the workspace is freed afterwards."""
    if not (y if direction == "forward" else x if direction == "data" else w).numel():
        return
    device.load_library("cudnnCreate")
    layer = _layer(direction, x, y, w, how, is_last=layout is not torch.contiguous_format)
    chosen = device.chosen_plans
    if layer in chosen and _take(device, chosen[layer]):
        _log(device, layer, chosen[layer])
        return
    plans: Iterable[int] = device.workspaces.plans(layer, is_benchmarked=how.is_benchmarked)
    if how.is_benchmarked:
        plans = _tried(device, plans)
    for size in plans:
        if _take(device, size):
            chosen[layer] = size
            _log(device, layer, size)
            return
    raise RuntimeError("GET was unable to find an engine to execute this computation")


def _layer(direction: Direction, x: Tensor, y: Tensor, w: Tensor, how: _How, *, is_last: bool) -> Layer:
    computed = Convolution(
        direction=direction,
        x=tuple(x.shape),
        y=tuple(y.shape),
        w=tuple(w.shape),
        stride=tuple(how.stride),
        padding=tuple(how.padding),
        dilation=tuple(how.dilation),
        groups=how.groups,
        element_bytes=x.dtype.itemsize,
        is_channels_last=is_last,
    )
    return Layer(
        convolution=computed,
        dtype=str(x.dtype).removeprefix("torch."),
        x=_placement(x, is_last),
        y=_placement(y, is_last),
        w=_placement(w, is_last),
        is_deterministic=how.is_deterministic,
        allows_tf32=how.allows_tf32,
    )


def _log(device: PythonCuda, layer: Layer, workspace_bytes: int) -> None:
    computed = layer.convolution
    is_asked = device.workspaces.cudnn is not None
    device.library(
        "cudnnBackendExecute",
        CONVOLUTION,
        workspace_bytes=workspace_bytes,
        x_bytes=computed.x_bytes,
        y_bytes=computed.y_bytes,
        w_bytes=computed.w_bytes,
        multiply_adds=computed.multiply_adds,
        direction=DIRECTIONS.index(computed.direction),
        workspace_source=WORKSPACE_SOURCES.index("asked" if is_asked else "rule"),
        data_type=CUDNN_DATA_TYPES[layer.dtype],
    )


def _take(device: PythonCuda, size: int, rule: str = "cuDNN workspace") -> bool:
    """Allocate and free a workspace; false if it does not fit."""
    if not size:
        return True
    try:
        with device.rule(rule):
            device.buffer(size)
    except torch.OutOfMemoryError:
        return False
    return True


def _tried(device: PythonCuda, plans: Iterable[int]) -> list[int]:
    """cudnn.benchmark: all plans share the largest workspace that fits, then the cache is emptied. The fastest plan is
    unknown here; like the virtual GPU, where all take equally long, this takes the first."""
    allocator = device.memory.allocator
    cached = (size for each in allocator.segments() for size, is_allocated in each.blocks if not is_allocated)
    room = max([allocator.device.capacity_bytes - allocator.device.used_bytes, *cached])
    fitting = [size for size in plans if size <= room]
    largest = max(fitting, default=0)
    while not _take(device, largest, "cuDNN trying engines"):
        largest //= 2
    device.memory.empty_cache()
    return [size for size in fitting if size <= largest][:1]


def _flags_now() -> tuple[bool, bool, bool]:
    """Flags of at::globalContext(), which torch passes to the forward kernels as arguments."""
    binding = torch._C
    is_deterministic = binding._get_cudnn_deterministic() or binding._get_deterministic_algorithms()
    if hasattr(binding, "_get_fp32_precision_getter"):
        allows_tf32 = binding._get_fp32_precision_getter("cuda", "conv") == "tf32"
    else:
        allows_tf32 = binding._get_cudnn_allow_tf32()
    return binding._get_cudnn_benchmark(), is_deterministic, allows_tf32


# ---- by PyTorch's own kernels ----------------------------------------------------------------------------------------


def _depthwise_backward(grad: Tensor, x: Tensor, w: Tensor, mask: Sequence[bool]) -> list[Tensor | None]:
    """DepthwiseConv2d.cu, which supports one layout."""
    grad, x, w = grad.contiguous(), x.contiguous(), w.contiguous()
    grad_w = torch.empty_like(w) if mask[1] else None
    return [torch.empty_like(x) if mask[0] else None, grad_w]


def _depthwise_backward_3d(grad: Tensor, x: Tensor, w: Tensor, mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """DepthwiseConv3d.cu."""
    layout = torch.contiguous_format
    wanted = zip((x, w), mask, strict=False)
    results = [torch.empty_like(each, memory_format=layout) if is_wanted else None for each, is_wanted in wanted]
    copies = grad.contiguous(), x.contiguous(), w.contiguous()
    results.append(_grad_of_bias(grad) if mask[2] else None)
    del copies
    return tuple(results)


def _grad_of_bias(grad: Tensor) -> Tensor:
    return grad.sum([0, *range(2, grad.dim())])


def _begun_as_input(x: Tensor, shape: list[int]) -> Tensor:
    """Im2Col.cu, Col2Im.cu: the result starts out as large as the input, which is made contiguous. Not by `resize_`,
    which exposes the storage to Python (memory.py)."""
    out = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
    copy = x.contiguous()
    if prod(shape) > x.numel():
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
    else:
        out = out[: prod(shape)].view(shape)
    del copy
    return out


# ---- layouts ---------------------------------------------------------------------------------------------------------


def layout_of(*tensors: Tensor) -> Any:
    """cudnn_conv_suggest_memory_format: channels last if one of them is, except in double precision."""
    if any(each.dtype is torch.float64 for each in tensors):
        return torch.contiguous_format
    suggested = (_suggested(each) for each in tensors)
    return next((each for each in suggested if each is not torch.contiguous_format), torch.contiguous_format)


def _suggested(tensor: Tensor) -> Any:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout if layout is not None and is_channels_last(tensor.shape, tensor.stride()) else torch.contiguous_format


def _placement(tensor: Tensor, is_last: bool) -> Placement:
    """Strides as fixSizeOneDimStride (ATen/cudnn/Descriptors.cpp) sets them for sizes of 1."""
    sizes, strides = tuple(tensor.shape), list(tensor.stride())
    inner = range(len(sizes) - 1, 1, -1)
    packed = 1
    for dimension in (1, *inner, 0) if is_last else (*inner, 1, 0):
        if sizes[dimension] == 1:
            strides[dimension] = packed
        packed *= sizes[dimension]
    address = tensor.data_ptr()
    return Placement(tuple(strides), min(address & -address, 32))
