"""Which of NVIDIA's libraries a job would have called on a card, and how: they take memory of their own there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from foretell.cpu import recurrent
from foretell.cpu.analysis import PRODUCTS, Job
from foretell.cpu.card import Card
from foretell.cpu.convolutions import convolution_of
from foretell.cpu.profile import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    function: str
    workspace_bytes: int = 0
    x_bytes: int = 0
    y_bytes: int = 0
    w_bytes: int = 0


def library_calls(job: Job, card: Card) -> tuple[LibraryCall, ...]:
    """One for each kind of product, normalization and recurrent net, and every convolution."""
    called: dict[str, None] = {}
    convolutions: list[LibraryCall] = []
    replaced = recurrent.replaced_operators(job, card)
    for number, operator in enumerate(job.operators):
        if number in replaced:
            called["cudnnRNNForward"] = None
        elif operator.name in PRODUCTS - {"aten::convolution"}:
            called["cublasGemmEx"] = None
        elif operator.name == "aten::native_batch_norm":
            called["cudnnBatchNormalizationForwardTrainingEx"] = None
        else:
            convolutions += _convolution_calls(operator, card)
    return (*(LibraryCall(function=name) for name in called), *convolutions)


def _convolution_calls(operator: Operator, card: Card) -> Iterator[LibraryCall]:
    """One of a forward operator, one for each gradient that is wanted of a backward one."""
    convolution = convolution_of(operator, card)
    if convolution is None or not convolution.is_by_cudnn:
        return
    x_bytes, y_bytes, w_bytes = (
        prod(shape) * convolution.element_bytes for shape in (convolution.x, convolution.y, convolution.w)
    )
    for direction in convolution.directions:
        yield LibraryCall(
            function="cudnnBackendExecute",
            workspace_bytes=convolution.workspace(direction, card),
            x_bytes=x_bytes,
            y_bytes=y_bytes,
            w_bytes=w_bytes,
        )
