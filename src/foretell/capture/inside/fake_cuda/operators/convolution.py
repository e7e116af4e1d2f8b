"""Convolutions by cuDNN: copies into the layout it works in, and its workspaces."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from ..cudnn import Layer, Shape


class _How(NamedTuple):
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    is_benchmarked: bool
    is_deterministic: bool
    allows_tf32: bool


def add(device: Any) -> None:
    torch, memory = device.torch, device.memory
    aten = torch.ops.aten
    kernels = device.kernels

    chosen: dict[Layer, int] = {}
    """The workspace of the plan that was taken, as torch keeps the plan."""

    def run(direction: str, x: Any, y: Any, w: Any, how: _How, layout: Any) -> None:
        """run_single_conv of ATen/native/cudnn/Conv_v8.cpp; what it takes is free again afterwards."""
        if not (y if direction == "forward" else x if direction == "data" else w).numel():
            return
        device.library("cudnnCreate")
        is_last = layout is not torch.contiguous_format
        layer = Layer(
            direction=direction,
            x=_shape(x, is_last),
            y=_shape(y, is_last),
            w=_shape(w, is_last),
            stride=tuple(how.stride),
            padding=tuple(how.padding),
            dilation=tuple(how.dilation),
            groups=how.groups,
            dtype=str(x.dtype).removeprefix("torch."),
            is_channels_last=is_last,
            is_deterministic=how.is_deterministic,
            allows_tf32=how.allows_tf32,
        )
        if layer in chosen and take(chosen[layer]):
            return
        plans: Iterable[int] = device.workspaces.plans(layer)
        if how.is_benchmarked:
            plans = tried(plans)
        for size in plans:
            if take(size):
                chosen[layer] = size
                name = "cudnnBackendExecute" + ("" if device.workspaces.cudnn is not None else " (by rule)")
                device.library(name, size, *[each.numel() * each.dtype.itemsize for each in (x, y, w)])
                return
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    def take(size: int, rule: str = "cuDNN workspace") -> bool:
        if not size:
            return True
        try:
            with device.rule(rule):
                memory.empty((size,), (1,), torch.uint8)
        except torch.OutOfMemoryError:
            return False
        return True

    def tried(plans: Iterable[int]) -> list[int]:
        """cudnn.benchmark: all plans share the largest workspace there is room for, then the cache is emptied. Which is
        the fastest nobody knows here; the virtual GPU, where all take the same time, takes the first."""
        allocator = memory.allocator
        cached = (size for each in allocator.segments() for size, is_allocated in each.blocks if not is_allocated)
        room = max([allocator.device.capacity_bytes - allocator.device.used_bytes, *cached])
        fitting = [size for size in plans if size <= room]
        largest = max(fitting, default=0)
        while not take(largest, "cuDNN trying engines"):
            largest //= 2
        memory.empty_cache()
        return [size for size in fitting if size <= largest][:1]

    def forward(x: Any, w: Any, shape: Any, how: _How) -> Any:
        layout = layout_of(torch, x, w)
        out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
        w, x = w.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
        run("forward", x, out, w, how, layout)
        return out

    def backward_input(shape: Any, grad: Any, w: Any, how: _How) -> Any:
        layout = layout_of(torch, grad, w)
        out = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
        w, grad = w.contiguous(memory_format=layout), grad.contiguous(memory_format=layout)
        run("data", out, grad, w, how, layout)
        return out

    def backward_weight(shape: Any, grad: Any, x: Any, how: _How) -> Any:
        layout = layout_of(torch, x, grad)
        grad, x = grad.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
        out = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
        run("weights", x, grad, out, how, layout)
        return out

    def convolution(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool) -> Any:
        how = _How(stride, padding, dilation, groups, *flags)
        return forward(x, w, convolved(x.shape, w.shape, padding, stride, dilation), how)

    def transposed(
        x: Any, w: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *flags: bool
    ) -> Any:
        how = _How(stride, padding, dilation, groups, *flags)
        return backward_input(spread(x.shape, w.shape, padding, output_padding, stride, dilation, groups), x, w, how)

    def convolution_backward(
        grad: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, is_transposed: bool,
        output_padding: Any, groups: int, mask: Any,
    ) -> Any:  # fmt: skip
        """at::native::convolution_backward: one dimension is done as two."""
        given = grad, x, w, bias_sizes, stride, padding, dilation, is_transposed, output_padding, groups
        backend = torch._C._select_conv_backend(x, w, None, *given[4:], bias_sizes).name
        is_flat = w.dim() == 3
        if is_flat:
            grad, x, w = (each.unsqueeze(2) for each in (grad, x, w))
            stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
        if backend in ("Cudnn", "CudnnTranspose"):
            results = by_cudnn(grad, x, w, _How(stride, padding, dilation, groups, *flags_now()), is_transposed, mask)
        elif backend == "CudaDepthwise2d":
            results = flat_depthwise_backward(grad, x, w, mask)
        elif backend == "CudaDepthwise3d":
            return tuple(deep_depthwise_backward(grad, x, w, mask))
        else:
            return device.dispatch.general(aten.convolution_backward.default, (*given, mask), {})
        if is_flat:
            results = [None if each is None else each.squeeze(2) for each in results]
        return *results, sum_of(grad) if mask[2] else None

    def by_cudnn(grad: Any, x: Any, w: Any, how: _How, is_transposed: bool, mask: Any) -> list[Any]:
        layout = layout_of(torch, x, w)
        x_there = x.contiguous(memory_format=layout) if mask[1] else x
        suggested = _suggested(torch, x_there)
        grad_there = grad.contiguous(memory_format=suggested) if is_transposed else grad.to(memory_format=suggested)
        results = [None, None]
        if mask[0] and is_transposed:
            results[0] = forward(grad_there, w, x.shape, how)
        elif mask[0]:
            results[0] = backward_input(x.shape, grad_there, w, how)
        if mask[1]:
            pair = (x_there, grad_there) if is_transposed else (grad_there, x_there)
            results[1] = backward_weight(w.shape, *pair, how)
        return results

    def flags_now() -> tuple[bool, bool, bool]:
        """Of at::globalContext(), which torch hands to the forward kernels as arguments."""
        binding = torch._C
        is_deterministic = binding._get_cudnn_deterministic() or binding._get_deterministic_algorithms()
        if hasattr(binding, "_get_fp32_precision_getter"):
            allows_tf32 = binding._get_fp32_precision_getter("cuda", "conv") == "tf32"
        else:
            allows_tf32 = binding._get_cudnn_allow_tf32()
        return binding._get_cudnn_benchmark(), is_deterministic, allows_tf32

    def depthwise(x: Any, w: Any, kernel: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> Any:
        shape = convolved(x.shape, w.shape, padding, stride, dilation)
        x, w = x.contiguous(), w.contiguous()
        return torch.empty(shape, dtype=x.dtype, device=x.device)

    def flat_depthwise_backward(grad: Any, x: Any, w: Any, mask: Any) -> list[Any]:
        """Of DepthwiseConv2d.cu, which knows one layout."""
        grad, x, w = grad.contiguous(), x.contiguous(), w.contiguous()
        grad_w = torch.empty_like(w) if mask[1] else None
        return [torch.empty_like(x) if mask[0] else None, grad_w]

    def deep_depthwise_backward(grad: Any, x: Any, w: Any, mask: Any) -> list[Any]:
        """Of DepthwiseConv3d.cu."""
        layout = torch.contiguous_format
        shapes = zip((x, w), mask, strict=False)
        results = [torch.empty_like(each, memory_format=layout) if is_wanted else None for each, is_wanted in shapes]
        copies = grad.contiguous(), x.contiguous(), w.contiguous()
        results.append(sum_of(grad) if mask[2] else None)
        del copies
        return results

    def sum_of(grad: Any) -> Any:
        return grad.sum([0, *range(2, grad.dim())])

    def pool_backward(grad: Any, x: Any, *args: Any) -> None:
        """The gradient is brought into the layout of the input."""
        if not grad.is_contiguous(memory_format=layout_of(torch, x)):
            with device.rule("copy of an operand"):
                torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)

    def unfold(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
        *batch, channels = x.shape[:-2]
        _, _, *extents = convolved((1, 1, *x.shape[-2:]), (1, 1, *kernel), padding, stride, dilation)
        return begun_as(x, [*batch, channels * prod(kernel), prod(extents)])

    def fold(x: Any, size: Any, kernel: Any, *how: Any) -> Any:
        *batch, channels, _ = x.shape
        return begun_as(x, [*batch, channels // prod(kernel), *size])

    def begun_as(x: Any, shape: list[int]) -> Any:
        """Im2Col.cu, Col2Im.cu: the result begins as another input, and what is read is contiguous. Not by `resize_`,
        which makes the storage known to Python (memory.py)."""
        out = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
        copy = x.contiguous()
        if prod(shape) > x.numel():
            out = torch.empty(shape, dtype=x.dtype, device=x.device)
        else:
            out = out[: prod(shape)].view(shape)
        del copy
        return out

    def reflection_pad(x: Any, *args: Any) -> None:
        """ReflectionPad.cu, forward and backward: what it reads is contiguous."""
        if not x.is_contiguous():
            with device.rule("copy of an operand"):
                torch.empty(x.shape, dtype=x.dtype, device=x.device)

    device.besides[aten.reflection_pad2d.default] = reflection_pad
    device.besides[aten.reflection_pad2d_backward.default] = reflection_pad
    kernels[aten.im2col.default] = unfold
    kernels[aten.col2im.default] = fold
    device.besides[aten.max_pool2d_with_indices_backward.default] = pool_backward
    kernels[aten.cudnn_convolution.default] = convolution
    kernels[aten.cudnn_convolution_transpose.default] = transposed
    kernels[aten.convolution_backward.default] = convolution_backward
    kernels[aten._conv_depthwise2d.default] = depthwise
    kernels[aten.conv_depthwise3d.default] = depthwise


def convolved(x: Any, w: Any, padding: Any, stride: Any, dilation: Any) -> list[int]:
    extents = [
        (size + 2 * pad - step * (kernel - 1) - 1) // skip + 1
        for size, kernel, pad, skip, step in zip(x[2:], w[2:], padding, stride, dilation, strict=True)
    ]
    return [x[0], w[0], *extents]


def spread(x: Any, w: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int) -> list[int]:
    extents = [
        (size - 1) * skip - 2 * pad + step * (kernel - 1) + more + 1
        for size, kernel, pad, more, skip, step in zip(
            x[2:], w[2:], padding, output_padding, stride, dilation, strict=True
        )
    ]
    return [x[0], w[1] * groups, *extents]


def layout_of(torch: Any, *tensors: Any) -> Any:
    """cudnn_conv_suggest_memory_format: channels last if one of them is, but for double precision."""
    if any(each.dtype is torch.float64 for each in tensors):
        return torch.contiguous_format
    suggested = (_suggested(torch, each) for each in tensors)
    return next((each for each in suggested if each is not torch.contiguous_format), torch.contiguous_format)


def _suggested(torch: Any, tensor: Any) -> Any:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout if layout is not None and _is_channels_last(tensor) else torch.contiguous_format


def _is_channels_last(tensor: Any) -> bool:
    """c10::is_channels_last_strides: sizes of 1 fit any order, so the strides have to say it."""
    smallest = 0
    sizes, strides = tensor.size(), tensor.stride()
    if strides[1] == 0:
        return False
    for dimension in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if sizes[dimension] == 0 or strides[dimension] < smallest:
            return False
        if dimension == 0 and smallest == strides[1]:
            return False
        smallest = strides[dimension] * max(sizes[dimension], 1) if sizes[dimension] > 1 else strides[dimension]
    return True


def _shape(tensor: Any, is_channels_last: bool) -> Shape:
    """With the strides that fixSizeOneDimStride (ATen/cudnn/Descriptors.cpp) gives to sizes of 1."""
    sizes, strides = tuple(tensor.shape), list(tensor.stride())
    inner = range(len(sizes) - 1, 1, -1)
    packed = 1
    for dimension in (1, *inner, 0) if is_channels_last else (*inner, 1, 0):
        if sizes[dimension] == 1:
            strides[dimension] = packed
        packed *= sizes[dimension]
    address = tensor.data_ptr()
    return Shape(sizes, tuple(strides), min(address & -address, 32))
