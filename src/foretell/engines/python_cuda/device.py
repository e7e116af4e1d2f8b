"""A CUDA device in Python, for a torch that has none: `foretell run --engine cpu`.

torch's own dispatcher, autograd, autocast and optimizers run as on a card. In place of each CUDA kernel runs a Python
function that gives the result its shape and allocates the memory the kernel would (dispatch.py, operators/), from a
Python implementation of PyTorch's caching allocator (memory.py, src/foretell/allocator). Values are kept where they
decide what a script does (values.py), or everywhere with `--execute`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from ...allocator.recording import RecordingAllocator
from ...inside.where import where_now
from ...rules.capacity import Capacity
from ...versions import NEWEST_TORCH, parse_version
from . import guard, packages, self_test
from .bindings import Bindings
from .cublas import Cublas
from .cudnn import Layer
from .dispatch import Dispatch
from .library_log import Libraries
from .memory import Memory
from .operators import register_all
from .torch_dispatcher import TorchDispatcher
from .unknown import Unknown
from .values import Values
from .workspaces import Workspaces

_PROGRESS_SECONDS = 1.0


_HIGHEST_ADDRESS = 1 << 42


class PythonCuda:
    """The device, passed to the functions of operators/ as `device`."""

    def __init__(self, capture: Any, torch: Any) -> None:
        self.capture = capture
        self.torch = torch
        self.card = _card()
        self.version = parse_version(torch.__version__) or NEWEST_TORCH
        self.capability = (int(self.card["major"]), int(self.card["minor"]))
        self.num_sms = int(self.card["sms"])
        self.threads_per_sm = int(self.card["threads_per_sm"])
        total = int(self.card["total"])
        # Other processes' use of the card is part of its context (runs/launch.py).
        capacity = Capacity(total_bytes=total, context_bytes=int(self.card["context"]), library_bytes=0)
        allocator = RecordingAllocator(capacity.reservable_bytes, total_bytes=total, torch_version=torch.__version__)
        self.memory = Memory(torch, allocator, capture)
        self.values = Values(torch, self.memory, keeps_all=capture.options.execute)
        self.unknown = Unknown(torch, capture, self.values)
        self.dispatch = Dispatch(torch, self.memory, self.values, self.refuse)
        self.libraries = Libraries(capture, self.card, allocator.device, capacity)
        self.library, self.load_library = self.libraries.call, self.libraries.load
        self.cublas = Cublas(self)
        self.workspaces = Workspaces(capture, torch, self.card, self.version)
        self.chosen_plans: dict[Layer, int] = {}
        """Workspace of the plan chosen for each convolution, cached as torch caches the plan."""
        self.dropout_states: dict[float, Any] = {}
        """Dropout states of recurrent nets, by probability; torch caches them, too."""
        self._torch_dispatcher = TorchDispatcher(torch, self.dispatch)
        self._kept_for_cpp: list[Any] = []

    def install(self) -> None:
        if not (self.torch.version.cuda and self.torch._C._cuda_getDeviceCount()):
            try:
                self._kept_for_cpp = guard.install(self.torch)
            except guard.DoesNotFitError as error:
                self._refuse_torch(str(error))
        bindings = Bindings(self.torch, self.memory, self.card, self.capture)
        bindings.install()
        bindings.when_cuda_starts.append(self._test)
        register_all(self)
        self._torch_dispatcher.install()
        packages.install(self.capture, self.torch, self.load_library)
        self.capture.is_on_gpu = _is_on_gpu
        self.capture.after_step.append(self.libraries.write)
        self.capture.before_end.append(self.libraries.write)
        self.capture.before_end.append(self._report_operators_without_rule)
        if self.values.keeps_all:
            self.capture.before_end.append(self._report_failed_operators)
            self.capture.after_step.append(self._journal_progress)
            threading.Thread(target=self._journal_progress_for_ever, daemon=True).start()

    # ---- for the functions of operators/ -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def rule(self, name: str) -> Iterator[None]:
        """Attributes allocations in this block to the rule."""
        where = self.memory.where
        before, where.rule = where.rule, name
        try:
            yield
        finally:
            where.rule = before

    def buffer(self, num_elements: int, dtype: Any = None) -> Any:
        """Extra memory of a kernel or a library, in bytes or in elements of a type."""
        return self.memory.empty((num_elements,), (1,), self.torch.uint8 if dtype is None else dtype)

    def contiguous_copies(self, *tensors: Any) -> list[Any]:
        """Copies of the non-contiguous tensors, for kernels that need contiguous ones."""
        with self.rule("copy of an operand"):
            return [each.contiguous() for each in tensors if not each.is_contiguous()]

    def refuse(self, operator: str) -> None:
        """Report an unsupported operator. No estimate is better than one without it, even if the script catches the
        error."""
        self.capture.journal.write(
            "unsupported",
            what=f"the CPU engine does not support the operator {operator} (at {where_now() or 'an unknown line'})",
            hint="Use --engine virtual with a CUDA build of torch, or open an issue",
        )

    # ---- the self-test -----------------------------------------------------------------------------------------------

    def _test(self) -> None:
        self._import_shape_functions()
        wrong = self_test.what_is_wrong(self)
        if wrong is not None:
            self._refuse_torch(wrong)

    def _import_shape_functions(self) -> None:
        """Import torch._dynamo, as torch's first shape function in Python does, in a thread without other frames. The
        garbage that import leaves holds the frames of its callers, and with them tensors of the script or the
        self-test."""
        thread = threading.Thread(target=importlib.import_module, args=("torch._dynamo",))
        thread.start()
        thread.join()

    def _refuse_torch(self, why: str) -> None:
        self.capture.refuse(
            f"the CPU engine does not work with torch {self.torch.__version__}: its self-test failed ({why})",
            "torch 2.13 without CUDA and torch 2.6 to 2.15 with CUDA are known to work. Install one of them, or use "
            "--engine virtual with a CUDA build",
        )

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _journal_progress_for_ever(self) -> None:
        """Report progress of long runs; the parent estimates the remaining time."""
        while True:
            time.sleep(_PROGRESS_SECONDS)
            self._journal_progress()

    def _journal_progress(self) -> None:
        self.capture.journal.write("operators", count=self.values.num_computed)

    def _report_operators_without_rule(self) -> None:
        calls = self.dispatch.shapes.num_without_rule
        if calls:
            names = ", ".join(sorted({str(operator).removeprefix("aten.").rpartition(".")[0] for operator in calls}))
            self.capture.caveat(
                f"{sum(calls.values())} operators were counted by their results alone, because there is no rule for "
                f"the extra memory of their kernels: {names}"
            )

    def _report_failed_operators(self) -> None:
        for operator, why in self.values.failed.items():
            self.capture.caveat(f"{operator} could not be computed on the CPU, so its values are unknown: {why}")


def _is_on_gpu(address: int | None) -> bool:
    """The allocator in Python gives out the lowest addresses (allocator/device.py); those of the host are far above."""
    return address is not None and 0 < address < _HIGHEST_ADDRESS


def _card() -> dict[str, Any]:
    """The card, in the same description as the virtual GPU's (virtual/environment.py)."""
    card: dict[str, Any] = dict(part.split("=", 1) for part in os.environ["FORETELL_DEVICE"].split(";"))
    card["cudnn_version"] = guard.CUDNN_VERSION
    return card


def install(capture: Any, torch: Any) -> None:
    PythonCuda(capture, torch).install()
