"""Sizes, strides and types of an operator's results, from torch's own shape functions (the device `meta`)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .nested import mapped
from .signature import Signature

_WITHOUT_RULE = re.compile(
    r"(?!aten::)|aten::(_?linalg_(?!vector_norm)|_fft|cholesky|lu_|triangular_solve|ormqr|topk|_embedding_bag|"
    r"scatter_reduce|index_reduce|_grouped_mm|_scaled_mm)"
)
"""Operators whose kernels take extra memory, as seen on the virtual GPU; nothing is known of other packages'
operators."""


class UnknownOperatorError(NotImplementedError):
    pass


class Shapes(NamedTuple):
    results: list[Any]
    """(size, stride, type) of a tensor, a list of these, or another value; None for a returned argument."""
    resized: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    """Arguments that get a new size and stride."""


def refuse_other_card(index: int | None) -> None:
    """Raise the driver's error: there is only one card."""
    if index is not None and index > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index}; there is one card, cuda:0)")


class ShapeFunctions:
    """Caches results by operator and argument shapes."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensor = torch.Tensor
        self._known: dict[Any, Shapes] = {}
        self.num_without_rule: dict[Any, int] = {}
        """Calls of operators whose kernels take extra memory that no rule covers."""

    def of(self, operator: Any, signature: Signature, args: Any, kwargs: Any, tensors: list[Any]) -> Shapes:
        """Shapes of the results. Also appends the tensors among the arguments to `tensors`."""
        key = (operator, *[self._key(value, tensors, signature) for value in args])
        if kwargs:
            key = (*key, *[(name, self._key(value, tensors, signature)) for name, value in kwargs.items()])
        if operator in self.num_without_rule:
            self.num_without_rule[operator] += 1
        shapes = self._known.get(key)
        if shapes is None:
            if _WITHOUT_RULE.match(operator._schema.name):
                self.num_without_rule.setdefault(operator, 1)
            shapes = self._known[key] = self._infer(operator, signature, args, kwargs)
        return shapes

    def _key(self, value: Any, tensors: list[Any], signature: Signature) -> Any:
        if isinstance(value, self._tensor):
            tensors.append(value)
            if value.is_cuda:
                return (value.size(), value.stride(), value.dtype)
            if value.dim() == 0:
                return ("number", self._torch.result_type(tensors[0], value), value.dtype)
            return ("host", value.size(), value.dtype)
        if type(value) is float:
            return value if signature.depends_on_floats else "float"
        if isinstance(value, (list, tuple)):
            return tuple([self._key(each, tensors, signature) for each in value])
        if isinstance(value, self._torch.Generator):
            return None
        if isinstance(value, self._torch.device):
            refuse_other_card(value.index)
        return (type(value), value)

    def _infer(self, operator: Any, signature: Signature, args: Any, kwargs: Any) -> Shapes:
        args = signature.without_numbers(args)
        try:
            return self._infer_on_meta(operator, signature, args, kwargs, keeps_numbers=True)
        except RuntimeError:
            if not any(isinstance(each, self._tensor) and not each.is_cuda and not each.dim() for each in args):
                raise
        # Some shape functions require all tensors on one device.
        return self._infer_on_meta(operator, signature, args, kwargs, keeps_numbers=False)

    def _infer_on_meta(
        self, operator: Any, signature: Signature, args: Any, kwargs: Any, *, keeps_numbers: bool
    ) -> Shapes:
        made: dict[int, Any] = {}

        def to_meta(value: Any) -> Any:
            return self._to_meta(value, made, signature, keeps_numbers)

        meta_args = [mapped(value, to_meta) for value in args]
        meta_kwargs = {name: mapped(value, to_meta) for name, value in kwargs.items()}
        result = self._run(operator, meta_args, meta_kwargs)
        results = list(result) if isinstance(result, tuple) and len(signature.returns) > 1 else [result]
        pairs = zip(signature.returns, results if signature.returns else [], strict=True)
        resized = []
        for name in signature.written:
            before, after = signature.argument(name, args, kwargs), signature.argument(name, meta_args, meta_kwargs)
            if isinstance(before, self._tensor) and before.size() != after.size():
                resized.append((name, tuple(after.size()), tuple(after.stride())))
        return Shapes([self._described(each) if argument is None else None for argument, each in pairs], resized)

    def _to_meta(self, value: Any, made: dict[int, Any], signature: Signature, keeps_numbers: bool) -> Any:
        torch = self._torch
        if isinstance(value, torch.device):
            return torch.device("meta")
        if isinstance(value, torch.Generator):
            return None
        if not isinstance(value, self._tensor):
            return value
        if not value.is_cuda and value.dim() == 0 and keeps_numbers:
            return value  # a number, with weaker type promotion
        if value.device.type == "cpu" and value.dim() and not signature.may_be_on_host:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            )
        if id(value) not in made:
            made[id(value)] = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return made[id(value)]

    def _run(self, operator: Any, args: Any, kwargs: Any) -> Any:
        try:
            return operator(*args, **kwargs)
        except NotImplementedError as error:
            decompositions = self._torch._decomp.decomposition_table
            if operator in decompositions:
                return decompositions[operator](*args, **kwargs)
            if self._torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU"):
                self.num_without_rule.setdefault(operator, 1)
                return self._run_on_zeros(operator, args, kwargs)
            raise UnknownOperatorError(f"{operator}: {error}") from None
        except RuntimeError as error:
            if "data-dependent" in str(error):  # message of other packages' operators
                raise UnknownOperatorError(f"{operator}: {error}") from None
            raise

    def _run_on_zeros(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """For the few operators without a shape function: shapes from the CPU's kernel."""
        torch = self._torch
        made: dict[int, Any] = {}

        def to_host(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            if not isinstance(value, self._tensor) or value.device.type != "meta":
                return value
            if id(value) not in made:
                zeros = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu").zero_()
                made[id(value)] = zeros
            return made[id(value)]

        host_args = [mapped(value, to_host) for value in args]
        host_kwargs = {name: mapped(value, to_host) for name, value in kwargs.items()}
        try:
            return operator(*host_args, **host_kwargs)
        except Exception as error:
            raise UnknownOperatorError(f"{operator}: {error}") from None

    def _described(self, value: Any) -> Any:
        if isinstance(value, self._tensor):
            return (tuple(value.size()), tuple(value.stride()), value.dtype)
        if isinstance(value, (list, tuple)):
            return [self._described(each) for each in value]
        return value
