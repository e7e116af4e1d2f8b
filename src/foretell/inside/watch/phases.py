"""Marks the phases of a training: forward, backward, evaluation (steps.py marks the optimizer).

Backward: the Python functions `torch.autograd.backward` and `torch.autograd.grad` are wrapped; `Tensor.backward` calls
the first. Forward and evaluation: a global forward pre-hook, present only until the first module with parameters on the
GPU is called, which is the root of the model; a call with gradients disabled is an evaluation. Then the hook is
removed, so the modules inside run without it. It returns after backward, after an optimizer step and at the next batch
of a DataLoader, and it stays during an evaluation, since nothing else shows its end.

A closure (LBFGS, Lightning) runs forward and backward inside an optimizer step; they are marked all the same.

The hook does not change the bytes: it returns None and keeps nothing; `Module._call_impl` holds arguments and result in
the same frame for the same time on both of its paths. (A TorchDispatchMode and full backward hooks do change bytes.)

`torch.compile` checks global hooks while it traces, so once the script has called it there is no hook any more, and the
named calls of modules (modules.py) tell when a root is called. For a compiled function, which calls none, the next
batch of a DataLoader distinguishes forward (gradients on) from evaluation (off).
"""

from __future__ import annotations

import inspect
import sys
from functools import partial, wraps
from types import FrameType
from typing import Any

from ..capture import Capture
from ..where import is_in_library


class Phases:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._torch: Any = None
        self._hook: Any = None
        self._cuda_is_up = False
        self._has_seen_root = False
        """A call of a compiled model, or of one that contains compiled parts, was seen."""
        self.num_evaluation_forwards = 0
        """Passes of a model on the GPU with gradients disabled."""
        self.num_backwards = 0

    def install(self, torch: Any) -> None:
        self._torch = torch
        self._call_impl = torch.nn.Module._call_impl.__code__
        self._is_tracing = torch._guards.TracingContext.try_get
        patches = self._capture.patches
        patches.wrap(torch.autograd, "backward", self._as_backward)
        patches.wrap(torch.autograd, "grad", self._as_backward)
        patches.wrap(torch, "compile", self._noting_compilation)
        patches.wrap(torch.nn.Module, "compile", self._noting_compilation)
        patches.added("a hook before the next forward", self._stop_looking)
        self._capture.after_step.append(self.look_for_forward)
        self._capture.on_root_call.append(self._before_root)

    def cuda_starts(self) -> None:
        self._cuda_is_up = True
        self.look_for_forward()

    def look_for_forward(self) -> None:
        """Mark the next root forward."""
        if self._torch is None or not self._cuda_is_up:
            return
        if self._capture.is_compiling:
            if self._capture.phase in ("other", "evaluation") and not self._has_seen_root:
                self._mark_forward()
        elif self._hook is None:
            self._hook = self._torch.nn.modules.module.register_module_forward_pre_hook(self._before_module)

    def _before_module(self, module: Any, args: Any) -> None:
        is_root = not self._is_within_another(sys._getframe(1))
        if not is_root and self._capture.phase == "evaluation" and not self._torch.is_grad_enabled():
            return  # most calls in an evaluation
        if self._is_pass(module):
            self._mark_forward(is_root=is_root)
            if self._capture.phase == "forward":
                self._stop_looking()

    def _before_root(self, module: Any) -> None:
        if self._capture.is_compiling and self._cuda_is_up and self._is_pass(module):
            self._has_seen_root = True
            self._mark_forward()

    def _is_pass(self, module: Any) -> bool:
        if self._capture.phase == "backward" or not _is_on_gpu(module):
            return False
        return not self._capture.is_in_optimizer_step or self._torch.is_grad_enabled()

    def _mark_forward(self, *, is_root: bool = True) -> None:
        if self._torch.is_grad_enabled():
            self._capture.enter("forward")
            return
        self._capture.enter("evaluation")
        if is_root:
            self.num_evaluation_forwards += 1
            for call in self._capture.before_evaluation:
                self._capture.guarded("evaluation", call)

    def _is_within_another(self, frame: FrameType | None) -> bool:
        """Whether the module whose pre-hook runs is called by another module."""
        num_calls = 0
        while frame is not None and num_calls < 2:
            num_calls += frame.f_code is self._call_impl
            frame = frame.f_back
        return num_calls == 2

    def _stop_looking(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _as_backward(self, original: Any) -> Any:
        @wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if self._is_tracing() is not None:  # by torch.compile: nothing runs
                return original(*args, **kwargs)
            before = self._capture.phase
            is_own = before != "backward" and not self._capture.is_in_optimizer_step
            self._stop_looking()
            self._capture.enter("backward")
            self.num_backwards += 1
            if is_own:
                self._capture.guarded("backward", partial(self._capture.first_before_backward, (args, kwargs)))
            for call in self._capture.before_backward:
                self._capture.guarded("backward", partial(call, (args, kwargs)))
            try:
                result = original(*args, **kwargs)
            finally:
                if before == "backward":  # a nested backward: the outer one continues
                    self._capture.enter("backward")
                else:
                    self._capture.enter("optimizer" if self._capture.is_in_optimizer_step else "other")
                    if not self._capture.is_compiling:
                        self.look_for_forward()
            if is_own:
                self._capture.last_after_backward()
            return result

        return marked

    def _noting_compilation(self, original: Any) -> Any:
        @wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            compiled = args[0] if args else kwargs.get("model")
            if not is_library_function(compiled):
                self._capture.is_compiling = True
                self._stop_looking()
            was_in_call, self._capture.is_in_compile_call = self._capture.is_in_compile_call, True
            try:
                return original(*args, **kwargs)
            finally:
                self._capture.is_in_compile_call = was_in_call

        return noted


def is_library_function(compiled: Any) -> bool:
    """Whether a library compiles its own function: bitsandbytes and others do on import, which says nothing about the
    script. None comes from a decorator with options, which calls again with the function."""
    return compiled is None or (inspect.isfunction(compiled) and is_in_library(compiled.__code__.co_filename))


def _is_on_gpu(module: Any) -> bool:
    for parameter in module.parameters():
        return bool(parameter.is_cuda)
    return False
