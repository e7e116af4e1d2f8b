"""Contents of device memory, where known, and operators repeated on the host.

Small tensors, and integers and booleans, choose the code path (masks, lengths, `.item()`). An operator with known
inputs is computed on the CPU, on the bytes kept for each block. With `--execute` every tensor has its bytes.
"""

from __future__ import annotations

from typing import Any

from .equivalents import equivalents
from .memory import address_of
from .nested import mapped, tensors_in
from .signature import Signature

MAX_FLOATS = 1 << 16
MAX_INTEGERS = 1 << 22
"""Elements."""


class Values:
    def __init__(self, torch: Any, memory: Any, *, keeps_all: bool) -> None:
        self._torch = torch
        self._memory = memory
        self._host = memory.host
        self.keeps_all = keeps_all
        self._integers = {torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
        self._random_state: Any = None
        self._equivalents = equivalents() if keeps_all else {}
        self.num_computed = 0
        self.failed: dict[str, str] = {}
        """Operators that could not be repeated on the host, and why."""

    @property
    def has_any(self) -> bool:
        return self.keeps_all or bool(self._host)

    def is_known(self, tensor: Any) -> bool:
        return self.keeps_all or address_of(tensor) in self._host or tensor.numel() == 0

    def may_be_known(self, tensor: Any) -> bool:
        if self.keeps_all:
            return True
        most = MAX_INTEGERS if tensor.dtype in self._integers else MAX_FLOATS
        return bool(tensor.numel() <= most)

    def forget(self, tensor: Any) -> None:
        if not self.keeps_all:
            self._host.pop(address_of(tensor), None)

    def on_host(self, tensor: Any) -> Any:
        """A CPU tensor over the same bytes, allocated if needed."""
        torch = self._torch
        address = address_of(tensor)
        kept = self._host.get(address)
        if kept is None:
            block = self._memory.block_of(tensor)
            kept = torch.UntypedStorage(block.requested if block is not None else 0)
            if block is not None:
                self._host[address] = kept
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(kept, tensor.storage_offset(), tensor.size(), tensor.stride())

    def settle(
        self, operator: Any, signature: Signature, args: Any, kwargs: Any, tensors: list[Any], results: list[Any]
    ) -> None:
        """After a kernel: if everything it read is known, compute what it wrote on the host, else forget that.
        `tensors` are those among its arguments."""
        if tensors and not self.has_any and not signature.overwrites:
            return
        tensor_class = self._torch.Tensor
        written = list(tensors_in([signature.argument(name, args, kwargs) for name in signature.written], tensor_class))
        read = tensors
        if signature.overwrites:
            identities = {id(each) for each in written}
            read = [each for each in tensors if id(each) not in identities]
        if all(not each.is_cuda or self.is_known(each) for each in read):
            outs = written or list(tensors_in(results, tensor_class))
            has_values = not signature.is_empty and (bool(read) or signature.depends_on_floats)
            if (written or has_values) and self._may_all_be_known(outs):
                args = signature.without_numbers(args)
                if self._repeat(operator, args, kwargs, outs, is_in_place=bool(written)):
                    return
        for each in written:
            if each.is_cuda:
                self.forget(each)

    def _may_all_be_known(self, outs: list[Any]) -> bool:
        return bool(outs) and all(self.may_be_known(each) for each in outs)

    def _repeat(self, operator: Any, args: Any, kwargs: Any, outs: list[Any], *, is_in_place: bool) -> bool:
        """Computes the operator on the host and keeps the results for `outs`. All its inputs must be known."""
        self.num_computed += 1
        try:
            result = self.compute(operator, args, kwargs)
        except Exception as error:  # the CPU has no kernel for this type
            self.failed.setdefault(str(operator), f"{type(error).__name__}: {error}")
            return False
        if not is_in_place:
            # Scripts do not use the results after these: seeds, sums for the backward pass.
            for out, value in zip(outs, tensors_in(result, self._torch.Tensor), strict=False):
                if out.shape == value.shape:
                    self.on_host(out).copy_(value)
        return True

    def compute(self, operator: Any, args: Any, kwargs: Any) -> Any:
        torch = self._torch
        tags = operator.tags
        operator = self._equivalents.get(operator, operator)
        host_args = [mapped(value, self._to_host) for value in args]
        host_kwargs = {name: mapped(value, self._to_host) for name, value in kwargs.items()}
        if torch.Tag.nondeterministic_seeded not in tags:
            return operator(*host_args, **host_kwargs)
        # The card has its own random generator: the host's must not advance.
        host_state = torch.get_rng_state()
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)
        try:
            return operator(*host_args, **host_kwargs)
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(host_state)

    def _to_host(self, value: Any) -> Any:
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return self.on_host(value) if value.is_cuda else value
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            return None
        return value
