"""How the functions of the CPU engine's operators are registered (engines/python_cuda/operators/registration.py)."""

from __future__ import annotations

import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from foretell.engines.python_cuda import operators  # noqa: E402
from foretell.engines.python_cuda.operators import foreach, registration  # noqa: E402
from foretell.engines.python_cuda.operators.registration import extra_memory, function, kernel  # noqa: E402

VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
NOT_IN_2_6 = {
    "_fused_rms_norm", "_fused_rms_norm_backward", "_use_miopen_ctc_loss.*", "bmm.dtype", "bmm.dtype_out",
}  # fmt: skip
"""torch 2.13 has them."""


def module_of(*functions: Any) -> ModuleType:
    module = ModuleType("subject")
    for each in functions:
        each.__module__ = "subject"
        setattr(module, each.__name__, each)
    return module


def device() -> Any:
    tables: dict[str, dict[Any, Any]] = {"function": {}, "kernel": {}, "extra_memory": {}}
    return SimpleNamespace(tables=tables, dispatch=SimpleNamespace(table=tables.__getitem__))


@pytest.mark.parametrize("subject", operators.SUBJECTS, ids=lambda subject: subject.__name__.rsplit(".", 1)[-1])
def test_every_registered_name_is_one_of_torch(subject: ModuleType) -> None:
    names = [name for each, _ in registration.registered(subject) for name in each.names]
    assert names
    missing = {name for name in names if not registration.overloads(name)}
    assert missing <= (NOT_IN_2_6 if VERSION < (2, 13) else set())


def test_a_function_is_called_with_the_device_and_stays_plain() -> None:
    @kernel("relu")
    def relu(device: Any, x: int) -> tuple[Any, int]:
        return device, x

    card = device()
    registration.register(card, module_of(relu))
    assert card.tables["kernel"][torch.ops.aten.relu.default](3) == (card, 3)
    assert relu("another", 4) == ("another", 4)


def test_a_function_that_takes_the_operator_is_called_with_it() -> None:
    @function("relu", "abs", takes_operator=True)
    def which(device: Any, operator: Any) -> Any:
        return operator

    card = device()
    registration.register(card, module_of(which))
    assert {operator: call() for operator, call in card.tables["function"].items()} == {
        each: each for each in (torch.ops.aten.relu.default, torch.ops.aten.abs.default)
    }


def test_a_name_without_an_overload_is_the_default_one_and_a_star_is_all() -> None:
    aten = torch.ops.aten
    assert registration.overloads("sum") == [aten.sum.default]
    assert registration.overloads("sum.dim_IntList") == [aten.sum.dim_IntList]
    assert set(registration.overloads("mm.*")) >= {aten.mm.default, aten.mm.out}


def test_operators_that_this_torch_lacks_are_skipped() -> None:
    @extra_memory("no_such_operator", "no_such_operator.*", "relu.no_such_overload", "relu")
    def take(device: Any) -> None: ...

    card = device()
    registration.register(card, module_of(take))
    assert list(card.tables["extra_memory"]) == [torch.ops.aten.relu.default]


def test_an_operator_is_registered_once() -> None:
    @kernel("relu")
    def first(device: Any) -> None: ...

    @kernel("relu")
    def second(device: Any) -> None: ...

    with pytest.raises(AssertionError, match="registered twice"):
        registration.register(device(), module_of(first, second))


def test_every_operator_on_lists_has_a_function() -> None:
    card = device()
    card.values = SimpleNamespace(keeps_all=False)
    foreach.register_lists(card)
    aten = torch.ops.aten
    assert {aten._foreach_add_.List, aten._fused_adam_.default, aten._foreach_norm.Scalar} <= set(
        card.tables["function"]
    )
