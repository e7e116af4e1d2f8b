"""Operators that only CUDA has, computed on the host: what `--execute` needs to know every value.

Dropout inside a fused attention draws its mask in a kernel, which nobody sees; it is computed without.
"""

from __future__ import annotations

from typing import Any


def equivalents(torch: Any) -> dict[Any, Any]:
    aten = torch.ops.aten

    def convolution(x: Any, w: Any, padding: Any, stride: Any, dilation: Any, groups: int, *flags: Any) -> Any:
        return torch.convolution(x, w, None, stride, padding, dilation, False, [0] * len(stride), groups)

    def transposed(
        x: Any, w: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *flags: Any
    ) -> Any:
        return torch.convolution(x, w, None, stride, padding, dilation, True, output_padding, groups)

    def depthwise(x: Any, w: Any, kernel: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> Any:
        return torch.convolution(x, w, bias, stride, padding, dilation, False, [0] * len(stride), x.size(1))

    def batch_norm(x: Any, w: Any, b: Any, mean: Any, variance: Any, train: bool, momentum: float, eps: float) -> Any:
        out, save_mean, save_inverse = torch.native_batch_norm(x, w, b, mean, variance, train, momentum, eps)
        return out, save_mean, save_inverse, torch.empty(0, dtype=torch.uint8)

    def batch_norm_backward(
        x: Any, grad: Any, w: Any, mean: Any, variance: Any, save_mean: Any, save_inverse: Any, eps: float, reserve: Any
    ) -> Any:
        mask = [True, True, True]
        return aten.native_batch_norm_backward(grad, x, w, mean, variance, save_mean, save_inverse, True, eps, mask)

    def scores_of(q: Any, k: Any, mask: Any, is_causal: bool, scale: float) -> Any:
        scores = (q.float() @ k.float().transpose(-2, -1)) * scale
        if is_causal:
            allowed = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
            scores = scores.masked_fill(~allowed, float("-inf"))
        if mask is not None:
            scores = scores + mask
        return scores

    def for_each_query(q: Any, *tensors: Any) -> Any:
        return [each.repeat_interleave(q.size(1) // each.size(1), 1) for each in tensors]

    def attend(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: Any) -> Any:
        k, v = for_each_query(q, k, v)
        scores = scores_of(q, k, mask, is_causal, scale or q.size(-1) ** -0.5)
        return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)

    def flash(
        q: Any, k: Any, v: Any, dropout: float = 0.0, is_causal: bool = False, debug: bool = False, *, scale: Any = None
    ) -> Any:
        return attend(q, k, v, None, is_causal, scale)

    def efficient(
        q: Any, k: Any, v: Any, mask: Any, has_lse: bool, dropout: float = 0.0, is_causal: bool = False, *,
        scale: Any = None,
    ) -> Any:  # fmt: skip
        return attend(q, k, v, mask, is_causal, scale)

    def gradients(grad: Any, q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: Any) -> Any:
        """By hand: autograd is off inside a kernel."""
        scale = scale or q.size(-1) ** -0.5
        keys, values = for_each_query(q, k, v)
        weights = scores_of(q, keys, mask, is_causal, scale).softmax(-1)
        of_weights = grad.float() @ values.float().transpose(-2, -1)
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
        of_values = weights.transpose(-2, -1) @ grad.float()
        of_keys = of_scores.transpose(-2, -1) @ q.float()
        groups = [each.unflatten(1, (k.size(1), -1)).sum(2).to(k.dtype) for each in (of_keys, of_values)]
        return ((of_scores @ keys.float()).to(q.dtype), *groups)

    def flash_backward(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *args: Any, scale: Any = None) -> Any:
        is_causal = next(each for each in args[::-1] if isinstance(each, bool))
        return gradients(grad, q, k, v, None, is_causal, scale)

    def efficient_backward(
        grad: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, seed: Any, offset: Any, dropout: float,
        needs: Any, is_causal: bool = False, *, scale: Any = None,
    ) -> Any:  # fmt: skip
        return (*gradients(grad, q, k, v, mask, is_causal, scale), None)

    return {
        aten.cudnn_convolution.default: convolution,
        aten.cudnn_convolution_transpose.default: transposed,
        aten._conv_depthwise2d.default: depthwise,
        aten.conv_depthwise3d.default: depthwise,
        aten.cudnn_batch_norm.default: batch_norm,
        aten.cudnn_batch_norm_backward.default: batch_norm_backward,
        aten._scaled_dot_product_flash_attention.default: flash,
        aten._scaled_dot_product_efficient_attention.default: efficient,
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    }
