"""Attention: which of its kernels the card's build of PyTorch would choose, and what that one takes."""

from __future__ import annotations

import math
import os
from typing import Any

from ..recording import foretell_module


def add(device: Any) -> None:
    torch = device.torch
    aten = torch.ops.aten
    besides = device.besides
    rules = foretell_module("overhead.kernels")
    half_types = (torch.float16, torch.bfloat16)

    def attention(
        q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        """at::native::scaled_dot_product_attention."""
        needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v))
        chosen = choose(device, q, k, v, mask, dropout, is_causal, enable_gqa, needs_grad)
        device.memory.where.operator = f"aten.scaled_dot_product_attention ({chosen})"
        mask = _as_numbers(torch, mask, q.dtype)
        if chosen == "flash":
            width = q.size(-1)
            factor = scale if scale is not None else 1 / math.sqrt(width)
            padded = [_padded(torch, each, 8) for each in (q, k, v)]
            out = aten._scaled_dot_product_flash_attention.default(*padded, dropout, is_causal, False, scale=factor)[0]
            return out[..., :width] if out.size(-1) != width else out
        if chosen == "efficient":
            if mask is not None:
                mask = _aligned(torch, mask, k.size(2)).expand(q.size(0), q.size(1), q.size(2), k.size(2))
            return aten._scaled_dot_product_efficient_attention.default(
                q, k, v, mask, needs_grad, dropout, is_causal, scale=scale
            )[0]
        if chosen == "cudnn":
            return aten._scaled_dot_product_cudnn_attention.default(
                q, k, v, mask, needs_grad, dropout, is_causal, False, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math.default(
            q, k, v, mask, dropout, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]

    def flash_backward(grad: Any, q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        """mha_bwd of flash-attention: sums in single precision, and with groups of queries keys for each of them."""
        batch, heads, length, width = q.shape
        rounded, wide = rules.flash_sums(length, width)
        kept = copy_of(grad)
        with device.rule("sums of the attention's backward"):
            taken = [
                torch.empty((batch, heads, rounded), dtype=torch.float32, device=q.device),
                torch.empty((batch, rounded, heads, wide), dtype=torch.float32, device=q.device),
            ]
            if k.size(1) != heads:
                shape = (batch, k.size(2), heads, width)
                taken += [torch.empty(shape, dtype=q.dtype, device=q.device) for _ in range(2)]
        return taken, kept

    def efficient_backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        batch, heads, length, width = q.shape
        kept = copy_of(grad)
        with device.rule("sums of the attention's backward"):
            delta = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
            if q.dtype is torch.float32:
                torch.empty((batch, length, heads, v.size(-1)), dtype=torch.float32, device=q.device)
            size = rules.efficient_workspace(q.dtype in half_types, batch * heads, length, width, v.size(-1))
            return kept, delta, torch.empty(size, dtype=torch.uint8, device=q.device)

    def copy_of(grad: Any) -> Any:
        """The kernels want heads inside of rows."""
        with device.rule("copy of an operand"):
            rows = grad.transpose(1, 2)
            return None if rows.is_contiguous() else torch.empty(rows.shape, dtype=grad.dtype, device=grad.device)

    device.functions[aten.scaled_dot_product_attention.default] = attention
    besides[aten._scaled_dot_product_flash_attention_backward.default] = flash_backward
    besides[aten._scaled_dot_product_efficient_attention_backward.default] = efficient_backward


def choose(
    device: Any, q: Any, k: Any, v: Any, mask: Any, dropout: float, is_causal: bool, enable_gqa: bool, needs_grad: bool
) -> str:
    """sdp::select_sdp_backend, for a card of this compute capability."""
    torch, capability = device.torch, device.capability
    settings = torch.backends.cuda
    if any(each.dim() != 4 for each in (q, k, v)) or 0 in (q.size(2), k.size(2)):
        return "math"
    width, key_width, value_width = q.size(-1), k.size(-1), v.size(-1)
    is_half = q.dtype in (torch.float16, torch.bfloat16)
    is_same_type = q.dtype == k.dtype == v.dtype
    has_plain_rows = all(each.stride(-1) == 1 for each in (q, k, v))
    has_rows = all(each.stride(-1) == 1 or each.size(-1) == 1 for each in (q, k, v))
    has_same_heads = q.size(1) == k.size(1) == v.size(1)
    has_groups = enable_gqa and q.size(1) % k.size(1) == 0 and k.size(1) == v.size(1)
    has_same_batch = q.size(0) == k.size(0) == v.size(0)
    flash = (
        settings.flash_sdp_enabled()
        and mask is None
        and width == key_width == value_width <= 256
        and capability >= (8, 0)
        and is_half
        and is_same_type
        and has_rows
        and (has_same_heads or has_groups)
        and has_same_batch
        and not (is_causal and q.size(2) != k.size(2))
    )
    if flash and capability in ((8, 6), (8, 9), (12, 0), (12, 1)) and needs_grad:
        flash = width <= 192 or (dropout == 0 and width > 224)
    alignment = (8 if is_half else 4) if capability >= (8, 0) else (8 if capability >= (7, 0) and is_half else 1)
    efficient = (
        settings.mem_efficient_sdp_enabled()
        and width == key_width
        and width % alignment == 0
        and value_width % alignment == 0
        and (is_half or q.dtype is torch.float32)
        and (q.dtype is not torch.bfloat16 or capability >= (8, 0))
        and is_same_type
        and has_plain_rows
        and (has_same_heads or (has_groups and device.version >= (2, 14)))
        and has_same_batch
    )
    cudnn = (
        settings.cudnn_sdp_enabled()
        and is_half
        and is_same_type
        and capability >= (8, 0)
        and max(width, value_width) <= 128
        and width % 8 == 0
        and value_width % 8 == 0
        and has_rows
        and (has_same_heads or has_groups)
        and has_same_batch
        and k.size(2) != 1
        and (dropout * 16).is_integer()
    )
    is_first = capability[0] in (9, 10) and not os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED")
    if is_first and cudnn:
        return "cudnn"
    if flash:
        return "flash"
    if efficient:
        return "efficient"
    return "cudnn" if cudnn and not settings.math_sdp_enabled() else "math"


def _as_numbers(torch: Any, mask: Any, dtype: Any) -> Any:
    if mask is None or mask.dtype != torch.bool:
        return mask
    numbers = torch.zeros_like(mask, dtype=dtype)
    return numbers.masked_fill_(mask.logical_not(), float("-inf"))


def _padded(torch: Any, tensor: Any, multiple: int) -> Any:
    rest = tensor.size(-1) % multiple
    return torch.nn.functional.pad(tensor, (0, multiple - rest)) if rest else tensor


def _aligned(torch: Any, mask: Any, length: int) -> Any:
    """Rows of a mask begin at multiples of 16 elements."""
    if length % 16 == 0:
        return mask
    padded = torch.nn.functional.pad(mask, (0, 16 - length % 16))
    return padded[..., :length]
