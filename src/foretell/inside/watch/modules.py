"""Marks calls of modules in the memory history, by a frame named after the module's path.

PyTorch notes the Python frames of each allocation. `nn.Module.__call__` becomes a descriptor that gives each module a
function of its own to be called through, whose code has the path for a name: `<nn.Module>`, `Net.layers.3.linear`. It
keeps the arguments as long as the function it calls does, so nothing lives longer for it.

In a backward pass no such frame is on the stack. So each node of autograd's graph is looked up when the module that
made it returns, and gets a pre-hook that marks where in the history it runs (owners.py). The hook keeps no tensor;
full backward hooks, which do change bytes, are not used.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from ...protocol.marks import MODULE_FRAME
from ..capture import Capture
from .labels import Labels
from .owners import Owners

_SEEN = "foretell"
_VIEWS = {
    f"{name}Backward{number}"
    for name in ("T", "View", "UnsafeView", "Transpose", "Permute", "Unsqueeze", "Squeeze", "ReshapeAlias", "Alias")
    for number in (0, 1)
}
"""Nodes that allocate nothing."""


class Inside(threading.local):
    """The modules whose forward this thread is in, outermost first."""

    def __init__(self) -> None:
        self.paths: list[str] = []


class Modules:
    def __init__(self, capture: Capture, owners: Owners, labels: Labels, *, marks_nodes: bool) -> None:
        self._marks_nodes = marks_nodes
        """The CPU engine asks for the node that runs when it allocates."""
        self._capture = capture
        self._owners = owners
        self._labels = labels
        self._inside = Inside()
        self._calls: dict[int, tuple[weakref.ref[Any], Callable[..., Any]]] = {}
        self._num_roots: dict[str, int] = {}
        self._torch: Any = None

    def install(self, torch: Any) -> None:
        """Called when CUDA is being initialised."""
        self._torch = torch
        self._original = torch.nn.Module.__call__
        self._patch = self._capture.patches.wrap(torch.nn.Module, "__call__", lambda call: _NamedCall(self, call))
        self._capture.before_backward.append(lambda roots: self._find_nodes(roots, None))
        self._capture.when_compiling.append(self._stop)
        if self._capture.is_compiling:
            self._stop()

    def call_of(self, module: Any) -> Callable[..., Any]:
        """The function with the module's path for a name."""
        known = self._calls.get(id(module))
        if known is None or known[0]() is not module:
            self._name_all(module)
            known = self._calls[id(module)]
        return known[1]

    def _name_all(self, root: Any) -> None:
        """A module nobody has named is called: the root of a model, or a part added since."""
        inside = self._inside.paths
        kind = type(root).__name__
        name = f"{inside[-1]}.{kind}" if inside else self._root_name(kind)
        for path, module in root.named_modules():
            full = f"{name}.{path}" if path else name
            self._calls[id(module)] = weakref.ref(module), self._named(full)
        if not inside:
            self._labels.model(name, root)

    def _root_name(self, kind: str) -> str:
        number = self._num_roots[kind] = self._num_roots.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}#{number}"

    def _named(self, path: str) -> Callable[..., Any]:
        code = _call.__code__.replace(co_filename=MODULE_FRAME, co_name=path)
        known = {"path": path, "original": self._original, "begin": self._begin, "end": self._end, "made": self._made}
        return FunctionType(code, known, path)

    def _begin(self, path: str, args: Any) -> None:
        paths = self._inside.paths
        self._made(args, paths[-1] if paths else None)  # what the caller has made of its own for it
        paths.append(path)

    def _end(self) -> None:
        self._inside.paths.pop()

    def _made(self, result: Any, path: str | None) -> None:
        if self._torch.is_grad_enabled():
            self._find_nodes(result, path)

    def _find_nodes(self, value: Any, path: str | None) -> None:
        """Those not found before are of the module that has just ended."""
        with self._torch._C.DisableTorchFunction():
            pending = [tensor.grad_fn for tensor in tensors_of(value, self._torch.Tensor)]
            while pending:
                node = pending.pop()
                if node is None or _SEEN in node.metadata:
                    continue
                node.metadata[_SEEN] = path
                name = node.name()
                if self._marks_nodes and name not in _VIEWS:
                    node.register_prehook(partial(self._before_node, name, path))
                pending += [before for before, _ in node.next_functions]

    def _before_node(self, name: str, path: str | None, grads: Any) -> None:
        self._owners.mark_node(name, path)

    def _stop(self) -> None:
        """torch.compile would trace into it. The parameters of what is compiled are known all the same."""
        self._patch.undo()
        while self._capture.compiled:
            model = self._capture.compiled.pop()()
            if model is not None:
                self._labels.model(self._root_name(type(model).__name__), model)


def module_of(node: Any) -> str | None:
    """The path of the module in whose forward a node of autograd's graph was made."""
    path: str | None = node.metadata.get(_SEEN)
    return path


class _NamedCall:
    """In the place of `nn.Module.__call__`: for those who look at the class the original, for a module its own."""

    def __init__(self, modules: Modules, original: Any) -> None:
        self._modules = modules
        self._original = original

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if module is None:
            return self._original
        return MethodType(self._modules.call_of(module), module)


def _call(self, *args, **kwargs):  # type: ignore[no-untyped-def]
    begin(path, args)  # type: ignore[name-defined]  # noqa: F821
    try:
        result = original(self, *args, **kwargs)  # type: ignore[name-defined]  # noqa: F821
    finally:
        end()  # type: ignore[name-defined]  # noqa: F821
    made(result, path)  # type: ignore[name-defined]  # noqa: F821
    return result


def tensors_of(value: Any, tensor_type: type) -> Iterator[Any]:
    if isinstance(value, tensor_type):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each, tensor_type)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each, tensor_type)
