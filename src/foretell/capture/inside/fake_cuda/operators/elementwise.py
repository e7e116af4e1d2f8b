"""Operators on elements and rows that make something beside their result, or make their results in another order."""

from __future__ import annotations

from typing import Any

_COPY_EXPANDED = (
    "roll", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward",
    "upsample_nearest3d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward",
)  # fmt: skip


def add(device: Any) -> None:
    torch = device.torch
    aten = torch.ops.aten

    def native_dropout(x: Any, probability: float, train: Any = None) -> Any:
        """The mask comes first."""
        mask = torch.empty_like(x, dtype=torch.bool)
        return torch.empty_like(x), mask

    def log_sigmoid(x: Any) -> Any:
        """The CPU keeps a buffer for the backward pass, CUDA an empty one."""
        return torch.empty_like(x), torch.empty(0, dtype=x.dtype, device=x.device)

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

    def dense(x: Any, *args: Any, **kwargs: Any) -> None:
        """A gradient, mostly, that one number was expanded to."""
        if 0 in x.stride():
            copies(x)

    for operator in (aten._softmax.default, aten._log_softmax.default):
        device.besides[operator] = softmax
    for name in _COPY_EXPANDED:
        packet = getattr(aten, name, None)
        if packet is not None:
            device.besides[packet.default] = dense
    device.besides[aten._log_softmax_backward_data.default] = lambda grad, output, *args: copies(grad, output)

    def ctc_loss_backward(grad: Any, log_probs: Any, targets: Any, lengths: Any, *args: Any) -> Any:
        """The second of the two tables of the algorithm; the first was kept by the forward pass."""
        log_alpha = next(each for each in args if isinstance(each, torch.Tensor) and each.dim() == 3)
        with device.rule("table of the alignment"):
            table = torch.empty_like(log_alpha)
        result = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
        del table
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
    device.kernels[aten.log_sigmoid_forward.default] = log_sigmoid
    device.besides[aten._softmax_backward_data.default] = softmax_backward
