"""Values that decide what the script does.

Kernels compute nothing, so device tensors have no values; but small ones, and integers and booleans, choose the code
path (masks, lengths, `.item()`, `.nonzero()`). Their operators are repeated on the host, on CPU tensors over the same
bytes: a result is known if all inputs are. A TorchFunctionMode does that; a TorchDispatchMode would change the memory
it observes.

Reads of unknown values return a stand-in: 1.0 for floating-point tensors of up to 16 Ki elements, otherwise 0 and
False. If the value decides a size (how many elements a mask selects), `--assume` sets it: none, half, all. A learned
gate (`topk`) is assumed to choose evenly, and unknown scores to be in order, so that a script's counts add up. Each
such read is journaled with its line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import MethodWrapperType
from typing import Any

from ..capture import Capture
from . import operators, partly, warned_lines
from .device_bytes import Answers, DeviceBytes
from .operators import INTEGERS, torch
from .sparse_operators import SparseOperators
from .tensors import (
    MAX_INTEGERS,
    Tensor,
    has_memory,
    is_on_device,
    is_small,
    no_subclasses,
    storage_address,
    tensors_in,
    unwrap,
)  # fmt: skip
from .unknown import MAX_STAND_IN, UnknownReads

_push_mode, _pop_mode = torch.overrides._push_mode, torch.overrides._pop_mode
_num_modes: Any = torch._C._len_torch_function_stack


class Values(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture
        self._bytes = DeviceBytes(torch)
        self._answers = Answers(self._bytes)
        self.unknown = UnknownReads(capture)
        self._sparse = SparseOperators(self._bytes, self._answers, self.unknown, self.is_known)
        self._random_state: Any = None
        self._suppresses_boxes: frozenset[Any] = frozenset()
        """torchvision's nms(boxes, scores, ...), once torchvision is imported."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if type(func) is MethodWrapperType:  # an attribute, such as .grad or .data: no bytes change
            return func(*args)
        kwargs = kwargs or {}
        if self._sparse.may_concern(func):
            kwargs = self._sparse.with_size(func, args, kwargs)
            if self._sparse.is_one(func, args):
                return self._sparse.call(func, args, kwargs)
        if func in operators.SPECIAL or func in self._suppresses_boxes:
            return self._special(func, args, kwargs)
        out = func(*args, **kwargs)
        if operators.is_collective(func):  # the virtual GPU has done it; on the host there are no other ranks
            self.keep_known(tensors_in((out, args)))
            return out
        kind = type(out)
        if type(func).__module__ == "torch._ops":  # an operator of a package, whose kernels are not watched elsewhere
            self._forget(tensors_in(operators.written_arguments(func, args, kwargs)))
        if kind is Tensor:
            if not out.is_cuda:
                pass
            elif is_small(out):
                self._settle(func, args, kwargs, (out,))
            elif operators.name_of(func).endswith("_"):  # large ones are never known, but a part of one may be
                self._bytes.forget_whole((out,))
        elif func in operators.FOREACH or (out is None and args and type(args[0]) in (tuple, list)):  # or fused
            self._bytes.forget_whole(each for each in tensors_in(args if out is None else out) if each.is_cuda)
        elif isinstance(out, tuple | list) and kind is not torch.Size:
            self._settle(func, args, kwargs, out)
        elif isinstance(out, Tensor):  # of a subclass
            self._settle(func, args, kwargs, (out,))
        return out

    def forget_written(self, tensors: Iterable[Any]) -> None:
        """Forget tensors written by something other than a PyTorch operator."""
        with no_subclasses():
            self._forget(tensors)

    def watch_torchvision(self, extension: Any) -> None:
        nms = torch.ops.torchvision.nms
        self._suppresses_boxes = frozenset({nms, nms.default})

    def leave(self) -> None:
        """End the mode for good, wherever it is on the stack."""
        for mode in [mode for mode in _take_modes() if mode is not self]:
            _push_mode(mode)

    def publish(self, storage: Any) -> None:
        self._bytes.publish(storage)

    def keep_known(self, tensors: Iterable[Any]) -> None:
        """What the virtual GPU knows of tensors until its next launch, because it has just written them itself, stays
        known."""
        with no_subclasses():
            for each in tensors:
                if is_on_device(each) and is_small(each) and has_memory(each):
                    self._bytes.keep_known(each)

    def abandon(self, storage: Any) -> None:
        self._bytes.abandon(storage.data_ptr(), storage.nbytes())

    @contextlib.contextmanager
    def all_copies_are_real(self) -> Iterator[None]:
        """Copies of any size are real, in all threads."""
        self._bytes.all_copies_are_real(1)
        try:
            yield
        finally:
            self._bytes.all_copies_are_real(0)

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Take this mode, and only this one, off the stack."""
        others = [mode for mode in _take_modes() if mode is not self]
        for mode in others:
            _push_mode(mode)
        try:
            yield
        finally:
            others = _take_modes()
            for mode in (self, *others):
                _push_mode(mode)

    # ---- after an operator: is its result known? -------------------------------------------------------------------

    def _settle(self, func: Any, args: Any, kwargs: Any, outs: Iterable[Any]) -> None:
        """Repeat the operator on the host if its device results are small and everything it read is known."""
        results = [unwrap(out) for out in outs if is_on_device(out)]
        if not any(map(is_small, results)) or _is_tracing():
            return
        try:
            with no_subclasses(), torch.no_grad(), warned_lines.silent():
                is_known = self._repeat(func, args, kwargs, results)
        except Exception:  # cannot be repeated here (a functorch wrapper, no CPU kernel, another type under autocast)
            is_known = False
        if not is_known:
            self._forget(results)
            if func in operators.SOFTMAX and has_memory(results[0]):
                dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
                self.unknown.expect(results[0], 1 / max(1, results[0].shape[-1 if dim is None else dim]))

    def _repeat(self, func: Any, args: Any, kwargs: Any, outs: list[Any]) -> bool:
        inputs = [*tensors_in(args), *tensors_in(kwargs.values())]
        if (func in operators.CHOOSES or func in operators.ORDERS) and not self.is_known(inputs[0]):
            return self._assume_indices(func, args, kwargs, outs)
        if func in operators.LIKE:
            inputs = inputs[1:]
        if func in operators.UNINITIALISED or not all(map(is_small, outs)):
            return False
        if any(each.requires_grad for each in inputs) and outs[0].dtype not in INTEGERS:
            return False  # a weight: the optimizer changes it unseen
        is_in_place = any(out is each for out in outs for each in inputs)
        if is_in_place and func in operators.KEEPS_BYTES:
            return True
        if not is_in_place:
            if all(self._bytes.is_known(out) for out in outs):
                for out in outs:  # a view of something known, or a copy that was just made
                    self._bytes.know(out)
                return True
            addresses = {storage_address(each) for each in inputs if each.is_cuda}
            if all(storage_address(out) in addresses for out in outs):
                return True  # views
        written = kwargs.get("out") if func not in operators.OVERWRITE else inputs[0]
        read = [each for each in inputs if each is not written]
        if not all(not each.is_cuda or self._bytes.is_known(each) for each in read):
            return self._know_in_part(func, args, kwargs, outs) or self._assume_good_numbers(func, outs)
        result = self._on_host(func, args, kwargs)
        if not is_in_place:
            for out, value in zip(outs, tensors_in([result]), strict=True):
                if out.shape != value.shape or out.dtype != value.dtype:
                    return False
                self._bytes.alias(out.detach()).copy_(value)
        for out in outs:
            self._bytes.know(out)
        return True

    def _know_in_part(self, func: Any, args: Any, kwargs: Any, outs: list[Any]) -> bool:
        """Some elements may be known although not all that was read is."""
        name = operators.name_of(func)
        if len(outs) != 1 or outs[0].dtype not in INTEGERS or not partly.is_listed(name):
            return False
        arguments = [
            partly.Argument(position, *self._with_mask(each))
            for position, values in [*enumerate(args), *((-1, value) for value in kwargs.values())]
            for each in tensors_in([values])
        ]
        if max(each.value.numel() for each in arguments) > partly.MAX_PARTLY:
            return False

        def call(tensors: list[Any]) -> Any:
            given = iter(tensors)
            host_args = self._to_host(tuple(args), lambda _: next(given))
            host_kwargs = {name: self._to_host(each, lambda _: next(given)) for name, each in kwargs.items()}
            result = func(*host_args, **host_kwargs)
            return host_args[0] if func is operators.SET_ITEM else result

        found = partly.compute(name, call, arguments)
        if found is None or found[0].shape != outs[0].shape or found[0].dtype != outs[0].dtype:
            return False
        value, known = found
        self._bytes.alias(outs[0].detach()).copy_(value)
        self._bytes.know_elements(outs[0], known)
        return True

    def _with_mask(self, tensor: Any) -> tuple[Any, Any]:
        """Its host bytes, and which elements of them are known; None: all."""
        if not tensor.is_cuda:
            return tensor, None
        alias = self._bytes.alias(tensor.detach())
        is_large = tensor.numel() > partly.MAX_PARTLY
        return alias, None if is_large or self._bytes.is_known(tensor) else self._bytes.known_elements(tensor)

    def _assume_indices(self, func: Any, args: Any, kwargs: Any, outs: list[Any]) -> bool:
        """Assume valid indices. A learned gate's choice and the order of scores are unknown, but a script that counts
        them, expert by expert, must get the right sum. All are chosen equally often, from the middle on, or with
        `--assume high` always the first; sorted scores stay in order."""
        scores, indices = args[0], outs[-1]
        position = 2 if func in operators.CHOOSES else 1
        dim = kwargs.get("dim", args[position] if len(args) > position else -1)
        size = scores.shape[dim] if scores.dim() else 0
        if size == 0 or not is_small(indices) or (func in operators.CHOOSES and size > operators.MAX_CHOICES):
            return False
        self.unknown.note(func, scores)
        last = indices.movedim(dim, -1)
        k, num_rows = last.shape[-1], last.numel() // last.shape[-1]
        is_spread = func in operators.CHOOSES and self._capture.options.assume != "high"
        # The first few have a meaning of their own more often than others: the end of a text, the mean of a spectrum.
        starts = size // 2 + torch.arange(num_rows) * k if is_spread else torch.zeros(num_rows, dtype=torch.int64)
        chosen = (starts.unsqueeze(1) + torch.arange(k)) % size
        self._bytes.alias(last.detach()).copy_(chosen.reshape(last.shape))
        self._bytes.know(indices)
        self._forget(outs[:-1])
        return True

    def _assume_good_numbers(self, func: Any, outs: list[Any]) -> bool:
        """Assume finite numbers: a script that checks its loss trains on if it is finite, and that is the run to
        estimate."""
        if func not in operators.ASKS_FOR_GOOD_NUMBERS and func not in operators.ASKS_FOR_BAD_NUMBERS:
            return False
        for out in outs:
            self._bytes.alias(out.detach()).fill_(func in operators.ASKS_FOR_GOOD_NUMBERS)
            self._bytes.know(out)
        return True

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        host_args = self._to_host(tuple(args))
        host_kwargs = {name: self._to_host(value) for name, value in kwargs.items()}
        if func not in operators.RANDOM:
            return func(*host_args, **host_kwargs)
        # The GPU has its own random generator: the host's must not advance.
        host_state = torch.get_rng_state()
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)
        try:
            return func(*host_args, **host_kwargs)
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(host_state)

    def _alias(self, tensor: Any) -> Any:
        return self._bytes.alias(tensor.detach()) if tensor.is_cuda else tensor

    def _to_host(self, value: Any, tensor_for: Callable[[Any], Any] | None = None) -> Any:
        if isinstance(value, Tensor):
            return (tensor_for or self._alias)(unwrap(value))
        if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda")):
            return "cpu"
        if isinstance(value, torch.Generator):
            return None
        if type(value) is tuple or type(value) is list:
            return type(value)(self._to_host(each, tensor_for) for each in value)
        return value

    def _forget(self, tensors: Iterable[Any]) -> None:
        for each in tensors:
            if not is_on_device(each := unwrap(each)):
                continue
            if has_memory(each):
                with contextlib.suppress(Exception):  # no plain storage (sparse, functorch): it is never known
                    self._bytes.forget(each)
            else:  # a wrapper: what it holds
                self._forget(tensors_in(vars(each).values()))

    # ---- operators with special handling -----------------------------------------------------------------------------

    def _special(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in operators.READS:
            return self._read(func, args, kwargs)
        if func in operators.COMPARES:
            return self._compare(func, args, kwargs)
        if func in operators.RESIZES:
            return self._resize(func, args, kwargs)
        if func is Tensor.__getitem__ or func is operators.SET_ITEM:
            args = self._with_numbers_in_slices(func, args)
        if func in operators.SIZE_IS_DATA or func in self._suppresses_boxes:
            out = self._with_size(func, args, kwargs)
        elif func in operators.COPIES:
            out = self._copy(func, args, kwargs)
        elif func in operators.CHECKS_PROBABILITIES:
            with self._answers.given(1):  # "are these probabilities?" Yes.
                out = func(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
        if func in operators.BATCH_NORM:
            self._forget(args[3:5])  # the kernel updates the running statistics
        elif func not in operators.CHECKS_GRADIENTS:  # found_inf keeps its value: the run to estimate is one that works
            if func is operators.SET_ITEM:
                out = args[0]
            self._settle(func, args, kwargs, out if isinstance(out, tuple | list) else (out,))
        return None if func is operators.SET_ITEM else out

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The virtual GPU cannot see types, so while an integer tensor is copied, copies of any size are real."""
        source: Any = args[1] if func is Tensor.copy_ and len(args) > 1 else args[0] if args else None
        source = unwrap(source)
        is_tensor = isinstance(source, Tensor)
        is_real = not is_tensor or (source.dtype in INTEGERS and source.numel() <= MAX_INTEGERS)
        if is_real:
            self._bytes.real_copies(1)
        try:
            out = func(*args, **kwargs)
        finally:
            if is_real:
                self._bytes.real_copies(0)
        if is_tensor and source.is_cuda and type(out) is Tensor and out.device.type == "cpu":
            self._complete_copy(func, source, out)
        return out

    def _complete_copy(self, func: Any, source: Any, out: Any) -> None:
        """The virtual GPU copies what is known, and zeros for the rest."""
        is_known = self.is_known(source)
        if is_known and source.is_contiguous():
            return
        number = 0 if is_known else self.unknown.read(func, source)
        if is_known or source.numel() <= MAX_STAND_IN:
            with no_subclasses(), torch.no_grad():  # a kernel has gathered what is not contiguous
                values = self._bytes.alias(source.detach())
                if not is_known:
                    values = values.clone().masked_fill_(~self._bytes.known_elements(source), number)
                out.copy_(values)

    def _resize(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The elements that stay keep their values, and the new ones have none."""
        if not is_on_device(args[0]):
            return func(*args, **kwargs)
        storage = args[0].untyped_storage()
        before = storage.data_ptr(), storage.nbytes()
        out = func(*args, **kwargs)
        with no_subclasses():
            self._bytes.moved(out, before)
        return out

    def _with_size(self, func: Any, args: Any, kwargs: Any) -> Any:
        is_nms = func in self._suppresses_boxes
        # For nms the last tensor decides: as many scores as boxes.
        decides = list(tensors_in(args))[::-1] if is_nms else what_decides_the_size(func, args)
        if not any(each.is_cuda for each in decides):
            return func(*args, **kwargs)
        count = None
        if all(not each.is_cuda or self.is_known(each) for each in decides):
            count = self._count(func, args, kwargs, decides[0])
        if count is None and (least := least_size(func, args, kwargs)):
            self.unknown.note(func, decides[0])
            count = least - 1  # the largest value
        if count is None:
            count = self.unknown.assume_size(func, decides[0], decides[0].numel())
        with self._answers.given(count):
            out = func(*args, **kwargs)
        if is_nms:  # some versions count on the host, from a copy
            out = out[:count]
        self._answers.give_in_backward(count, args[0] if func is operators.SET_ITEM else out)
        return out

    def _with_numbers_in_slices(self, func: Any, args: Any) -> Any:
        """`x[:length]` reads the length while the operator runs. An unknown one is assumed to be the whole extent, or
        with `--assume low` 1."""
        tensor, index = args[0], args[1]
        items = index if type(index) is tuple else (index,)
        if not any(type(item) is slice and any(map(is_on_device, _bounds(item))) for item in items):
            return args
        sizes = iter(_sizes_indexed(tensor, items))
        numbered = tuple(self._numbered(func, item, next(sizes)) for item in items)
        return (tensor, numbered if type(index) is tuple else numbered[0], *args[2:])

    def _numbered(self, func: Any, item: Any, size: int) -> Any:
        if type(item) is not slice:
            return item
        start, stop, step = (
            int(bound) if is_on_device(bound) and self.is_known(bound) else bound for bound in _bounds(item)
        )
        count = size
        for unknown in filter(is_on_device, (start, stop)):
            count = self.unknown.assume_prefix(func, unknown, size)
        return slice(size - count if is_on_device(start) else start, count if is_on_device(stop) else stop, step)

    def _count(self, func: Any, args: Any, kwargs: Any, mask: Any) -> int | None:
        try:
            with no_subclasses(), torch.no_grad():
                if func in operators.SELECT_BY_MASK or func in operators.COUNTS_NONZERO:
                    return int(self._bytes.alias(mask.detach()).count_nonzero())
                result = next(tensors_in([self._on_host(func, args, kwargs)]))
                if func in operators.MAXIMUM_IS_SIZE:
                    return int(result.shape[-1]) - 1
                return int(result.shape[kwargs.get("dim") or 0])
        except Exception:  # cannot be repeated on the host: unknown
            return None

    # ---- reads -----------------------------------------------------------------------------------------------------

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        source = unwrap(args[0])
        if not is_on_device(source):
            return func(*args, **kwargs)
        if self.is_known(source):
            out = func(*args, **kwargs)
            if source.is_contiguous():
                return out
            with no_subclasses(), torch.no_grad():  # a kernel gathered it before the copy
                return func(self._bytes.alias(source.detach()), *args[1:], **kwargs)
        number = self.unknown.read(func, source)
        if source.numel() > MAX_STAND_IN or not has_memory(source):
            return func(*args, **kwargs)
        with no_subclasses(), torch.no_grad(), self._bytes.filled(source, number):
            return func(*args, **kwargs)

    def _compare(self, func: Any, args: Any, kwargs: Any) -> bool:
        tensors = [each for each in (*tensors_in(args), *tensors_in(kwargs.values())) if is_on_device(each)]
        unknown = next((each for each in tensors if not self.is_known(each)), None)
        if unknown is not None:
            answer = bool(self.unknown.read(func, unknown))
        else:
            with no_subclasses(), torch.no_grad():
                answer = bool(self._on_host(func, args, kwargs))
        with self._answers.given(int(answer)):
            return bool(func(*args, **kwargs))

    def is_known(self, tensor: Any) -> bool:
        try:
            with no_subclasses():
                return self._bytes.is_known(unwrap(tensor))
        except Exception:
            return False


def _bounds(item: slice) -> tuple[Any, Any, Any]:
    return item.start, item.stop, item.step


def _sizes_indexed(tensor: Any, items: tuple[Any, ...]) -> Iterator[int]:
    """For each item of an index the size it selects from; 0 if it selects from none."""
    num_dims = [0 if each is None or each is Ellipsis else _num_dims(each) for each in items]
    dim = 0
    for number, (item, count) in enumerate(zip(items, num_dims, strict=True)):
        yield int(tensor.shape[dim]) if count and dim < tensor.dim() else 0
        dim = tensor.dim() - sum(num_dims[number + 1 :]) if item is Ellipsis else dim + count


def _num_dims(item: Any) -> int:
    return max(item.dim(), 1) if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


def _is_tracing() -> bool:
    """Whether torch.compile is tracing, with tensors without memory."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _take_modes() -> list[Any]:
    """Empty the stack of modes; returns them outermost first."""
    return [_pop_mode() for _ in range(_num_modes())][::-1]


def least_size(func: Any, args: Any, kwargs: Any) -> int:
    """How many numbers the script expects to find counted (`minlength`) or made a class (`num_classes`); 0: it does not
    say."""
    if func not in operators.MAXIMUM_IS_SIZE:
        return 0
    given = kwargs.get("minlength", kwargs.get("num_classes"))
    if given is None:
        position = 1 if func is torch.nn.functional.one_hot else 2
        given = args[position] if len(args) > position else 0
    return max(int(given), 0)


def what_decides_the_size(func: Any, args: Any) -> list[Any]:
    """Tensors whose values set the result's size, the counted one first; empty if shapes alone decide."""
    if func is Tensor.__getitem__ or func is operators.SET_ITEM:
        indices = args[1] if type(args[1]) is tuple else (args[1],)
        found = [unwrap(each) for each in indices if isinstance(each, Tensor)]
        return [each for each in found if each.dtype in (torch.bool, torch.uint8)]
    tensors = list(tensors_in(args))
    if func in operators.SELECT_BY_MASK:
        return tensors[1:]
    if func in operators.COUNTS_NONZERO:
        return tensors if len(tensors) == 1 and len(args) == 1 else []  # where(condition, x, y) keeps the shape
    if func in (getattr(torch, "repeat_interleave", None), Tensor.repeat_interleave):
        return tensors[-1:] if len(tensors) > 1 or len(args) == 1 else []
    return tensors
