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
        """Sums of rows are made in parts where there are many short rows."""
        with device.rule("copy of an operand"):
            kept = [each.contiguous() for each in (grad, x) if not each.is_contiguous()]
            del kept
        width = math.prod(shape)
        rows = x.numel() // max(width, 1)
        parts = layer_norm_parts(rows, width, device.num_sms)
        if parts:
            with device.rule("partial sums"):
                kept = [device.memory.empty((parts, width), (width, 1), x.dtype) for _ in range(2)]
                del kept

    kernels[aten.cudnn_batch_norm.default] = cudnn_batch_norm
    kernels[aten.cudnn_batch_norm_backward.default] = cudnn_batch_norm_backward
    besides[aten.native_layer_norm_backward.default] = layer_norm_backward
