"""Counts optimizer steps and marks the `optimizer` phase, with torch.optim's own global hooks.

They cover any subclass of `torch.optim.Optimizer`, whoever calls it (Trainer, Lightning, accelerate, GradScaler).

With several optimizers (a GAN), a step is one step of the leader: the first optimizer seen. Another takes over when the
leader is gone, or when it steps twice without a step of the leader. Without any, backward passes are counted
(backward_steps.py). A step that was captured into a CUDA graph is taken again with every launch of the graph.
"""

from __future__ import annotations

import sys
import weakref
from functools import wraps
from typing import Any

from ..capture import Capture
from .peaks import Peaks


class Steps:
    def __init__(self, capture: Capture, peaks: Peaks) -> None:
        self._capture = capture
        self._peaks = peaks
        self._leader: weakref.ref[Any] | None = None
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self._phase_before = "other"
        self.has_optimizer = False
        """True once the script has made one."""
        self._steps_at_capture = 0
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that hold a step."""
        self.is_counted_already = False
        """The last backward pass was counted as a step, and no optimizer of the leader's has stepped since."""

    def install(self) -> None:
        optimizer_module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name after importing it
        for handle in (
            optimizer_module.register_optimizer_step_pre_hook(self._before),
            optimizer_module.register_optimizer_step_post_hook(self._after),
        ):
            self._capture.patches.added("a hook around optimizer steps", handle.remove)
        self._capture.patches.wrap(optimizer_module.Optimizer, "__init__", self._noting_optimizer)
        graph = sys.modules["torch"].cuda.CUDAGraph
        if not hasattr(graph, "capture_begin"):  # a torch without CUDA
            return
        self._capture.patches.wrap(graph, "capture_begin", self._noting_begin)
        self._capture.patches.wrap(graph, "capture_end", self._noting_end)
        self._capture.patches.wrap(graph, "replay", self._counting_launches)

    def count(self) -> None:
        """Note the end of a step. May raise to end the run."""
        index = self._capture.num_steps
        self._capture.num_steps += 1
        self._capture.journal.write("step", index=index, devices=self._peaks.devices())
        self._resume()
        for call in self._capture.after_step:
            self._capture.guarded("optimizer steps", call)
        self._capture.last_after_step()

    def _noting_optimizer(self, original: Any) -> Any:
        @wraps(original)
        def noted(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.has_optimizer = True
            return original(optimizer, *args, **kwargs)

        return noted

    def _noting_begin(self, original: Any) -> Any:
        @wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps_at_capture, self._capture.is_capturing_graph = self._capture.num_steps, True
            return original(graph, *args, **kwargs)

        return capture_begin

    def _noting_end(self, original: Any) -> Any:
        @wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._capture.is_capturing_graph = False
            if self._capture.num_steps > self._steps_at_capture:
                self._graphs.add(graph)
                self._capture.has_step_in_graph = True
            return original(graph, *args, **kwargs)

        return capture_end

    def _counting_launches(self, original: Any) -> Any:
        @wraps(original)
        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            if graph in self._graphs:
                self._capture.num_graph_steps += 1
                self.count()
            return result

        return replay

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._phase_before = self._capture.phase
        self._capture.is_in_optimizer_step = True
        self._capture.enter("optimizer")

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._capture.is_in_optimizer_step = False
        is_counted = self._is_counted(optimizer)
        if is_counted and not self.is_counted_already:
            self.count()
        else:
            self.is_counted_already = self.is_counted_already and not is_counted
            self._resume()

    def _resume(self) -> None:
        # An optimizer that steps inside backward (one per parameter) does not end the backward phase.
        self._capture.enter("backward" if self._phase_before == "backward" else "other")

    def _is_counted(self, optimizer: Any) -> bool:
        leader = self._leader() if self._leader is not None else None
        if leader is None or optimizer is leader or optimizer in self._others:
            self._leader = weakref.ref(optimizer)
            self._others.clear()
            return True
        self._others.add(optimizer)
        return False
