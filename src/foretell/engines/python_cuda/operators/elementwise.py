"""Operators on elements and rows that take extra memory, or make their results in a different order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registration import Tensor, extra_memory, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


@kernel("native_dropout")
def native_dropout(
    device: PythonCuda, x: Tensor, probability: float, train: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The mask is allocated first."""
    mask = torch.empty_like(x, dtype=torch.bool)
    return torch.empty_like(x), mask


@kernel("log_sigmoid_forward")
def log_sigmoid(device: PythonCuda, x: Tensor) -> tuple[Tensor, Tensor]:
    """The CPU keeps a buffer for the backward pass, CUDA an empty one."""
    return torch.empty_like(x), torch.empty(0, dtype=x.dtype, device=x.device)


@extra_memory("_softmax", "_log_softmax")
def softmax(device: PythonCuda, x: Tensor, *args: Any) -> None:
    device.contiguous_copies(x)


@extra_memory("_softmax_backward_data")
def softmax_backward(device: PythonCuda, grad: Tensor, output: Tensor, dim: int, input_type: Any) -> None:
    with device.rule("product of gradient and output"):
        product = torch.empty(grad.shape, dtype=torch.promote_types(grad.dtype, output.dtype), device=grad.device)
    copies = device.contiguous_copies(output)
    del product, copies


@extra_memory("_log_softmax_backward_data")
def log_softmax_backward(device: PythonCuda, grad: Tensor, output: Tensor, *args: Any) -> None:
    device.contiguous_copies(grad, output)


@extra_memory(
    "roll", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward",
    "upsample_nearest3d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward",
)  # fmt: skip
def copy_of_expanded(device: PythonCuda, x: Tensor, *args: Any, **kwargs: Any) -> None:
    """Mostly a gradient expanded from a scalar."""
    if 0 in x.stride():
        device.contiguous_copies(x)


@kernel("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    device: PythonCuda, grad: Tensor, log_probs: Tensor, targets: Tensor, lengths: Any, *args: Any
) -> Tensor:
    """Second of the algorithm's two tables; the forward pass kept the first."""
    log_alpha = next(each for each in args if isinstance(each, torch.Tensor) and each.dim() == 3)
    with device.rule("table of the alignment"):
        table = torch.empty_like(log_alpha)
    result = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
    del table
    return result


@kernel("_use_cudnn_ctc_loss.*", "_use_miopen_ctc_loss.*")
def use_another_ctc_loss(device: PythonCuda, *args: Any, **kwargs: Any) -> bool:
    """PyTorch's own kernel takes any lengths and types; cuDNN's would require more checks."""
    return False
