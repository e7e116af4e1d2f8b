"""Norms: what they save for the backward pass and sum in."""

from __future__ import annotations

import math
from typing import Any

from ..recording import foretell_module
from .convolution import layout_of


def add(device: Any) -> None:
    torch = device.torch
    aten = torch.ops.aten
    kernels, besides = device.kernels, device.besides
    layer_norm_parts = foretell_module("overhead.kernels").layer_norm_parts

    def cudnn_batch_norm(
        x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
    ) -> Any:
        device.library("cudnnCreate")
        device.library("cudnnBatchNormalizationForwardTrainingEx")
        out = torch.empty_like(
            x, memory_format=x.suggest_memory_format() if hasattr(x, "suggest_memory_format") else torch.preserve_format
        )
        kept = x.size(1) if training else 0
        save_mean = torch.empty(kept, dtype=weight.dtype, device=x.device)
        save_variance = torch.empty(kept, dtype=weight.dtype, device=x.device)
        return out, save_mean, save_variance, torch.empty(0, dtype=torch.uint8, device=x.device)

    def cudnn_batch_norm_backward(
        x: Any, grad: Any, weight: Any, mean: Any, variance: Any, save_mean: Any, save_variance: Any, epsilon: float,
        reserve: Any,
    ) -> Any:  # fmt: skip
        grad = grad.contiguous(memory_format=layout_of(torch, x))
        grad_x = torch.empty_like(x)
        grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
        grad_bias = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
        return grad_x, grad_weight, grad_bias

    def layer_norm_backward(grad: Any, x: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        with device.rule("copy of an operand"):
            kept = [each.contiguous() for each in (grad, x) if not each.is_contiguous()]
            del kept
        sums_of_rows(x, shape, 2)

    def sums_of_rows(x: Any, shape: Any, num_results: int) -> None:
        """The gradients of weight and bias: in parts, which are then summed, where there are many short rows."""
        width = math.prod(shape)
        rows = x.numel() // max(width, 1)
        parts = layer_norm_parts(rows, width, device.num_sms)
        if parts:
            with device.rule("partial sums"):
                kept = [device.memory.empty((parts, width), (width, 1), x.dtype) for _ in range(num_results)]
                for each in kept:
                    each.sum(0)
                del kept, each

    def fused_rms_norm(x: Any, shape: Any, weight: Any = None, epsilon: float | None = None) -> Any:
        """A kernel of its own on a card (from 2.9 on), parts on the CPU."""
        x = x.contiguous()
        out = torch.empty_like(x)
        rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
        return out, torch.empty(rows, dtype=sums_in(x), device=x.device)

    def fused_rms_norm_backward(
        grad: Any, x: Any, shape: Any, deviation: Any, weight: Any, wanted: Any
    ) -> Any:
        x, grad = x.contiguous(), grad.contiguous()
        grad_x = torch.empty_like(x) if wanted[0] else None
        grad_weight = torch.empty_like(weight) if weight is not None and wanted[1] else None
        if grad_weight is not None:
            sums_of_rows(x, shape, 1)
        return grad_x, grad_weight

    def sums_in(x: Any) -> Any:
        return torch.float64 if x.dtype is torch.float64 else torch.float32

    if hasattr(aten, "_fused_rms_norm_backward"):
        kernels[aten._fused_rms_norm.default] = fused_rms_norm
        kernels[aten._fused_rms_norm_backward.default] = fused_rms_norm_backward

    kernels[aten.cudnn_batch_norm.default] = cudnn_batch_norm
    kernels[aten.cudnn_batch_norm_backward.default] = cudnn_batch_norm_backward
    besides[aten.native_layer_norm_backward.default] = layer_norm_backward
