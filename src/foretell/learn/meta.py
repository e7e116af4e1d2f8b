"""Describes a model object in the caller's own process, on the meta device: nothing is computed and no GPU is used.

The meta device differs from CUDA in what it saves: dropout keeps a float mask there, and attention takes the path that
keeps all scores. Stand-ins save what the CUDA kernels save.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from foretell.errors import UnsupportedError
from foretell.inside.describe import Catcher, Described
from foretell.rules import attention
from foretell.versions import NEWEST_TORCH, parse_version


def describe_model(
    model: nn.Module, *inputs: Any, optimizer: str = "Adam", compute_capability: tuple[int, int] = (8, 0)
) -> dict[str, Any]:
    """The plain fields of `JobFeatures`, for one training step with the sum of the first output as its loss."""
    found: list[Any] = []

    def caught(description: dict[str, Any]) -> None:
        found.append(description)
        raise Described

    with (
        contextlib.suppress(Described),
        Catcher(caught, compute_capability=compute_capability),
        _as_cuda_saves(compute_capability),
    ):
        shadow = _on_meta(model).train()
        options = {"foreach": True} if optimizer in ("Adam", "AdamW", "SGD") else {}
        getattr(torch.optim, optimizer)(shadow.parameters(), lr=1e-3, **options)
        try:
            outputs = shadow(*(_moved(each) for each in inputs))
            _first(outputs).float().sum().backward()
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            raise UnsupportedError(
                f"the forward pass of {type(model).__name__} failed on the meta device: {str(error)[:300]} Guess from "
                "the training script instead, which runs on a virtual GPU: foretell.guess(['train.py', ...])."
            ) from None
    if not found:
        raise UnsupportedError(f"{type(model).__name__} has no parameters to train.")
    description: dict[str, Any] = found[0]
    return description


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have no memory."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("meta")
    if isinstance(value, dict):
        return {name: _moved(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each) for each in value)
    return value


def _first(value: Any) -> torch.Tensor:
    if getattr(value, "loss", None) is not None:
        value = value.loss
    value = getattr(value, "logits", value)
    while not isinstance(value, torch.Tensor):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def _fused_attention(plain: Any, compute_capability: tuple[int, int]) -> Any:
    """scaled_dot_product_attention by the kernel that the card would use; on the meta device, PyTorch takes none."""
    version = parse_version(str(torch.__version__)) or NEWEST_TORCH
    platform = attention.Platform(compute_capability=compute_capability, torch_version=version)

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        found = (query, key, value)
        backend = "math"
        if all(each.dim() == 4 for each in found):
            first, second, third = map(_operand, found)
            call = attention.Attention(
                query=first, key=second, value=third, has_mask=attn_mask is not None, dropout=dropout_p,
                is_causal=is_causal, enables_gqa=enable_gqa,
            )  # fmt: skip
            backend = attention.choose(call, platform).backend
        if backend == "math" or key.shape[1] != query.shape[1]:
            grouped = {"enable_gqa": True} if enable_gqa else {}
            result: torch.Tensor = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **grouped)
        elif backend == "efficient":
            bias = None if attn_mask is None else attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
            operator = torch.ops.aten._scaled_dot_product_efficient_attention
            result = operator(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]
        else:  # cuDNN saves the same tensors as flash attention
            operator = torch.ops.aten._scaled_dot_product_flash_attention
            result = operator(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return result

    return attend


def _operand(tensor: torch.Tensor) -> attention.Operand:
    return attention.Operand(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


@contextlib.contextmanager
def _as_cuda_saves(compute_capability: tuple[int, int]) -> Iterator[None]:
    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(input, p, training)[0] if training and p > 0 else input

    functional = nn.functional
    before = functional.dropout, functional.scaled_dot_product_attention
    fused = _fused_attention(functional.scaled_dot_product_attention, compute_capability)
    functional.dropout, functional.scaled_dot_product_attention = dropout, fused
    try:
        yield
    finally:
        functional.dropout, functional.scaled_dot_product_attention = before
