"""Enables the mode of known values where it belongs: on in backward passes, off in compiled code."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import Any

from ..capture import Capture
from . import collectives, packages, triton_kernels
from .mode import Values
from .operators import torch


def install(capture: Capture, torch: Any) -> None:
    """Call once torch is imported, if `options.values`."""
    if not torch.version.cuda:
        return
    mode = Values(capture)
    mode.__enter__()
    capture.patches.added("a TorchFunctionMode", mode.leave)
    capture.before_end.append(mode.unknown.journal)
    capture.without_values = mode.resting
    patches, when_imported = capture.patches, capture.imports.when_imported
    patches.wrap(torch.autograd, "_engine_run_backward", partial(_staying_on_in_backward, mode))
    patches.wrap(torch.UntypedStorage, "_share_cuda_", partial(_publishing_what_is_sent, mode))
    patches.wrap(torch.UntypedStorage, "resize_", partial(_abandoning_what_is_resized, mode))
    packages.install(capture, mode.unknown, mode.is_known)
    when_imported("torchvision.extension", mode.watch_torchvision)
    when_imported("triton.runtime.jit", lambda jit: triton_kernels.watch(jit, patches, mode.forget_written))
    if torch.distributed.is_available():
        collectives.watch(torch, patches, mode)
        # DDP compares sizes, and exchanges the order of its buckets, by integer tensors that it copies in C++.
        copying_integers = partial(_copying_integers, mode)
        patches.wrap(torch.distributed, "_verify_params_across_processes", copying_integers)
        patches.wrap(torch.distributed.Reducer, "_rebuild_buckets", copying_integers)
    when_imported(
        "torch._dynamo.eval_frame",
        lambda eval_frame: patches.wrap(
            eval_frame._TorchDynamoContext, "__call__", partial(_resting_in_compiled_code, mode)
        ),
    )


def _staying_on_in_backward(mode: Values, original: Any) -> Any:
    """torch disables a mode while it runs what the mode intercepted, here `loss.backward()`. But a backward pass runs
    the script's own code: recomputed checkpointed modules, autograd functions, hooks."""

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if mode in torch.overrides._get_current_function_mode_stack():
            return original(*args, **kwargs)
        with mode:
            return original(*args, **kwargs)

    return run_backward


def _publishing_what_is_sent(mode: Values, original: Any) -> Any:
    """torch.multiprocessing sends a handle of the memory, which holds other tensors as well."""

    @wraps(original)
    def share(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = original(self, *args, **kwargs)
        mode.publish(self)
        return handle

    return share


def _abandoning_what_is_resized(mode: Values, original: Any) -> Any:
    """FSDP frees and allocates the memory of a storage that stays."""

    @wraps(original)
    def resize_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "cuda":
            mode.abandon(self)
        return original(self, *args, **kwargs)

    return resize_


def _copying_integers(mode: Values, original: Any) -> Any:
    """The virtual GPU copies more than 64 KiB only while it is told that the copies carry integers."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with mode.all_copies_are_real():
            return original(*args, **kwargs)

    return call


def _resting_in_compiled_code(mode: Values, original: Any) -> Any:
    """torch.compile would trace the mode into the graph, so compiled code runs without it."""

    @wraps(original)
    def call(self: Any, function: Any) -> Any:
        compiled = original(self, function)
        if not inspect.isfunction(compiled):  # a module or a class: the functions it calls come here too
            return compiled

        @wraps(compiled)
        def without_mode(*args: Any, **kwargs: Any) -> Any:
            with mode.resting():
                return compiled(*args, **kwargs)

        return without_mode

    return call
