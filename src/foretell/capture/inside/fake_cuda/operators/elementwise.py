"""Operators on elements and rows that make something beside their result, or make their results in another order."""

from __future__ import annotations

from typing import Any


def add(device: Any) -> None:
    torch = device.torch
    aten = torch.ops.aten

    def native_dropout(x: Any, probability: float, train: Any = None) -> Any:
        """The mask comes first."""
        mask = torch.empty_like(x, dtype=torch.bool)
        return torch.empty_like(x), mask

    def softmax_backward(grad: Any, output: Any, dim: int, input_type: Any) -> None:
        with device.rule("product of gradient and output"):
            product = torch.empty(grad.shape, dtype=torch.promote_types(grad.dtype, output.dtype), device=grad.device)
        kept = copies(output)
        del product, kept

    def copies(*tensors: Any) -> list[Any]:
        with device.rule("copy of an operand"):
            return [each.contiguous() for each in tensors if not each.is_contiguous()]

    def softmax(x: Any, *args: Any) -> None:
        copies(x)

    for operator in (aten._softmax.default, aten._log_softmax.default):
        device.besides[operator] = softmax
    device.besides[aten._log_softmax_backward_data.default] = lambda grad, output, *args: copies(grad, output)

    def ctc_loss_backward(grad: Any, log_probs: Any, targets: Any, lengths: Any, *args: Any) -> Any:
        """The second of the two tables of the algorithm; the first was kept by the forward pass."""
        log_alpha = next(each for each in args if isinstance(each, torch.Tensor) and each.dim() == 3)
        result = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
        with device.rule("table of the alignment"):
            torch.empty_like(log_alpha)
        return result

    for overload in aten._ctc_loss_backward.overloads():
        if overload != "out":
            device.kernels[getattr(aten._ctc_loss_backward, overload)] = ctc_loss_backward
    for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            # PyTorch's own kernel takes any lengths and types; cuDNN's would need more to be looked at.
            device.kernels[getattr(packet, overload)] = lambda *args, **kwargs: False
    device.kernels[aten.native_dropout.default] = native_dropout
    device.besides[aten._softmax_backward_data.default] = softmax_backward
