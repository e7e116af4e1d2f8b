"""Contents of device memory, where known, and operators repeated on the host.

Small tensors, and integers and booleans, choose the code path (masks, lengths, `.item()`). An operator with known
inputs is computed on the CPU, on the bytes kept for each block. With `--execute` every tensor has its bytes.
"""

from __future__ import annotations

from typing import Any

from ...inside.values import partly
from .equivalents import equivalents
from .memory import address_of
from .nested import mapped, tensors_in
from .signature import Signature

MAX_FLOATS = 1 << 16
MAX_INTEGERS = 1 << 22
"""Elements."""
MAX_BYTES_IN_PART = 1 << 20
"""Of a larger block, all bytes are known or none."""


class Values:
    def __init__(self, torch: Any, memory: Any, *, keeps_all: bool) -> None:
        self._torch = torch
        self._memory = memory
        self._host = memory.host
        self._known = memory.known
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
        if self.keeps_all or tensor.numel() == 0:
            return True
        address = address_of(tensor)
        return address in self._host and (address not in self._known or bool(self.known_elements(tensor).all()))

    def is_known_in_part(self, tensor: Any) -> bool:
        return address_of(tensor) in self._known

    def known_elements(self, tensor: Any) -> Any:
        """A mask on the host: which elements are known."""
        address = address_of(tensor)
        if address in self._known:
            return self._mask_of(self._known[address], tensor).all(-1)
        is_known = self.keeps_all or address in self._host
        return self._torch.full(tensor.size(), is_known, dtype=self._torch.bool, device="cpu")

    def may_be_known(self, tensor: Any) -> bool:
        if self.keeps_all:
            return True
        most = MAX_INTEGERS if tensor.dtype in self._integers else MAX_FLOATS
        return bool(tensor.numel() <= most)

    def forget(self, tensor: Any) -> None:
        if not self.keeps_all and address_of(tensor) in self._host:
            self._mark(tensor, self._torch.zeros(tensor.size(), dtype=self._torch.bool, device="cpu"))

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
                if not self.keeps_all and not _is_whole(tensor, block):
                    self._known[address] = torch.zeros(block.requested, dtype=torch.bool, device="cpu")
        made = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return made.set_(kept, tensor.storage_offset(), tensor.size(), tensor.stride())

    def write(self, tensor: Any, value: Any, known: Any = None) -> None:
        """Set the contents, or those elements of them that a mask says are known."""
        if self.may_be_written(tensor):
            self.on_host(tensor).copy_(value)
            self._mark(tensor, known)

    def may_be_written(self, tensor: Any) -> bool:
        """Of a large block everything is known or nothing, so it cannot become known part by part."""
        block = self._memory.block_of(tensor)
        is_divisible = block is None or block.requested <= MAX_BYTES_IN_PART or _is_whole(tensor, block)
        return is_divisible or self.keeps_all or address_of(tensor) in self._host

    def copy_block(self, tensor: Any, larger: Any) -> None:
        """Know the bytes of a tensor's block at the start of a larger one, too."""
        torch, kept = self._torch, self._host.get(address_of(tensor))
        if kept is None or (larger.numel() > MAX_BYTES_IN_PART and not self.keeps_all):
            return
        length = kept.nbytes()
        self.on_host(larger)[:length] = torch.tensor([], dtype=torch.uint8, device="cpu").set_(kept)
        if not self.keeps_all:
            known = torch.zeros(larger.numel(), dtype=torch.bool, device="cpu")
            known[:length] = self._known.get(address_of(tensor), True)
            self._known[address_of(larger)] = known

    def _mark(self, tensor: Any, known: Any) -> None:
        """`known`: a mask; None: all."""
        torch, address, block = self._torch, address_of(tensor), self._memory.block_of(tensor)
        by_byte = self._known.get(address)
        if self.keeps_all or block is None or (by_byte is None and known is None):
            return
        if block.requested > MAX_BYTES_IN_PART:
            self._host.pop(address, None)
            return
        if by_byte is None:
            by_byte = torch.ones(block.requested, dtype=torch.bool, device="cpu")
        self._mask_of(by_byte, tensor).copy_(torch.tensor(True, device="cpu") if known is None else known.unsqueeze(-1))
        if bool(by_byte.all()):
            self._known.pop(address, None)
        else:
            self._known[address] = by_byte

    def _mask_of(self, by_byte: Any, tensor: Any) -> Any:
        """A view of a mask of the bytes of a block, with a last dimension for the bytes of an element."""
        size = tensor.dtype.itemsize
        strides = [stride * size for stride in tensor.stride()]
        return by_byte.as_strided([*tensor.size(), size], [*strides, 1], tensor.storage_offset() * size)

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
        elif self._know_in_part(operator, signature.without_numbers(args), kwargs, written or results):
            return
        for each in written:
            if each.is_cuda:
                self.forget(each)

    def _may_all_be_known(self, outs: list[Any]) -> bool:
        return bool(outs) and all(self.may_be_known(each) and self.may_be_written(each) for each in outs)

    def _know_in_part(self, operator: Any, args: Any, kwargs: Any, outs: list[Any]) -> bool:
        """Some elements may be known although not all that was read is."""
        torch = self._torch
        name = operator._schema.name.rsplit("::", 1)[-1]
        if len(outs) != 1 or not isinstance(outs[0], torch.Tensor) or not outs[0].is_cuda:
            return False
        if outs[0].dtype not in self._integers or not partly.is_listed(name):
            return False
        arguments = [
            partly.Argument(position, *self._with_mask(each))
            for position, value in [*enumerate(args), *((-1, value) for value in kwargs.values())]
            for each in tensors_in(value, torch.Tensor)
            if each.numel() <= partly.MAX_PARTLY
        ]
        if len(arguments) < len(list(tensors_in((args, tuple(kwargs.values())), torch.Tensor))):
            return False

        def call(tensors: list[Any]) -> Any:
            given = iter(tensors)

            def to_host(value: Any) -> Any:
                return next(given) if isinstance(value, torch.Tensor) else self._to_host(value)

            host_args = [mapped(value, to_host) for value in args]
            return operator(*host_args, **{name: mapped(value, to_host) for name, value in kwargs.items()})

        try:
            found = partly.compute(name, call, arguments)
        except Exception:  # the CPU has no kernel for this type
            return False
        if found is None or found[0].shape != outs[0].shape:
            return False
        self.write(outs[0], *found)
        return True

    def _with_mask(self, tensor: Any) -> tuple[Any, Any]:
        """Its contents, and which elements of them are known; None: all."""
        if not tensor.is_cuda:
            return tensor, None
        if self.is_known(tensor):
            return self.on_host(tensor), None
        if address_of(tensor) not in self._host:
            return self._torch.zeros(tensor.size(), dtype=tensor.dtype, device="cpu"), self.known_elements(tensor)
        return self.on_host(tensor), self.known_elements(tensor)

    def _repeat(self, operator: Any, args: Any, kwargs: Any, outs: list[Any], *, is_in_place: bool) -> bool:
        """Computes the operator on the host and keeps the results for `outs`. All its inputs must be known."""
        self.num_computed += 1
        try:
            result = self.compute(operator, args, kwargs)
        except Exception as error:  # the CPU has no kernel for this type
            self.failed.setdefault(str(operator), f"{type(error).__name__}: {error}")
            return False
        if is_in_place:
            for out in outs:
                if out.is_cuda:
                    self._mark(out, None)
        else:
            # Scripts do not use the results after these: seeds, sums for the backward pass.
            for out, value in zip(outs, tensors_in(result, self._torch.Tensor), strict=False):
                if out.shape == value.shape:
                    self.write(out, value)
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


def _is_whole(tensor: Any, block: Any) -> bool:
    return bool(tensor.numel() * tensor.dtype.itemsize >= block.requested)
