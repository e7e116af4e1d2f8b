"""Operators that make a sparse tensor: the number of entries is supplied while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import operators
from .device_bytes import Answers, DeviceBytes
from .operators import torch
from .sparse import (
    CONSTRUCTORS,
    CONVERSIONS,
    INTERSECTIONS,
    ONE_OPERAND,
    PRODUCTS,
    STRUCTURAL,
    Patterns,
    is_sparse,
    most_entries,
    num_entries,
)
from .tensors import no_subclasses, tensors_in
from .unknown import UnknownReads


class SparseOperators:
    def __init__(
        self, device: DeviceBytes, answers: Answers, unknown: UnknownReads, is_known: Callable[[Any], bool]
    ) -> None:
        self._bytes = device
        self._answers = answers
        self._unknown = unknown
        self._is_known = is_known
        self._patterns = Patterns(device, is_known)
        self._are_in_use = False

    def may_concern(self, func: Any) -> bool:
        """Costs a script without sparse tensors one set lookup."""
        return self._are_in_use or func in operators.MAKES_SPARSE

    def is_one(self, func: Any, args: Any) -> bool:
        name = getattr(func, "__name__", "")
        self._are_in_use = self._are_in_use or name in CONSTRUCTORS
        if name not in STRUCTURAL:
            return False
        tensors = list(tensors_in(args))
        if not any(each.is_cuda or name in ("to", "cuda") for each in tensors):
            return False
        # With a dense operand the result is dense, or has the entries of the sparse one.
        operands = tensors[:1] if name in ONE_OPERAND else tensors[:2]
        is_one = name in CONVERSIONS or all(map(is_sparse, operands))
        self._are_in_use = self._are_in_use or is_one
        return is_one

    def with_size(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Add the size: without it torch reads the largest indices back."""
        if getattr(func, "__name__", "") != "sparse_coo_tensor" or len(args) != 2 or kwargs.get("size") is not None:
            return kwargs
        indices, values = args
        if not indices.is_cuda:
            return kwargs
        if not self._is_known(indices):
            self._unknown.note(func, indices, "decides a size, which is assumed to be 0")
            return kwargs
        with no_subclasses(), torch.no_grad():
            largest = self._bytes.alias(indices).amax(1) if indices.numel() else indices.new_zeros(0, device="cpu")
        return {**kwargs, "size": (*(int(each) + 1 for each in largest), *values.shape[1:])}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.__name__
        with no_subclasses(), torch.no_grad():
            host = self._patterns.result(func, name, args, kwargs)
        tensors = list(tensors_in(args))
        if host is not None:
            count = num_entries(host) if is_sparse(host) else 0
        else:
            most = most_entries(name, [each for each in tensors if is_sparse(each)], tensors)
            count = self._unknown.assume_size(func, tensors[0], most)
        if name in INTERSECTIONS:
            self._unknown.caveat_once(
                "an elementwise product of sparse tensors is assumed to have as many entries as the smaller factor"
            )
        with self._answers.given(count):
            out = func(*args, **kwargs)
        if host is not None:
            with no_subclasses(), torch.no_grad():
                self._patterns.know(out, host)
        if name in PRODUCTS and getattr(out, "grad_fn", None) is not None:
            self._multiply_in_backward(tensors, host, out)
        return out

    def _multiply_in_backward(self, factors: list[Any], product: Any, out: Any) -> None:
        """Two products, each with a transposed factor, which is coalesced again."""
        least = min(map(num_entries, factors))
        try:
            with no_subclasses(), torch.no_grad():
                most = self._patterns.most_in_backward(factors, product)
        except Exception:  # unknown indices: the virtual GPU assumes the maximum, and says so
            most = None
        self._unknown.caveat_once(
            "the backward pass of a sparse matrix product computes two more; both are assumed as large as the larger"
        )
        self._answers.give_in_backward(least, out)
        if most is not None:
            out.grad_fn.register_prehook(lambda _: self._bytes.answer_entries(most, True))
            out.grad_fn.register_hook(lambda *_: self._bytes.answer_entries(0, False))
