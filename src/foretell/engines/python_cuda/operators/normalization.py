"""Norms: what they save for the backward pass, and their reduction buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....rules.kernels import group_norm_gradient_sums, group_norm_sums, layer_norm_parts
from ....versions import GROUP_NORM_SUMS_IN_FLOAT
from .convolution import layout_of
from .registration import Tensor, extra_memory, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


@kernel("cudnn_batch_norm")
def cudnn_batch_norm(
    device: PythonCuda, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, training: bool,
    momentum: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    device.load_library("cudnnCreate")
    device.load_library("cudnnBatchNormalization")
    device.library("cudnnBatchNormalizationForwardTrainingEx")
    out = torch.empty_like(x)
    num_saved = x.size(1) if training else 0
    save_mean = torch.empty(num_saved, dtype=weight.dtype, device=x.device)
    save_variance = torch.empty(num_saved, dtype=weight.dtype, device=x.device)
    return out, save_mean, save_variance, torch.empty(0, dtype=torch.uint8, device=x.device)


@kernel("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    device: PythonCuda, x: Tensor, grad: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, save_mean: Tensor,
    save_variance: Tensor, epsilon: float, reserve: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad = grad.contiguous(memory_format=layout_of(x))
    grad_x = torch.empty_like(x)
    grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    grad_bias = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    return grad_x, grad_weight, grad_bias


@extra_memory("native_layer_norm_backward")
def layer_norm_backward(
    device: PythonCuda, grad: Tensor, x: Tensor, shape: Sequence[int], *args: Any, **kwargs: Any
) -> None:
    device.contiguous_copies(grad, x)
    _sum_rows(device, x, shape, num_results=2)


@extra_memory("native_group_norm")
def group_norm(
    device: PythonCuda, x: Tensor, weight: Tensor | None, bias: Tensor | None, rows: int, channels: int, area: int,
    groups: int, epsilon: float,
) -> None:  # fmt: skip
    is_half = x.dtype in (torch.float16, torch.bfloat16) and GROUP_NORM_SUMS_IN_FLOAT.holds_in(device.version)
    has_weight = weight is not None or bias is not None
    sizes = group_norm_sums(
        rows, channels, groups, area, has_weight=has_weight, is_half=is_half, is_channels_last=_is_channels_last(x)
    )
    _take_sums(device, x, sizes)


@extra_memory("native_group_norm_backward")
def group_norm_backward(
    device: PythonCuda, grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor | None, rows: int,
    channels: int, area: int, groups: int, wanted: Sequence[bool],
) -> None:  # fmt: skip
    sizes = group_norm_gradient_sums(
        rows, channels, groups, area, has_weight=weight is not None, needs_input=wanted[0],
        is_channels_last=_is_channels_last(x),
    )  # fmt: skip
    like_input = grad.contiguous(memory_format=torch.channels_last) if _is_channels_last(x) else grad
    _take_sums(device, x, sizes)
    del like_input


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and not x.is_contiguous()  # torch has made it contiguous in one of the two ways


@kernel("_fused_rms_norm")
def fused_rms_norm(
    device: PythonCuda, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, epsilon: float | None = None
) -> tuple[Tensor, Tensor]:
    """A single kernel on a card (from 2.9 on), several operators on the CPU."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return out, torch.empty(rows, dtype=_sum_type(x), device=x.device)


@kernel("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    device: PythonCuda, grad: Tensor, x: Tensor, shape: Sequence[int], deviation: Tensor, weight: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    x, grad = x.contiguous(), grad.contiguous()
    grad_x = torch.empty_like(x) if wanted[0] else None
    grad_weight = torch.empty_like(weight) if weight is not None and wanted[1] else None
    if grad_weight is not None:
        _sum_rows(device, x, shape, num_results=1)
    return grad_x, grad_weight


def _take_sums(device: PythonCuda, x: Tensor, sizes: Sequence[int]) -> None:
    with device.rule("sums of groups and channels"):
        taken = [device.memory.empty((size,), (1,), _sum_type(x)) for size in sizes]
        del taken


def _sum_type(x: Tensor) -> Any:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _sum_rows(device: PythonCuda, x: Tensor, shape: Sequence[int], *, num_results: int) -> None:
    """Gradients of weight and bias: with many short rows, partial sums that are then added up."""
    width = math.prod(shape)
    rows = x.numel() // max(width, 1)
    num_parts = layer_norm_parts(rows, width, device.num_sms)
    if num_parts:
        with device.rule("partial sums"):
            parts = [device.memory.empty((num_parts, width), (width, 1), x.dtype) for _ in range(num_results)]
            for each in parts:
                each.sum(0)
            del parts, each
