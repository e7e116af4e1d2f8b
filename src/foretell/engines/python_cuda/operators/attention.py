"""Attention: the kernel that the card's build of PyTorch would choose, and its memory."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from ....rules import attention as rules
from .registration import Tensor, aten, extra_memory, function, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


@function("scaled_dot_product_attention")
def attention(
    device: PythonCuda, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """at::native::scaled_dot_product_attention."""
    needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v))
    choice = choose(device, q, k, v, mask, dropout, is_causal, enable_gqa, needs_grad)
    chosen = choice.backend
    where = device.memory.where
    where.operator, where.kernel = "aten.scaled_dot_product_attention", chosen
    where.kernel_reason = choice.why_not_flash
    mask = _as_numbers(mask, q.dtype)
    if chosen == "flash":
        width = q.size(-1)
        factor = scale if scale is not None else 1 / math.sqrt(width)
        padded = [_padded(each, 8) for each in (q, k, v)]
        out = aten._scaled_dot_product_flash_attention.default(*padded, dropout, is_causal, False, scale=factor)[0]
        return out[..., :width] if out.size(-1) != width else out
    if chosen == "efficient":
        if mask is not None:
            mask = _aligned(mask, k.size(2)).expand(q.size(0), q.size(1), q.size(2), k.size(2))
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


@extra_memory("_scaled_dot_product_flash_attention_backward")
def flash_backward(device: PythonCuda, grad: Tensor, q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
    copy = _copy_of(device, grad)
    with device.rule("sums of the attention's backward"):
        return [device.buffer(size) for size in rules.flash_sums(q.shape, k.shape, q.dtype.itemsize)], copy


@extra_memory("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(
    device: PythonCuda, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any
) -> Any:
    sums = rules.efficient_sums(q.shape, v.shape, _name_of(q.dtype))
    copy = _copy_of(device, grad)
    with device.rule("sums of the attention's backward"):
        delta = device.buffer(sums.delta)
        if sums.product:
            device.buffer(sums.product)
        return copy, delta, device.buffer(sums.workspace)


def _copy_of(device: PythonCuda, grad: Tensor) -> Tensor | None:
    """Copy of the gradient if needed: the kernels expect heads inside rows."""
    with device.rule("copy of an operand"):
        rows = grad.transpose(1, 2)
        return None if rows.is_contiguous() else torch.empty(rows.shape, dtype=grad.dtype, device=grad.device)


def choose(
    device: Any, q: Any, k: Any, v: Any, mask: Any, dropout: float, is_causal: bool, enable_gqa: bool, needs_grad: bool
) -> rules.Choice:
    """The backend for the card and the switches of torch.backends.cuda."""
    settings = torch.backends.cuda
    switches: dict[rules.Backend, bool] = {
        "cudnn": settings.cudnn_sdp_enabled(),
        "flash": settings.flash_sdp_enabled(),
        "efficient": settings.mem_efficient_sdp_enabled(),
        "math": settings.math_sdp_enabled(),
    }
    platform = rules.Platform(
        compute_capability=device.capability,
        torch_version=device.version,
        enabled=frozenset(name for name, is_on in switches.items() if is_on),
        prefers_cudnn=not os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED"),
    )
    attention = rules.Attention(
        query=_operand(q),
        key=_operand(k),
        value=_operand(v),
        has_mask=mask is not None,
        dropout=dropout,
        is_causal=is_causal,
        enables_gqa=enable_gqa,
        needs_grad=needs_grad,
    )
    return rules.choose(attention, platform)


def _operand(tensor: Tensor) -> rules.Operand:
    return rules.Operand(
        shape=tuple(tensor.shape),
        dtype=_name_of(tensor.dtype),
        last_stride=tensor.stride(-1) if tensor.dim() else 1,
    )


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _as_numbers(mask: Tensor | None, dtype: Any) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    numbers = torch.zeros_like(mask, dtype=dtype)
    return numbers.masked_fill_(mask.logical_not(), float("-inf"))


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    rest = tensor.size(-1) % multiple
    return torch.nn.functional.pad(tensor, (0, multiple - rest)) if rest else tensor


def _aligned(mask: Tensor, length: int) -> Tensor:
    """Pad the rows of a mask to multiples of 16 elements."""
    if length % 16 == 0:
        return mask
    padded = torch.nn.functional.pad(mask, (0, 16 - length % 16))
    return padded[..., :length]
