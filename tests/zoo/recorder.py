"""Writes down which way a workload goes: every module's forward, every operator its own code and its libraries'
code calls, with the shapes and dtypes that go in and out, every backward and every optimizer step, and the line of the
workload each came from. Two runs of a workload took the same branches when their records are equal.

Switched on with ZOO_RECORD=1; the record goes to standard output at the end, each line behind a mark. Nothing in it
depends on the device. It uses a TorchFunctionMode and hooks of nn.Module and Optimizer only, which leave the measured
bytes alone (tests/test_zoo.py proves it); a TorchDispatchMode would not.

Not recorded, because they may differ without the workload going another way: moves between devices, what torch's own
Python code does inside its modules, optimizers and utilities (it picks foreach or fused variants by device), the
initialisation of weights (foretell may skip it), and the values of floats. Integers and booleans that come back to
Python are recorded with their value: they choose branches.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

ZOO = str(Path(__file__).resolve().parent)
TORCH = os.path.dirname(torch.__file__) + os.sep
# Python functions of torch that stand between the caller and the mode; the caller is behind them.
WRAPPERS = tuple(TORCH + name for name in ("overrides.py", "_tensor.py", "functional.py", "nn/functional.py"))
OBSERVER = os.path.join("foretell", "capture", "")
MOVES = {"cuda", "cpu", "pin_memory", "is_pinned", "record_stream", "__deepcopy__"}
INITIALISERS = {
    "normal_",
    "uniform_",
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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__get__" or name in MOVES or name in INITIALISERS or getattr(self.muted, "depth", 0):
            return result
        caller = calling_frame()
        if caller is not None:
            # How a tensor is moved (non_blocking) is the device's business; what becomes of it is not.
            inputs = list(args[:1]) if name == "to" else [*args, *kwargs.values()]
            if has_tensor([inputs, result]):
                self.lines.append(f"{place(caller)} {name}({describe(inputs)}) -> {describe(result)}")
        return result

    def module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.lines.append(
            f"module {type(module).__name__}({describe(inputs)}) -> {describe(output)} training={module.training}"
        )

    def mute(self, change: int) -> None:
        self.muted.depth = getattr(self.muted, "depth", 0) + change

    def write(self) -> None:
        if os.getpid() == MAIN_PROCESS:  # a DataLoader worker inherits the record, but it is not its own
            # Not to a file: what a script writes goes to foretell's overlay, and it should.
            print("".join(f"{MARK}{line}\n" for line in self.lines), flush=True)


def start() -> None:
    record = Record()
    record.__enter__()
    nn.modules.module.register_module_forward_hook(record.module)
    record_steps(record)
    record_backward(record)
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

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def record_backward(record: Record) -> None:
    """Operators inside a backward are not recorded: it runs in the calling thread on a CPU and in another on a GPU.
    Modules are, wherever they run, so that recomputation is seen."""
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        record.lines.append(f"backward({describe(tensors)})")
        record.mute(+1)
        try:
            original(tensors, *args, **kwargs)
        finally:
            record.mute(-1)

    torch.autograd.backward = backward


def calling_frame() -> Any:
    """The frame that called the operator, or None when that is torch's own code or foretell's, not the workload's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(WRAPPERS):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(TORCH) or OBSERVER in frame.f_code.co_filename:
        return None
    return frame


def place(frame: Any) -> str:
    filename = frame.f_code.co_filename
    if os.path.abspath(filename).startswith(ZOO):
        return f"{os.path.basename(filename)}:{frame.f_lineno}"
    return f"{os.path.basename(filename)}:{frame.f_code.co_name}"


def has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(has_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {describe(item)}" for key, item in value.items()) + "}"
    return type(value).__name__ if not isinstance(value, (str, torch.device)) else "str"
