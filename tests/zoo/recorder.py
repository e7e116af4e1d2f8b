"""Writes down which way a workload goes: every module's forward, every operator its own code and its libraries'
code calls, with the shapes and dtypes that go in and out, every backward and every optimizer step, and the line of the
workload each came from. Two runs of a workload took the same branches when their records are equal.

In the zoo it is switched on with ZOO_RECORD=1, and the record goes to standard output at the end, each line behind a
mark; benchmarks/coverage starts and stops it itself. Nothing in it depends on the device. It uses a TorchFunctionMode
and hooks of nn.Module and Optimizer only, which leave the measured bytes alone (tests/test_zoo.py proves it); a
TorchDispatchMode would not.

Not recorded, because they may differ without the workload going another way: moves between devices, what torch's own
Python code does inside its modules, optimizers and utilities (it picks foreach or fused variants by device), the
initialisation of weights (foretell may skip it), and the values of floats. Integers and booleans that come back to
Python are recorded with their value: they choose branches.

Code that asks for the type of the device goes its way rightly. What it does inside such an `if` is not recorded. Where
it picks an operator (`x.float() if device.type == "cpu" else x.int()`), the operator's name is left out, and the dtype
of what is made of the result until one is given; never a shape.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import linecache
import os
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

ZOO = str(Path(__file__).resolve().parent)
TORCH = os.path.dirname(torch.__file__) + os.sep
# Python functions of torch that stand between the caller and the mode; the caller is behind them.
WRAPPERS = tuple(TORCH + name for name in ("overrides.py", "_tensor.py", "functional.py", "nn/functional.py"))
OBSERVERS = tuple(os.path.join("foretell", room, "") for room in ("inside", "engines"))
MOVES = {"cuda", "cpu", "pin_memory", "is_pinned", "record_stream", "__deepcopy__"}
INITIALISERS = {
    "normal_",
    "uniform_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "trunc_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "xavier_uniform_",
    "zero_",
    "fill_",
    "constant_",
}
MARK = "RECORD "
MAIN_PROCESS = os.getpid()
records: list[Record] = []


class Record(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.muted = threading.local()
        self.undo = contextlib.ExitStack()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or name in MOVES or name in INITIALISERS or getattr(self.muted, "depth", 0):
            return result
        caller = calling_frame()
        if caller is not None and not is_inside_choice_by_device(caller):
            if caller.f_lineno in choices_by_device(caller.f_code.co_filename).expressions:
                name = "by_device"
            if name == "by_device" or ("dtype" not in kwargs and any(is_by_device(each) for each in args)):
                mark_by_device(result)
            # How a tensor is moved (non_blocking) is the device's business; what becomes of it is not.
            inputs = list(args[:1]) if name == "to" else [*args, *kwargs.values()]
            if has_tensor([inputs, result]):
                self.lines.append(f"{place(caller)} {name}({describe(inputs)}) -> {describe(result)}")
        return result

    def module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not is_inside_choice_by_device(sys._getframe(1)):
            self.lines.append(
                f"module {type(module).__name__}({describe(inputs)}) -> {describe(output)} training={module.training}"
            )

    def start(self) -> None:
        self.undo.enter_context(self)
        self.undo.callback(nn.modules.module.register_module_forward_hook(self.module).remove)
        record_steps(self)
        record_backward(self)

    def stop(self) -> None:
        self.undo.close()

    def mute(self, change: int) -> None:
        self.muted.depth = getattr(self.muted, "depth", 0) + change

    def write(self) -> None:
        if os.getpid() == MAIN_PROCESS:  # a DataLoader worker inherits the record, but it is not its own
            # Not to a file: what a script writes goes to foretell's overlay, and it should.
            print("".join(f"{MARK}{line}\n" for line in self.lines), flush=True)


def start() -> None:
    record = Record()
    record.start()
    records.append(record)


@atexit.register
def finish() -> None:
    for record in records:
        record.write()


def record_steps(record: Record) -> None:
    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        record.lines.append(f"step {type(optimizer).__name__}({describe(gradients)})")
        record.mute(+1)

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        record.mute(-1)

    record.undo.callback(register_optimizer_step_pre_hook(before).remove)
    record.undo.callback(register_optimizer_step_post_hook(after).remove)


def record_backward(record: Record) -> None:
    """Operators inside a backward are not recorded: it runs in the calling thread on a CPU and in another on a GPU.
    Modules are, wherever they run, so that recomputation is seen."""
    original = torch.autograd.backward
    running: list[Any] = []

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        # With a mode on, torch shows the call to the mode, which makes it again.
        roots = [id(each) for each in (tensors if isinstance(tensors, tuple | list) else [tensors])]
        if not running or running[-1] != roots:
            record.lines.append(f"backward({describe(tensors)})")
        running.append(roots)
        record.mute(+1)
        try:
            original(tensors, *args, **kwargs)
        finally:
            record.mute(-1)
            running.pop()

    torch.autograd.backward = backward
    record.undo.callback(setattr, torch.autograd, "backward", original)


def calling_frame() -> Any:
    """The frame that called the operator, or None when that is torch's own code or foretell's, not the workload's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(WRAPPERS):
        frame = frame.f_back
    return None if frame is None or not is_the_workloads(frame.f_code.co_filename) else frame


def is_the_workloads(filename: str) -> bool:
    return not filename.startswith(TORCH) and not any(observer in filename for observer in OBSERVERS)


def place(frame: Any) -> str:
    filename = frame.f_code.co_filename
    if os.path.abspath(filename).startswith(ZOO):
        return f"{os.path.basename(filename)}:{frame.f_lineno}"
    return f"{os.path.basename(filename)}:{frame.f_code.co_name}"


class Choices(NamedTuple):
    """Lines of a file that are there for one type of device."""

    expressions: frozenset[int]
    statements: frozenset[int]


@functools.cache
def choices_by_device(filename: str) -> Choices:
    expressions: set[int] = set()
    statements: set[int] = set()
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return Choices(frozenset(), frozenset())
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and asks_for_device(node.test):
            expressions |= lines_of(node)
        elif isinstance(node, ast.If) and asks_for_device(node.test):
            statements.update(*(lines_of(each) for each in (*node.body, *node.orelse)))
    return Choices(frozenset(expressions), frozenset(statements))


def asks_for_device(test: ast.expr) -> bool:
    return any(ast.unparse(node).endswith("device.type") for node in ast.walk(test) if isinstance(node, ast.Attribute))


def lines_of(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def is_inside_choice_by_device(frame: Any) -> bool:
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_the_workloads(filename) and frame.f_lineno in choices_by_device(filename).statements:
            return True
        frame = frame.f_back
    return False


def mark_by_device(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value.dtype_is_by_device = True  # type: ignore[attr-defined]


def is_by_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and getattr(value, "dtype_is_by_device", False)


def has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(has_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = "any" if is_by_device(value) else str(value.dtype).removeprefix("torch.")
        return f"{dtype}{list(value.shape)}"
    if isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {describe(item)}" for key, item in value.items()) + "}"
    return type(value).__name__ if not isinstance(value, (str, torch.device)) else "str"
