"""DeepSpeed's own optimizers without a compiler.

They compile their kernels when they are first used, which takes a CUDA toolkit and a minute. Kernels compute nothing
here, so nothing has to be compiled.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from ..capture import Capture

_OPTIMIZERS = {"fused_adam", "fused_lion", "cpu_adam", "cpu_lion", "cpu_adagrad"}
"""Names of extensions whose functions have no result and allocate nothing (deepspeed/ops/csrc, 0.14 to 0.19)."""


def install(capture: Capture, torch: Any) -> None:
    def watch(module: Any) -> None:
        def loading(original: Any) -> Any:
            @wraps(original)
            def load(builder: Any, *args: Any, **kwargs: Any) -> Any:
                is_known = getattr(builder, "name", None) in _OPTIMIZERS
                return Kernels(torch) if is_known else original(builder, *args, **kwargs)

            return load

        capture.patches.wrap(module.OpBuilder, "load", loading)

    capture.imports.when_imported("deepspeed.ops.op_builder.builder", watch)


class Kernels:
    """In the place of a compiled extension."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return self._change

    def _change(self, *args: Any) -> None:
        """What a kernel of several tensors is given, (chunk, flag, [gradients, parameters, moments, ...], ...), is
        changed where it lies. On the host nothing is computed."""
        for given in args:
            for tensors in given[1:] if isinstance(given, list) else ():
                # Not the tensors themselves: such a kernel does not count as a change in their history.
                self._torch._foreach_mul_([tensor.data for tensor in tensors], 1.0)
