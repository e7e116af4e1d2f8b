"""Finds the tensors a Triton kernel writes, from its intermediate code.

A Triton kernel takes addresses and bypasses PyTorch, so its writes are not seen otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..patches import Patches

_FUNCTION = re.compile(r"tt\.func public @\S+?\((.*)")
_ARGUMENT = re.compile(r"(%\w+): (!tt\.ptr|[^\s,)]+)")
_RESULT = re.compile(r"\s*(%\w+)(?::\d+)? = \"?([\w.]+)\"?(.*)")
_CARRIED = re.compile(r"(%\w+) = (%\w+)")
_WRITES = re.compile(r"(?:^|\s)\"?tt\.(?:store|atomic_rmw|atomic_cas)\"?[ (](.*)")
_MOVES_POINTERS = frozenset(
    {"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.bitcast", "arith.select"}
)


def watch(jit: Any, patches: Patches, forget: Callable[[list[Any]], None]) -> None:
    """Call `forget` after each launch with the tensors the kernel may have written."""

    def watching(original: Any) -> Any:
        @wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = original(self, *args, **kwargs)
            given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            tensors = [given[name] for name in self.arg_names if hasattr(given.get(name), "data_ptr")]
            forget(_written_among(kernel, tensors))
            return kernel

        return run

    patches.wrap(jit.JITFunction, "run", watching)


def _written_among(kernel: Any, tensors: list[Any]) -> list[Any]:
    try:
        written = kernel.foretell_written
    except AttributeError:
        code = getattr(kernel, "asm", {}).get("ttir")
        written = written_pointers(str(code)) if code else None
        if kernel is not None:
            kernel.foretell_written = written
    if written is None or written.num_pointers != len(tensors):
        return tensors
    return [tensors[index] for index in written.indices]


class Written:
    def __init__(self, num_pointers: int, indices: list[int]) -> None:
        self.num_pointers = num_pointers
        self.indices = indices


def written_pointers(code: str) -> Written | None:
    """Numbers, from 0, of the kernel's pointer arguments that reach a store; None if the code is not understood."""
    function = _FUNCTION.search(code)
    if function is None or "tt.call" in code:
        return None
    pointers = [name for name, kind in _ARGUMENT.findall(function[1]) if kind == "!tt.ptr"]
    roots = {name: {index} for index, name in enumerate(pointers)}
    written: set[int] = set()
    for line in code[function.end() :].splitlines():
        store = _WRITES.search(line)
        if store is not None:
            # An atomic names its kind first: `fadd, acq_rel, gpu, %pointer, %value`.
            target = re.search(r"%\w+", store[1])
            if target is None or target[0] not in roots:
                return None
            written |= roots[target[0]]
        elif "iter_args(" in line:
            for inner, outer in _CARRIED.findall(line[line.index("iter_args(") :]):
                if outer in roots:
                    roots[inner] = roots[outer]
        else:
            _follow(line, roots)
    return Written(len(pointers), sorted(written))


def _follow(line: str, roots: dict[str, set[int]]) -> None:
    result = _RESULT.match(line)
    if result is None:
        return
    reached = [roots[name] for name in re.findall(r"%\w+", result[3]) if name in roots]
    roots.pop(result[1], None)  # adjacent loops use the same names
    if reached and result[2] in _MOVES_POINTERS:
        roots[result[1]] = set().union(*reached)
