"""State that the hooks share: the journal, the current step and phase, and callbacks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from .imports import ImportWatch
from .journal import Journal
from .options import Options
from .patches import Patches

EARLY_STEPS = 4
"""After each of these, history and owners are written to disk: mostly the peak is known then, and a process that is
killed later leaves its attribution."""


class Capture:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.journal = Journal(options.directory)
        self.patches = Patches()
        """All replacements made by the hooks; they make no others."""
        self.imports = ImportWatch(self.hook_failed)
        self.started = time.monotonic()
        self.import_torch_seconds = 0.0
        self.num_steps = 0
        self.num_backward_steps = 0
        """Those of them that are backward passes, because the script had no optimizer yet."""
        self.num_graph_steps = 0
        """Those of them that launch a CUDA graph which holds a whole step."""
        self.has_step_in_graph = False
        self.is_capturing_graph = False
        self.phase = "other"
        self.is_in_optimizer_step = False
        self.phases_seen: list[str] = []
        self.is_cut_short = False
        """True once the script, or one of its loops, has been ended early."""
        self.agree: Callable[[str, bool], bool] = lambda what, answer: answer
        """Called with a question and this process's answer; whether all ranks of the job say yes."""
        self.on_phase: list[Callable[[str], None]] = []
        """Called with the phase that begins."""
        self.before_evaluation: list[Callable[[], None]] = []
        """Called before each pass of a model with gradients disabled."""
        self.before_backward: list[Callable[[Any], None]] = []
        """Called with the tensors a backward pass starts from."""
        self.first_before_backward: Callable[[Any], None] = lambda roots: None
        """Called first, with the same, before a backward pass that is neither inside another nor inside an optimizer
        step."""
        self.last_after_backward: Callable[[], None] = lambda: None
        """Called last after such a pass; may raise to end the run."""
        self.is_compiling = False
        """True once the script has called torch.compile."""
        self.is_in_compile_call = False
        self.on_root_call: list[Callable[[Any], None]] = []
        """Called with a module that no other module calls, before its forward; where attribution is on."""
        self.before_history: list[Callable[[dict[str, Any]], None]] = []
        """Called with each window of the memory history before it is written."""
        self.after_step: list[Callable[[], None]] = []
        """Called after each counted step."""
        self.last_after_step: Callable[[], None] = lambda: None
        """Called last after each step; may raise to end the run."""
        self.on_batch: list[Callable[[], None]] = []
        """Called after each batch that a DataLoader delivers to the script."""
        self.loading_ns = 0
        """CPU time in which this process has loaded batches; counted for `options.time`."""
        self.without_values: Callable[[], AbstractContextManager[object]] = nullcontext
        """Inside of it torch functions run at their own pace, because no values are kept; only around what does not
        touch the GPU."""
        self.is_on_gpu: Callable[[int | None], bool] | None = None
        """Whether an address is GPU memory, where the engine knows better than the driver."""
        self.before_end: list[Callable[[], None]] = []
        """Called once when the process ends, before the `end` line."""
        self.end_values: Callable[[], dict[str, Any]] = dict

    def enter(self, phase: str) -> None:
        if phase == self.phase:
            return
        self.phase = phase
        if phase != "other" and phase not in self.phases_seen:
            self.phases_seen.append(phase)
        self.journal.write("phase", phase=phase, step=self.num_steps)
        for call in self.on_phase:
            call(phase)

    def ends_early(self, what: str, *, how: str, **more: Any) -> None:
        """As in the kind `ended_early` of the journal."""
        self.is_cut_short = True
        self.journal.write("ended_early", how=how, step=self.num_steps, what=what, **more)

    def caveat(self, text: str) -> None:
        self.journal.write("caveat", text=text)

    def hook_failed(self, name: str, error: BaseException) -> None:
        """Reports a failed hook and lets the script continue."""
        text = f"foretell could not hook {name}: {type(error).__name__}: {error}"
        print(text, file=sys.stderr)
        self.caveat(text)

    def guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.hook_failed(name, error)

    def refuse(self, what: str, hint: str) -> None:
        """End this process at once, whatever the script would catch: the run cannot be estimated."""
        self.journal.write("unsupported", what=what, hint=hint)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(2)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
