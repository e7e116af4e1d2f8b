"""CUDA-only operators computed on the host, so that `--execute` knows every value.

Dropout inside fused attention draws its mask in the kernel, out of reach; it is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

torch: Any = sys.modules["torch"]
aten: Any = torch.ops.aten
Tensor: TypeAlias = Any


def equivalents() -> dict[Any, Callable[..., Any]]:
    """Equivalents by operator."""
    return {
        aten.cudnn_convolution.default: convolution,
        aten.cudnn_convolution_transpose.default: transposed_convolution,
        aten._conv_depthwise2d.default: depthwise_convolution,
        aten.conv_depthwise3d.default: depthwise_convolution,
        aten.cudnn_batch_norm.default: batch_norm,
        aten.cudnn_batch_norm_backward.default: batch_norm_backward,
        aten._scaled_dot_product_flash_attention.default: flash_attention,
        aten._scaled_dot_product_efficient_attention.default: efficient_attention,
        aten._scaled_dot_product_flash_attention_backward.default: flash_attention_backward,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_attention_backward,
    }


# ---- convolutions and norms ------------------------------------------------------------------------------------------


def convolution(
    x: Tensor, w: Tensor, padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int,
    *flags: bool,
) -> Tensor:  # fmt: skip
    return torch.convolution(x, w, None, stride, padding, dilation, False, [0] * len(stride), groups)


def transposed_convolution(
    x: Tensor, w: Tensor, padding: Sequence[int], output_padding: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int], groups: int, *flags: bool,
) -> Tensor:  # fmt: skip
    return torch.convolution(x, w, None, stride, padding, dilation, True, output_padding, groups)


def depthwise_convolution(
    x: Tensor, w: Tensor, kernel: Sequence[int], bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:  # fmt: skip
    return torch.convolution(x, w, bias, stride, padding, dilation, False, [0] * len(stride), x.size(1))


def batch_norm(
    x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor, train: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, save_mean, save_inverse = torch.native_batch_norm(x, w, b, mean, variance, train, momentum, eps)
    return out, save_mean, save_inverse, torch.empty(0, dtype=torch.uint8)


def batch_norm_backward(
    x: Tensor, grad: Tensor, w: Tensor, mean: Tensor, variance: Tensor, save_mean: Tensor, save_inverse: Tensor,
    eps: float, reserve: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    mask = [True, True, True]
    results: tuple[Tensor, Tensor, Tensor] = aten.native_batch_norm_backward(
        grad, x, w, mean, variance, save_mean, save_inverse, True, eps, mask
    )
    return results


# ---- attention -------------------------------------------------------------------------------------------------------


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _attend(q, k, v, None, is_causal, scale)


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, has_lse: bool, dropout: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _attend(q, k, v, mask, is_causal, scale)


def flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *args: Any, scale: float | None = None
) -> tuple[Tensor, ...]:
    is_causal = next(each for each in args[::-1] if isinstance(each, bool))
    return _gradients(grad, q, k, v, None, is_causal, scale)


def efficient_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, seed: Tensor,
    offset: Tensor, dropout: float, needs: Sequence[bool], is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    return (*_gradients(grad, q, k, v, mask, is_causal, scale), None)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    k, v = _for_each_query(q, k, v)
    scores = _scores(q, k, mask, is_causal, scale or q.size(-1) ** -0.5)
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    """Computed by hand: autograd is off inside a kernel."""
    scale = scale or q.size(-1) ** -0.5
    keys, values = _for_each_query(q, k, v)
    weights = _scores(q, keys, mask, is_causal, scale).softmax(-1)
    of_weights = grad.float() @ values.float().transpose(-2, -1)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
    of_values = weights.transpose(-2, -1) @ grad.float()
    of_keys = of_scores.transpose(-2, -1) @ q.float()
    groups = [each.unflatten(1, (k.size(1), -1)).sum(2).to(k.dtype) for each in (of_keys, of_values)]
    return ((of_scores @ keys.float()).to(q.dtype), *groups)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    scores = (q.float() @ k.float().transpose(-2, -1)) * scale
    if is_causal:
        allowed = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if mask is not None:
        scores = scores + mask
    return scores


def _for_each_query(q: Tensor, *tensors: Tensor) -> list[Tensor]:
    return [each.repeat_interleave(q.size(1) // each.size(1), 1) for each in tensors]
