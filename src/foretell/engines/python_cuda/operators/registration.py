"""How an operator of the CPU engine is written: a module function with the operators' names in a decorator.

    @kernel("native_dropout")
    def native_dropout(device: PythonCuda, x: Tensor, probability: float, train: bool | None = None) -> Any:

There are three kinds (dispatch.py says when each is called). A name is that of an operator of aten: `mm` is the default
overload, `sum.dim_IntList` that one, `mm.*` every overload. A name that this version of torch lacks is skipped;
tests/test_operator_registration.py finds misspelt ones. The function keeps the decorator's arguments as an attribute
and stays a plain function, which others and tests may call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ..device import PythonCuda

torch: Any = sys.modules["torch"]
"""Already imported: these modules load only in a process that has it."""
aten: Any = torch.ops.aten
Tensor: TypeAlias = Any
"""torch.Tensor, which mypy cannot see."""

Kind = Literal["function", "kernel", "extra_memory"]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ATTRIBUTE = "foretell_registration"


@dataclass(frozen=True, slots=True)
class Registration:
    kind: Kind
    names: tuple[str, ...]
    takes_operator: bool


def function(*names: str, takes_operator: bool = False) -> Callable[[_Function], _Function]:
    """Register a function called instead of the operator: it calls other operators, or handles values itself."""
    return _register("function", names, takes_operator)


def kernel(*names: str, takes_operator: bool = False) -> Callable[[_Function], _Function]:
    """Register a function that makes the results, where torch's shape functions would make others or in another
    order."""
    return _register("kernel", names, takes_operator)


def extra_memory(*names: str, takes_operator: bool = False) -> Callable[[_Function], _Function]:
    """Register a function that allocates the CUDA kernel's extra memory, once the results are made. The memory is freed
    when the function returns, or right after that if the function returns it."""
    return _register("extra_memory", names, takes_operator)


def _register(kind: Kind, names: tuple[str, ...], takes_operator: bool) -> Callable[[_Function], _Function]:
    def mark(function: _Function) -> _Function:
        setattr(function, _ATTRIBUTE, Registration(kind, names, takes_operator))
        return function

    return mark


def registered(module: ModuleType) -> Iterator[tuple[Registration, Callable[..., Any]]]:
    """The decorated functions of a module, in source order."""
    for value in vars(module).values():
        registration = getattr(value, _ATTRIBUTE, None)
        if isinstance(registration, Registration) and value.__module__ == module.__name__:
            yield registration, value


def overloads(name: str) -> list[Any]:
    """Overloads of a name as in the decorators; [] if this version of torch lacks it."""
    packet_name, _, overload = name.partition(".")
    packet = getattr(aten, packet_name, None)
    if packet is None:
        return []
    wanted = packet.overloads() if overload == "*" else [overload or "default"]
    return [getattr(packet, each) for each in wanted if each in packet.overloads()]


def register(device: PythonCuda, module: ModuleType) -> None:
    """Enter the decorated functions of a module into the tables of the device's dispatch."""
    for registration, function in registered(module):
        table = device.dispatch.table(registration.kind)
        for name in registration.names:
            for operator in overloads(name):
                assert operator not in table, f"{operator} is registered twice"
                arguments = (device, operator) if registration.takes_operator else (device,)
                table[operator] = partial(function, *arguments)
