"""Adapts packages that detect CUDA in their own way."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from functools import wraps
from importlib.util import find_spec
from typing import Any

from ...inside.watch.phases import is_library_function

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def install(capture: Any, torch: Any, load_library: Any) -> None:
    _replace_nccl(capture, torch, load_library)
    _do_not_compile(capture, torch)
    complete_torchvision(torch)


def _do_not_compile(capture: Any, torch: Any) -> None:
    """torch.compile would generate GPU kernels; the eager code runs instead."""
    is_told = False

    def tell() -> None:
        nonlocal is_told
        if not is_told:
            capture.caveat("the CPU engine skips torch.compile; this is the memory of the eager code")
        is_told = True

    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not is_library_function(model):
            tell()
        return compile if model is None else model

    capture.patches.replace(torch, "compile", compile)
    capture.patches.replace(torch.nn.Module, "compile", lambda module, *args, **kwargs: tell())


def complete_torchvision(torch: Any) -> None:
    """A torchvision made for the CUDA build cannot load its operators with a CPU-only torch. Its import then fails,
    because it describes missing operators, which its models do not need. Call this before the import."""
    spec = find_spec("torchvision") if torch.version.cuda is None and "torchvision" not in sys.modules else None
    if spec is None or not spec.submodule_search_locations:
        return
    for path in glob.glob(os.path.join(spec.submodule_search_locations[0], "_C*.so")):
        try:
            ctypes.CDLL(path)
        except OSError:
            for name in ("nms", "qnms"):
                if not hasattr(torch.ops.torchvision, name):  # already defined in the fork of a completed process
                    torch.library.define(f"torchvision::{name}", _NMS)
            return


def _replace_nccl(capture: Any, torch: Any, load_library: Any) -> None:
    """Use torch's fake process group instead of NCCL's: a single rank has no peers."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    original = distributed.init_process_group

    @wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is not None and "nccl" not in str(backend):
            return original(backend, *args, **kwargs)
        from torch.testing._internal.distributed import fake_pg  # registers the backend

        load_library("ncclCommInitRank")
        if kwargs.get("store") is None:
            kwargs.update(store=fake_pg.FakeStore(), rank=0, world_size=1)
        started = original("fake", *args, **kwargs)
        _let_parallel_pretend(capture, torch)
        return started

    for module in (distributed, distributed.distributed_c10d):
        capture.patches.replace(module, "init_process_group", init_process_group)
    capture.patches.replace(distributed, "is_nccl_available", lambda: True)


def _let_parallel_pretend(capture: Any, torch: Any) -> None:
    """Skip DistributedDataParallel's comparison of parameters with other ranks: there are none."""
    parallel = torch.nn.parallel.distributed
    capture.patches.replace(parallel, "_verify_param_shape_across_processes", lambda *args, **kwargs: True)
    capture.patches.replace(parallel, "_sync_module_states", lambda *args, **kwargs: None)
    original = parallel.DistributedDataParallel.__init__

    def keep_gradients(state: Any, bucket: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    keep_gradients.__annotations__ = {
        "bucket": torch.distributed.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }  # torch checks for these classes, which cannot be named without importing torch

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, keep_gradients)
        if torch.version.cuda is None:
            self.logger = _Silent()  # the real one needs a device timer

    capture.patches.replace(parallel.DistributedDataParallel, "__init__", init)


class _Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None
