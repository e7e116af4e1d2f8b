"""Registers the engine's functions with torch's own dispatcher, under the key `CUDA`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch import Dispatch

_KERNELS_OF_CUDA = {"aten::mish_backward"}
"""Composite without CUDA."""
_NOT_KERNELS = ("c10d::", "_c10d_functional", "symm_mem::", "fsdp::")
"""Collectives: a process group handles them."""
_NOT_THERE = ("SparseCUDA", "SparseCsrCUDA", "QuantizedCUDA", "NestedTensorCUDA")


class TorchDispatcher:
    """Registers the functions; torch drops them when this object dies."""

    def __init__(self, torch: Any, dispatch: Dispatch) -> None:
        self._torch = torch
        self._dispatch = dispatch
        self._has: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
        self._libraries: dict[tuple[str, str], Any] = {}

    def install(self) -> None:
        dispatch = self._dispatch
        self._library("_", "CUDA").fallback("CUDA", dispatch, False)
        for key in _NOT_THERE:
            self._library("_", key).fallback(key, dispatch.refuse_layout, False)
        own = [*dispatch.functions, *dispatch.kernels]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            self._put_own(own)
            others_than = {operator.name() for operator in own}
            if self._torch.version.cuda:
                self._replace_cuda_kernels(others_than)
            else:
                self._stand_for_structured_kernels(others_than)

    def _library(self, namespace: str, key: str) -> Any:
        """Not torch.library.Library: that is torn down before Python has ended."""
        made = self._libraries.get((namespace, key))
        if made is None:
            made = self._torch._C._dispatch_library("IMPL", namespace, key, __file__, 0)
            self._libraries[namespace, key] = made
        return made

    def _put(self, operator: Any, key: str, call: Callable[..., Any]) -> None:
        namespace, rest = operator.name().split("::")
        self._library(namespace, key).impl(rest, key, lambda *args, **kwargs: call(operator, *args, **kwargs), False)

    def _put_own(self, operators: Iterable[Any]) -> None:
        """Register operators, also for the autograd key if torch has a composite function, which precedes the
        fallback."""
        for operator in operators:
            self._put(operator, "CUDA", self._dispatch)
            name = operator.name()
            if self._has(name, "CompositeImplicitAutograd") and not self._has(name, "Autograd"):
                self._put(operator, "AutogradCUDA", self._dispatch)

    def _stand_for_structured_kernels(self, others_than: set[str]) -> None:
        """Register structured operators. Without CUDA, torch builds one from its out variant: a separate allocation and
        another operator. With CUDA it is one."""
        for name in self._torch._C._dispatch_get_all_op_names():
            is_structured = self._has(name, "CompositeExplicitAutogradNonFunctional")
            if name not in others_than and (is_structured or name in _KERNELS_OF_CUDA):
                operator = self._overload(name)
                if operator is not None:
                    self._put(operator, "CUDA", self._dispatch)

    def _replace_cuda_kernels(self, others_than: set[str]) -> None:
        """In a torch with CUDA, replace the kernels that would need a card; each then behaves as in a torch without
        them."""
        for name in self._torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            if name in others_than or name.startswith(_NOT_KERNELS):
                continue
            operator = self._overload(name)
            if operator is not None:
                is_made_of_others = not self._has(name, "CPU") and (
                    self._has(name, "CompositeExplicitAutograd") or self._has(name, "CompositeImplicitAutograd")
                )
                self._put(operator, "CUDA", self._dispatch.composite if is_made_of_others else self._dispatch)

    def _overload(self, name: str) -> Any:
        namespace, rest = name.split("::")
        packet, _, overload = rest.partition(".")
        try:
            return getattr(getattr(getattr(self._torch.ops, namespace), packet), overload or "default")
        except (AttributeError, RuntimeError):  # TorchScript only
            return None
