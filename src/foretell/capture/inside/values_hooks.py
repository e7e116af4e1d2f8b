"""Puts the mode of known values on, and keeps it where it belongs: on in backward passes, off in compiled code."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from . import operators, triton_kernels
from .operators import torch
from .run import Run
from .values import Values


def install(run: Run, torch: Any) -> None:
    """Called when torch has finished importing, if `options.values`."""
    if not torch.version.cuda:
        return
    mode = Values(run)
    mode.__enter__()
    run.before_end.append(mode.unknown.journal)
    _stay_on_in_backward(mode, torch.autograd)
    _publish_what_is_sent(mode, torch.UntypedStorage)
    run.imports.when_imported("torchvision.extension", operators.add_torchvision)
    run.imports.when_imported("triton.runtime.jit", lambda jit: triton_kernels.watch(jit, mode.forget_written))
    run.imports.when_imported("torch._dynamo.eval_frame", lambda eval_frame: _rest_in_compiled_code(mode, eval_frame))


def _stay_on_in_backward(mode: Values, autograd: Any) -> None:
    """torch takes a mode off while it runs what the mode was shown, here `loss.backward()`. But a backward pass runs
    the script's own code: checkpointed modules once more, autograd functions, hooks."""
    original = autograd._engine_run_backward

    @functools.wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if mode in torch.overrides._get_current_function_mode_stack():
            return original(*args, **kwargs)
        with mode:
            return original(*args, **kwargs)

    autograd._engine_run_backward = run_backward


def _publish_what_is_sent(mode: Values, storage_class: Any) -> None:
    """torch.multiprocessing sends a handle of the memory, in which other tensors live as well."""
    original = storage_class._share_cuda_

    @functools.wraps(original)
    def share(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = original(self, *args, **kwargs)
        mode.publish(self)
        return handle

    storage_class._share_cuda_ = share


def _rest_in_compiled_code(mode: Values, eval_frame: Any) -> None:
    """torch.compile would trace the mode into the graph: what it calls runs without."""
    context = eval_frame._TorchDynamoContext
    original = context.__call__

    @functools.wraps(original)
    def call(self: Any, function: Any) -> Any:
        compiled = original(self, function)
        if not inspect.isfunction(compiled):  # a module or a class: what it calls comes here by itself
            return compiled

        @functools.wraps(compiled)
        def without_mode(*args: Any, **kwargs: Any) -> Any:
            with mode.resting():
                return compiled(*args, **kwargs)

        return without_mode

    context.__call__ = call
