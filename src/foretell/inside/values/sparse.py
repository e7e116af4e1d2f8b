"""Tracks the indices of sparse tensors on the device.

The indices of a sparse tensor decide how many entries a sum, a product or a coalesced tensor has, and the operator
reads that count back from the GPU. Indices are integers, so they are known like other integers: beforehand the operator
is repeated on the host, with ones for the values, to get the count, and its indices become those of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .device_bytes import DeviceBytes
from .operators import torch

Tensor: Any = torch.Tensor

CONSTRUCTORS = frozenset({"sparse_coo_tensor", "sparse_csr_tensor", "sparse_compressed_tensor"})
CONVERSIONS = frozenset(
    {"to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc"}
)
PRODUCTS = frozenset({"mm", "_sparse_mm", "matmul", "__matmul__", "__rmatmul__"})
SUMS = frozenset({"add", "__add__", "__radd__", "sub", "__sub__"})
INTERSECTIONS = frozenset({"mul", "__mul__", "__rmul__"})
KEEPS_INDICES = frozenset({"sparse_sampled_addmm", "clone"})
ONE_OPERAND = KEEPS_INDICES | {"index_select"}
"""All their other arguments are dense."""
STRUCTURAL = CONVERSIONS | PRODUCTS | SUMS | INTERSECTIONS | ONE_OPERAND | {
    "coalesce", "_sparse_sum", "sum", "t", "transpose", "to", "cuda",
}  # fmt: skip
"""Names of functions that make a sparse tensor with new indices from others."""
_PLAIN_INDICES = {"sparse_csr": ("crow_indices", "col_indices"), "sparse_csc": ("ccol_indices", "row_indices")}
_PLAIN_INDICES |= {"sparse_bsr": _PLAIN_INDICES["sparse_csr"], "sparse_bsc": _PLAIN_INDICES["sparse_csc"]}


def is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is not torch.strided


def index_tensors(tensor: Any) -> list[Any]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices()]
    return [getattr(tensor, name)() for name in _PLAIN_INDICES[str(tensor.layout).removeprefix("torch.")]]


def num_entries(tensor: Any) -> int:
    return int(tensor._nnz())


def most_entries(name: str, sparse: list[Any], dense: list[Any]) -> int:
    """Upper bound for the entries of the result."""
    if name in PRODUCTS and len(sparse) == 2:
        (rows, _), (_, columns) = sparse[0].shape, sparse[1].shape
        return int(min(rows * columns, num_entries(sparse[0]) * min(columns, num_entries(sparse[1]))))
    if sparse:
        return sum(map(num_entries, sparse))
    return int(dense[0].numel())


class Patterns:
    def __init__(self, device_bytes: DeviceBytes, is_known: Callable[[Any], bool]) -> None:
        self._bytes = device_bytes
        self._is_known = is_known

    def result(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The operator's result for host tensors with the same indices; None if any indices are unknown."""
        try:
            if name in KEEPS_INDICES:
                return self.pattern(args[0].detach())
            if name in SUMS and all(each.layout is torch.sparse_coo for each in args):
                return _concatenated(*map(self.pattern, args))
            host_kwargs = {key: self._on_host(value, name) for key, value in kwargs.items()}
            return func(*(self._on_host(value, name) for value in args), **host_kwargs)
        except Exception:  # unknown, or not repeatable on the host
            return None

    def most_in_backward(self, factors: list[Any], product: Any) -> int:
        """Entries of the larger of the two products in the backward pass of a product."""
        left, right = (self.pattern(each.detach()) for each in factors)
        return max(num_entries(product @ right.t()), num_entries(left.t() @ product))

    def know(self, out: Any, host: Any) -> None:
        """Record the indices of a result on the device."""
        if not (is_sparse(host) and is_sparse(out) and out.is_cuda and host.layout is out.layout):
            return
        for to, source in zip(index_tensors(out), index_tensors(host), strict=True):
            if to.shape == source.shape:
                self._bytes.alias(to).copy_(source)
                self._bytes.know(to)

    def _on_host(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda")):
            return "cpu"
        if not isinstance(value, Tensor):
            return value
        if not value.is_cuda and not is_sparse(value):
            return value
        if not is_sparse(value):
            if not self._is_known(value):
                raise LookupError(name)
            return self._bytes.alias(value.detach())
        return self.pattern(value.detach())

    def pattern(self, tensor: Any) -> Any:
        """A host tensor with the same indices, and ones as values; dense dimensions of the entries are dropped."""
        indices = index_tensors(tensor)
        if not all(not each.is_cuda or self._is_known(each) for each in indices):
            raise LookupError("indices")
        on_host = [self._bytes.alias(each) if each.is_cuda else each for each in indices]
        if tensor.layout is torch.sparse_coo:
            ones = torch.ones(num_entries(tensor))
            shape = tensor.shape[: tensor.sparse_dim()]
            return torch.sparse_coo_tensor(on_host[0], ones, shape)._coalesced_(tensor.is_coalesced())
        ones = torch.ones(tensor.values().shape)
        return torch.sparse_compressed_tensor(*on_host, ones, tensor.shape, layout=tensor.layout)


def _concatenated(left: Any, right: Any) -> Any:
    """CUDA adds two sparse tensors by concatenating their entries."""
    indices = torch.cat([left._indices(), right._indices()], 1)
    return torch.sparse_coo_tensor(indices, torch.ones(indices.shape[1]), left.shape)
