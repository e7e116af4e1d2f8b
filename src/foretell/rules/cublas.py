"""Which products of matrices cuBLAS and cuBLASLt compute, and in which workspaces. Standard library only.

The setting CUBLAS_WORKSPACE_CONFIG is a parameter: it counts where the job runs, which is seldom where a rule does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..versions import (
    ANY_BIAS_IN_CUBLASLT,
    LARGE_WORKSPACE_AFTER_HOPPER,
    SHARED_WORKSPACE,
    WORKSPACE_PER_CALL,
    Version,
)

_KIB, _MIB = 1 << 10, 1 << 20
CUBLASLT_BYTES = 1 * _MIB
"""Of a product by cuBLASLt that has a workspace of its own."""
_WITH_A_BIAS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    num_bytes: int
    """Of cuBLAS."""
    is_kept: bool
    """By each thread, from its first product on; else each product takes one and gives it back."""
    is_shared: bool
    """cuBLASLt works in the one that is kept."""


def workspaces(capability: tuple[int, int], torch_version: Version, config: str = "") -> Workspaces:
    """`config`: CUBLAS_WORKSPACE_CONFIG of the process that computes them."""
    is_kept = not WORKSPACE_PER_CALL.holds_in(torch_version)
    return Workspaces(
        num_bytes=workspace_bytes(capability, torch_version, config),
        is_kept=is_kept,
        is_shared=is_kept and SHARED_WORKSPACE.holds_in(torch_version),
    )


def workspace_bytes(capability: tuple[int, int], torch_version: Version, config: str = "") -> int:
    """at::cuda::getChosenWorkspaceSize."""
    given = re.findall(r":(\d+):(\d+)", config)
    if given:
        return sum(int(kib) * _KIB * int(count) for kib, count in given)
    is_hopper = capability == (9, 0)
    is_large = is_hopper or (capability > (9, 0) and LARGE_WORKSPACE_AFTER_HOPPER.holds_in(torch_version))
    return 32 * _MIB if is_large else 2 * 4096 * _KIB + 8 * 16 * _KIB


def is_bias_added_by_cublaslt(
    torch_version: Version,
    *,
    bias: Sequence[int],
    is_contiguous: bool,
    beta: float,
    rows: int,
    columns: int,
    depth: int,
    dtype: str,
) -> bool:
    """Of addmm: whether the product and the sum are one call. Else cuBLAS computes it. Shapes: a of rows x depth, b of
    depth x columns."""
    is_row = len(bias) == 1 and is_contiguous and beta == 1
    takes_bias = is_row or (is_contiguous and ANY_BIAS_IN_CUBLASLT.holds_in(torch_version))
    return takes_bias and dtype in _WITH_A_BIAS and rows > 1 and columns > 1 and depth > 0
