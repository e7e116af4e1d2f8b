"""A CUDA device in Python, for a torch that has none: `foretell run --engine cpu`.

torch's own dispatcher, autograd, autocast, optimizers run as on a card; what would be a CUDA kernel is a Python
function that gives the result its shape and takes the memory the kernel would (dispatch.py, operators/). Memory is
handed out by PyTorch's caching allocator in Python (memory.py, src/foretell/allocator). Values are kept where they
decide what a script does (values.py), or everywhere with `--execute`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from ..where import where_now
from . import guard, packages, self_test
from .bindings import Bindings
from .dispatch import Dispatch
from .libraries import Libraries
from .memory import Memory
from .operators import add_all
from .recording import make_allocator
from .unknown import Unknown
from .values import Values
from .workspaces import Workspaces

_PROGRESS_SECONDS = 1.0


class FakeCuda:
    def __init__(self, run: Any, torch: Any) -> None:
        self.run = run
        self.torch = torch
        self.card = _card()
        self.version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
        self.capability = (int(self.card["major"]), int(self.card["minor"]))
        self.num_sms = int(self.card["sms"])
        total = int(self.card["total"])
        allocator = make_allocator(
            capacity_bytes=total - int(self.card["context"]),
            total_bytes=total,
            torch_version=torch.__version__,
        )
        self.memory = Memory(torch, allocator, run)
        self.values = Values(torch, self.memory, keeps_all=run.options.execute)
        self.unknown = Unknown(torch, run, self.values)
        self.dispatch = Dispatch(torch, self.memory, self.values, self.refuse)
        self.functions, self.kernels, self.besides = (
            self.dispatch.functions,
            self.dispatch.kernels,
            self.dispatch.besides,
        )
        self.libraries = Libraries(run, self.card, allocator.device)
        self.library = self.libraries.call
        self.workspaces = Workspaces(run, torch, self.card, self.version)

    def install(self) -> None:
        if not (self.torch.version.cuda and self.torch._C._cuda_getDeviceCount()):
            try:
                guard.install(self.torch)
            except guard.DoesNotFitError as error:
                self._refuse_torch(str(error))
        bindings = Bindings(self.torch, self.memory, self.card, self.run)
        bindings.install()
        bindings.when_cuda_starts.append(self._test_itself)
        add_all(self)
        self.dispatch.install()
        packages.install(self.run, self.torch, self.library)
        self.run.before_end.append(self.libraries.write)
        self.run.before_end.append(self._tell_what_has_no_rule)
        if self.values.keeps_all:
            self.run.before_end.append(self._tell_what_was_not_computed)
            self.run.after_step.append(self._tell_operators)
            threading.Thread(target=self._tell_progress, daemon=True).start()

    def _import_shape_functions(self) -> None:
        """The first of torch's shape functions that is written in Python imports torch._dynamo. What that import leaves
        to the garbage collector holds the frames of whoever called, and so the tensors of the script, or of the
        self-test: it happens here instead, in a thread that has no other frames."""
        thread = threading.Thread(target=importlib.import_module, args=("torch._dynamo",))
        thread.start()
        thread.join()

    def _test_itself(self) -> None:
        self._import_shape_functions()
        wrong = self_test.what_is_wrong(self)
        if wrong is not None:
            self._refuse_torch(wrong)

    def _refuse_torch(self, why: str) -> None:
        self.run.refuse(
            f"the CPU engine does not work with torch {self.torch.__version__}: its self-test failed ({why})",
            "torch 2.13 without CUDA, and 2.6 to 2.15 with it, are known to work. Install one of them, or take "
            "--engine virtual with the CUDA build",
        )

    def _tell_progress(self) -> None:
        """What takes minutes says how far it is; the parent makes an estimate of the rest of it."""
        while True:
            time.sleep(_PROGRESS_SECONDS)
            self._tell_operators()

    def _tell_operators(self) -> None:
        self.run.journal.write("operators", count=self.values.num_computed)

    def _tell_what_has_no_rule(self) -> None:
        calls = self.dispatch.without_rule
        if calls:
            names = ", ".join(sorted({str(operator).removeprefix("aten.").rpartition(".")[0] for operator in calls}))
            self.run.caveat(
                f"{sum(calls.values())} operators were counted by their results alone, because there is no rule for "
                f"what their kernels take besides: {names}"
            )

    def _tell_what_was_not_computed(self) -> None:
        for operator, why in self.values.failed.items():
            self.run.caveat(f"{operator} could not be computed on the CPU, so its values are not known: {why}")

    @contextlib.contextmanager
    def rule(self, name: str) -> Iterator[None]:
        """What is allocated meanwhile is there because of this rule."""
        where = self.memory.where
        before, where.rule = where.rule, name
        try:
            yield
        finally:
            where.rule = before

    def refuse(self, operator: str) -> None:
        """No number is better than one that leaves an operator out; also if the script catches the error."""
        self.run.journal.write(
            "unsupported",
            what=f"the CPU engine does not know the operator {operator} (at {where_now() or 'an unknown line'})",
            hint="Take --engine virtual, which runs the CUDA build of torch, or open an issue with foretell",
        )


def _card() -> dict[str, Any]:
    """What the virtual GPU is told about the card, too (virtual/environment.py)."""
    card: dict[str, Any] = dict(part.split("=", 1) for part in os.environ["FORETELL_DEVICE"].split(";"))
    card["cudnn_version"] = guard.CUDNN_VERSION
    return card


def install(run: Any, torch: Any) -> None:
    FakeCuda(run, torch).install()
