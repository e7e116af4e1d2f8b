"""Products of matrices: the workspaces of cuBLAS and cuBLASLt."""

from __future__ import annotations

import threading
from typing import Any

from ..recording import foretell_module


def add(device: Any) -> None:
    torch, memory = device.torch, device.memory
    aten = torch.ops.aten
    besides = device.besides
    rules = foretell_module("overhead.kernels")
    size = rules.cublas_workspace(device.capability, device.version)
    is_kept = device.version < rules.EAGER_WORKSPACES
    is_shared = is_kept and device.version >= rules.SHARED_WORKSPACES
    kept: dict[tuple[int, int], Any] = {}

    def cublas() -> Any:
        device.library("cublasCreate_v2")
        with device.rule("cuBLAS workspace"):
            if not is_kept:
                return memory.empty((size,), (1,), torch.uint8)
            key = (threading.get_ident(), memory.where.stream)
            if key not in kept:
                kept[key] = memory.empty((size,), (1,), torch.uint8)
        return None

    def operands(*tensors: Any) -> list[Any]:
        """cuBLAS reads rows or columns; anything else is copied."""
        with device.rule("copy of an operand"):
            return [each.contiguous() for each in tensors if not _is_readable(each)]

    def lt() -> Any:
        if is_shared:
            return cublas()
        device.library("cublasLtMatmul")
        with device.rule("cuBLASLt workspace"):
            taken = memory.empty((rules.CUBLASLT_BYTES,), (1,), torch.uint8)
        if is_kept:
            cublas()  # the handle of cuBLASLt is that of cuBLAS, and comes with its workspace
        return taken

    def addmm(bias: Any, a: Any, b: Any, **kwargs: Any) -> Any:
        """With a bias of one row the product and the sum are one call of cuBLASLt; in newer versions with any that is
        contiguous."""
        out = torch.empty((a.size(0), b.size(1)), dtype=a.dtype, device=a.device)
        is_plain_bias = bias.dim() == 1 and bias.is_contiguous() and kwargs.get("beta", 1) == 1
        is_fused = (
            (is_plain_bias or (not is_kept and bias.is_contiguous()))
            and a.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
            and a.size(0) > 1
            and b.size(1) > 1
            and a.numel() > 0
            and b.numel() > 0
        )
        kept_until_end = operands(a, b)
        kept_until_end.append(lt() if is_fused else cublas())
        return out

    def product(operator: Any) -> Any:
        def take(*args: Any, **kwargs: Any) -> Any:
            a, b = [each for each in args if isinstance(each, torch.Tensor)][-2:]
            if a.dim() == 3 and a.size(2) == 1 and operator is aten.bmm.default:
                return None  # an outer product is a multiplication of elements
            return operands(a, b), cublas()

        besides[operator] = take

    device.kernels[aten.addmm.default] = addmm
    for name in ("mm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addmv", "addmv_", "dot", "vdot", "addbmm", "addbmm_"):
        packet = getattr(aten, name)
        for overload in packet.overloads():
            product(getattr(packet, overload))


def _is_readable(matrix: Any) -> bool:
    if matrix.dim() < 2 or matrix.numel() == 0:
        return True
    rows, columns = matrix.size(-2), matrix.size(-1)
    by_row, by_column = matrix.stride(-2), matrix.stride(-1)
    return bool((by_column == 1 and by_row >= max(1, columns)) or (by_row == 1 and by_column >= max(1, rows)))
