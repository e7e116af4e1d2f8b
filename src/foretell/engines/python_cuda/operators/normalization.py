"""Norms: what they save for the backward pass, and their reduction buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....rules.kernels import layer_norm_parts
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


@kernel("_fused_rms_norm")
def fused_rms_norm(
    device: PythonCuda, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, epsilon: float | None = None
) -> tuple[Tensor, Tensor]:
    """A single kernel on a card (from 2.9 on), several operators on the CPU."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    sum_type = torch.float64 if x.dtype is torch.float64 else torch.float32
    return out, torch.empty(rows, dtype=sum_type, device=x.device)


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
