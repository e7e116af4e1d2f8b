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


def describe_model(model: nn.Module, *inputs: Any, optimizer: str = "Adam") -> dict[str, Any]:
    """The plain fields of `JobFeatures`, for one training step with the sum of the first output as its loss."""
    found: list[Any] = []

    def caught(description: dict[str, Any]) -> None:
        found.append(description)
        raise Described

    with contextlib.suppress(Described), Catcher(caught), _as_cuda_saves():
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


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Saves what the fused kernels save: query, key, value, result, and a number for each row."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result = query.new_empty((*query.shape[:-1], value.shape[-1]))
        rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, result, rows)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = _Attention.apply(query, key, value)
    return result


@contextlib.contextmanager
def _as_cuda_saves() -> Iterator[None]:
    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(input, p, training)[0] if training and p > 0 else input

    functional = nn.functional
    before = functional.dropout, functional.scaled_dot_product_attention
    functional.dropout, functional.scaled_dot_product_attention = dropout, _attention
    try:
        yield
    finally:
        functional.dropout, functional.scaled_dot_product_attention = before
