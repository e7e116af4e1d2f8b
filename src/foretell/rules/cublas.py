"""Which matrix products cuBLAS and cuBLASLt compute, and in which workspaces. Standard library only.

CUBLAS_WORKSPACE_CONFIG is a parameter: its value in the job's process counts, and rules mostly run in another one.
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
"""Workspace of a cuBLASLt product that does not share the one of cuBLAS."""
_WITH_A_BIAS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    num_bytes: int
    """Size of the cuBLAS workspace."""
    is_kept: bool
    """Each thread keeps one from its first product on; otherwise each product allocates and frees one."""
    is_shared: bool
    """cuBLASLt uses the kept workspace."""


def workspaces(capability: tuple[int, int], torch_version: Version, config: str = "") -> Workspaces:
    """`config`: CUBLAS_WORKSPACE_CONFIG of the job's process."""
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
    """Whether addmm is a single cuBLASLt call for product and sum; otherwise cuBLAS computes it. Shapes: a is rows x
    depth, b is depth x columns."""
    is_row = len(bias) == 1 and is_contiguous and beta == 1
    takes_bias = is_row or (is_contiguous and ANY_BIAS_IN_CUBLASLT.holds_in(torch_version))
    return takes_bias and dtype in _WITH_A_BIAS and rows > 1 and columns > 1 and depth > 0
