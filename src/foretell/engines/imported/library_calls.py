"""Which of NVIDIA's libraries a job would call on a card, and how: each takes memory of its own there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from foretell.engines.imported import recurrent_calls
from foretell.engines.imported.analysis import PRODUCTS, RecordedJob
from foretell.engines.imported.card import Card
from foretell.engines.imported.convolution_calls import convolutions_of, workspace
from foretell.engines.imported.cpu_profile import Operator
from foretell.rules.convolution import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    function: str
    direction: Direction
    workspace_bytes: int
    x_bytes: int
    y_bytes: int
    w_bytes: int
    multiply_adds: int


def library_calls(job: RecordedJob, card: Card) -> tuple[LibraryCall | ConvolutionCall, ...]:
    """One call for each kind of matrix product, normalization and recurrent net, and every convolution."""
    called: dict[str, None] = {}
    convolutions: list[ConvolutionCall] = []
    replaced = recurrent_calls.replaced_operators(job, card)
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


def _convolution_calls(operator: Operator, card: Card) -> Iterator[ConvolutionCall]:
    """One call for a forward operator; for a backward one, a call for each gradient it computes."""
    found = convolutions_of(operator, card)
    if found is None or not found.is_by_cudnn:
        return
    for convolution in found.calls:
        yield ConvolutionCall(
            function="cudnnBackendExecute",
            direction=convolution.direction,
            workspace_bytes=workspace(convolution, card),
            x_bytes=convolution.x_bytes,
            y_bytes=convolution.y_bytes,
            w_bytes=convolution.w_bytes,
            multiply_adds=convolution.multiply_adds,
        )
