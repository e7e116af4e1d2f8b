"""Sums and the like: blocks of threads that share a result put what they have of it into a buffer."""

from __future__ import annotations

from typing import Any

from ..recording import foretell_module


def add(device: Any) -> None:
    torch = device.torch
    aten = torch.ops.aten
    threads_per_sm = int(device.card["threads_per_sm"])
    reduction_buffer = foretell_module("overhead.kernels").reduction_buffer

    def besides(operator: Any, position: int, bytes_of: Any) -> None:
        def take(x: Any, *args: Any, **kwargs: Any) -> None:
            dims = args[position] if len(args) > position else kwargs.get("dim")
            if x.numel() == 0:
                return
            taken = reduction_buffer(x.size(), x.stride(), dims, bytes_of(x), device.num_sms, threads_per_sm)
            if taken is not None:
                with device.rule("partial sums"):
                    kept = [device.memory.empty((size,), (1,), torch.uint8) for size in taken]
                    del kept

        device.besides[operator] = take

    def of_sum(x: Any) -> int:
        return 8 if x.dtype is torch.float64 or not x.dtype.is_floating_point else 4

    def of_element(x: Any) -> int:
        return int(x.dtype.itemsize)

    for operator in (aten.sum.dim_IntList, aten.mean.dim, aten.nansum.default):
        besides(operator, 0, of_sum)
    besides(aten.linalg_vector_norm.default, 1, of_sum)
    for operator in (aten.amax.default, aten.amin.default):
        besides(operator, 0, of_element)

    def loss(operator: Any) -> None:
        def make(x: Any, target: Any, reduction: int = 1, *more: Any) -> Any:
            """Loss.cpp: the result begins as large as the terms, which come beside it, and its block stays so large."""
            if not reduction:
                return device.dispatch.general(operator, (x, target, reduction, *more), {})
            shape, dtype = torch.broadcast_shapes(x.shape, target.shape), torch.result_type(x, target)
            out, terms = (torch.empty(shape, dtype=dtype, device=x.device) for _ in range(2))
            device.besides[aten.mean.dim](terms)
            return out.flatten()[:1].view(()) if out.numel() else torch.empty((), dtype=dtype, device=x.device)

        device.kernels[operator] = make

    for operator in (aten.mse_loss.default, aten.smooth_l1_loss.default):
        loss(operator)
