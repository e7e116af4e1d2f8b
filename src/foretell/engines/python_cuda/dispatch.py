"""Runs when torch calls an operator on the device `cuda`.

torch itself decides which operators those are: its dispatcher, autograd, autocast and composite operators run
unchanged. Operators with CUDA kernels arrive here, through the key `CUDA`. Sizes, strides and types of the results come
from torch's own shape functions (shapes.py); where CUDA's kernels differ, and for the extra memory they take while they
run, there are rules, one function per operator (operators/).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from .memory import Memory
from .nested import tensors_in
from .shapes import ShapeFunctions, UnknownOperatorError
from .signature import Signature
from .values import Values

Table = dict[Any, Callable[..., Any]]
"""By operator."""


class Dispatch:
    def __init__(self, torch: Any, memory: Memory, values: Values, refuse: Callable[[str], None]) -> None:
        self._torch = torch
        self._tensor = torch.Tensor
        self._memory = memory
        self._values = values
        self._refuse = refuse
        self.functions: Table = {}
        """Called instead of the operator: call other operators, or handle values themselves."""
        self.kernels: Table = {}
        """Make the results where the general path would make them differently."""
        self.extra_memory: Table = {}
        """Allocate the CUDA kernel's extra memory, once the results are made."""
        self.shapes = ShapeFunctions(torch)
        self._signatures: dict[Any, Signature] = {}
        self._on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def table(self, kind: Literal["function", "kernel", "extra_memory"]) -> Table:
        return {"function": self.functions, "kernel": self.kernels, "extra_memory": self.extra_memory}[kind]

    # ---- called by torch ---------------------------------------------------------------------------------------------

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        where = self._memory.where
        outer = where.operator, where.kernel, where.kernel_reason
        if where.operator is None:
            where.operator = operator
        try:
            function = self.functions.get(operator)
            if function is not None:
                return function(*args, **kwargs)
            kernel = self.kernels.get(operator)
            if kernel is not None:
                return self._call_kernel(kernel, operator, args, kwargs)
            return self.general(operator, args, kwargs)
        except UnknownOperatorError:
            self._refuse(str(operator))
            raise
        finally:
            where.operator, where.kernel, where.kernel_reason = outer

    def refuse_layout(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse(f"{operator} on sparse or quantized tensors")
        raise UnknownOperatorError(f"{operator} on sparse or quantized tensors")

    def composite(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """Call torch's device-independent composite implementation, which is registered for the CPU."""
        return operator.redispatch(self._on_cpu, *args, **kwargs)

    def _call_kernel(self, kernel: Callable[..., Any], operator: Any, args: Any, kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        self._memory.allocator.launch()
        if self._values.has_any:
            tensors = list(tensors_in((args, tuple(kwargs.values())), self._tensor))
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            self._values.settle(operator, self._signature(operator), args, kwargs, tensors, results)
        return result

    def general(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """The path of operators without a function or kernel of their own."""
        signature = self._signature(operator)
        if signature.is_view:
            return self.composite(operator, *args, **kwargs)
        tensors: list[Any] = []
        shapes = self.shapes.of(operator, signature, args, kwargs, tensors)
        for name, size, stride in shapes.resized:
            self.resize(signature.argument(name, args, kwargs), size, stride)
        results = [
            self._made(described) if argument is None else signature.argument(argument, args, kwargs)
            for argument, described in zip(signature.returns, shapes.results, strict=True)
        ]
        extra_memory = self.extra_memory.get(operator)
        if extra_memory is not None:
            extra_memory(*args, **kwargs)
        self._memory.allocator.launch()
        self._values.settle(operator, signature, args, kwargs, tensors, results)
        if len(results) == 1:
            return results[0]
        return tuple(results) if results else None

    def _signature(self, operator: Any) -> Signature:
        signature = self._signatures.get(operator)
        if signature is None:
            signature = self._signatures[operator] = Signature(self._torch, operator)
        return signature

    # ---- results -----------------------------------------------------------------------------------------------------

    def _made(self, described: Any) -> Any:
        if type(described) is tuple:
            return self._memory.empty(*described)
        if type(described) is list:
            return [self._made(each) for each in described]
        return described

    def resize(self, tensor: Any, size: Any, stride: Any) -> None:
        """Resize a tensor. If its storage is too small, it gets a new one, allocated before the old one is freed, as in
        CUDA's own resize."""
        last = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) if 0 not in size else -1
        offset = tensor.storage_offset()
        needed = (offset + last + 1) * tensor.dtype.itemsize
        storage = tensor.untyped_storage()
        if needed > storage.nbytes():
            larger = self._memory.empty((needed,), (1,), self._torch.uint8)
            self._values.copy_block(tensor, larger)
            storage = larger.untyped_storage()
        self._torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
            self._on_cpu, tensor, storage, offset, list(size), list(stride)
        )
