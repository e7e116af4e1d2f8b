"""Matrix products: copies of operands, and the workspaces of cuBLAS and cuBLASLt (cublas.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....protocol.native_log import CUDA_DATA_TYPES, MATRIX_PRODUCT
from ....rules.cublas import is_bias_added_by_cublaslt
from .registration import Tensor, extra_memory, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda


@kernel("addmm")
def addmm(device: PythonCuda, bias: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
    """cuBLASLt computes product and sum in one call for a bias of one row; in newer versions for any contiguous one."""
    out = torch.empty((a.size(0), b.size(1)), dtype=a.dtype, device=a.device)
    is_fused = is_bias_added_by_cublaslt(
        device.version,
        bias=bias.shape,
        is_contiguous=bias.is_contiguous(),
        beta=kwargs.get("beta", 1),
        rows=a.size(0),
        columns=b.size(1),
        depth=a.size(1),
        dtype=str(a.dtype).removeprefix("torch."),
    )
    kept_until_end = _copies_of_operands(device, a, b)
    _log(device, "cublasLtMatmul" if is_fused and not device.cublas.shares_workspaces else "cublasGemmEx", a, b)
    kept_until_end.append(device.cublas.lt_workspace() if is_fused else device.cublas.workspace())
    return out


@extra_memory("bmm")
def bmm(device: PythonCuda, a: Tensor, b: Tensor) -> Any:
    if a.dim() == 3 and a.size(2) == 1:
        return None  # an outer product is an elementwise multiplication
    return product(device, a, b)


@extra_memory(
    "mm.*", "addmm_.*", "bmm.out", "bmm.dtype", "bmm.dtype_out", "baddbmm.*", "baddbmm_.*", "addmv.*", "addmv_.*",
    "dot.*", "vdot.*", "addbmm.*", "addbmm_.*",
)  # fmt: skip
def product(device: PythonCuda, *args: Any, **kwargs: Any) -> Any:
    a, b = [each for each in args if isinstance(each, torch.Tensor)][-2:]
    _log(device, "cublasGemmStridedBatchedEx" if a.dim() == 3 else "cublasGemmEx", a, b)
    return _copies_of_operands(device, a, b), device.cublas.workspace()


def _log(device: PythonCuda, function: str, a: Tensor, b: Tensor) -> None:
    """cuBLAS is column-major: its m is the number of columns of PyTorch's result."""
    data_type = CUDA_DATA_TYPES.get(str(a.dtype).removeprefix("torch."))
    if data_type is None:
        device.library(function)
        return
    is_batch = a.dim() == 3
    device.library(
        function, MATRIX_PRODUCT, m=b.size(-1) if b.dim() > 1 else 1, n=a.size(-2) if a.dim() > 1 else 1,
        k=a.size(-1), batch_count=a.size(0) if is_batch else 1, input_type=data_type, output_type=data_type,
    )  # fmt: skip


def _copies_of_operands(device: PythonCuda, *tensors: Tensor) -> list[Tensor]:
    """cuBLAS reads row-major and column-major matrices; any other operand is copied."""
    with device.rule("copy of an operand"):
        return [each.contiguous() for each in tensors if not _is_readable(each)]


def _is_readable(matrix: Tensor) -> bool:
    if matrix.dim() < 2 or matrix.numel() == 0:
        return True
    rows, columns = matrix.size(-2), matrix.size(-1)
    by_row, by_column = matrix.stride(-2), matrix.stride(-1)
    return bool((by_column == 1 and by_row >= max(1, columns)) or (by_row == 1 and by_column >= max(1, rows)))
