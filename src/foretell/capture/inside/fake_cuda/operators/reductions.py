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
            copy = converted(operator, x, kwargs.get("dtype"))
            x = x if copy is None else copy
            taken = reduction_buffer(x.size(), x.stride(), dims, bytes_of(x), device.num_sms, threads_per_sm)
            if taken is not None:
                with device.rule("partial sums"):
                    kept = [device.memory.empty((size,), (1,), torch.uint8) for size in taken]
                    del kept

        device.besides[operator] = take

    def converted(operator: Any, x: Any, dtype: Any) -> Any:
        """ReduceOps.cpp, make_reduction: a copy in the type of the result, unless the kernel converts by itself."""
        if dtype is None and operator in sums and not (x.dtype.is_floating_point or x.dtype.is_complex):
            dtype = torch.int64
        if dtype in (None, x.dtype) or (dtype is torch.float32 and x.dtype in (torch.float16, torch.bfloat16)):
            return None
        with device.rule("copy in the type of the sum"):
            return torch.empty_like(x, dtype=dtype)

    sums = {aten.sum.dim_IntList, aten.nansum.default, aten.prod.default, aten.prod.dim_int}

    def of_sum(x: Any) -> int:
        return 8 if x.dtype is torch.float64 or not x.dtype.is_floating_point else 4

    def of_element(x: Any) -> int:
        return int(x.dtype.itemsize)

    def of_moments(x: Any) -> int:
        """Mean, sum of squares and two counts."""
        return 32 if x.dtype is torch.float64 else 16

    def of_place(x: Any) -> int:
        """The largest so far, and where it is."""
        return 16

    for operator in (*sums, aten.mean.dim):
        besides(operator, 0, of_sum)
    for name in ("var", "std", "var_mean", "std_mean"):
        besides(getattr(aten, name).correction, 0, of_moments)
    for operator in (aten.argmax.default, aten.argmin.default):
        besides(operator, 0, of_place)
    besides(aten.linalg_vector_norm.default, 1, of_sum)
    for operator in (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default):
        besides(operator, 0, of_element)
    device.functions[aten.count_nonzero.dim_IntList] = lambda x, dims: (x != 0).sum(dims)

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

    def huber_loss(x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Any:
        """Here the terms come first, and are let go of."""
        shape = torch.broadcast_shapes(x.shape, target.shape)
        terms = torch.empty(shape, dtype=torch.result_type(x, target), device=x.device)
        if not reduction:
            return terms
        return terms.mean() if reduction == 1 else terms.sum()

    def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
        """Loss.cu: the terms become the result, whose block stays as large as they were."""
        terms = torch.empty_like(x)
        if not reduction or not terms.numel():
            return terms if not reduction else torch.empty((), dtype=x.dtype, device=x.device)
        terms.mean()
        return terms.flatten()[:1].view(())

    device.kernels[aten.huber_loss.default] = huber_loss
    device.kernels[aten.binary_cross_entropy.default] = binary_cross_entropy
