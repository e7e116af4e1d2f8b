"""Marks calls of modules in the memory history, by a frame named after the module's path.

PyTorch records the Python frames of each allocation. `nn.Module.__call__` becomes a descriptor that calls each module
through a function of its own, whose code is named after the path: `<nn.Module>`, `Net.layers.3.linear`. It holds the
arguments exactly as long as the function it calls, so nothing lives longer.

A backward pass has no such frame on the stack. So when a module returns, the autograd nodes it made are looked up, and
each gets a pre-hook that marks where in the history it runs (owners.py). The hook keeps no tensor; full backward hooks,
which do change bytes, are not used.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any

from ...protocol.marks import MODULE_FRAME
from ..capture import Capture
from .compiled import CompiledModules
from .labels import Labels
from .owners import Owners

_SEEN = "foretell"
_ORIGINAL = "_orig_mod"
"""The attribute of a compiled module that is the module itself."""
_VIEWS = {
    f"{name}Backward{number}"
    for name in ("T", "View", "UnsafeView", "Transpose", "Permute", "Unsqueeze", "Squeeze", "ReshapeAlias", "Alias")
    for number in (0, 1)
}
"""Nodes that allocate nothing."""


class Inside(threading.local):
    """What this thread is running."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        """Modules whose forward it runs, outermost first."""
        self.num_compiled = 0
        """Calls of compiled functions."""


class Modules:
    def __init__(self, capture: Capture, owners: Owners, labels: Labels, *, marks_nodes: bool) -> None:
        self._marks_nodes = marks_nodes
        """The CPU engine looks up the running node when it allocates."""
        self._capture = capture
        self._owners = owners
        self._labels = labels
        self._inside = Inside()
        self._calls: dict[int, tuple[weakref.ref[Any], Callable[..., Any]]] = {}
        self._num_roots: dict[str, int] = {}
        self._torch: Any = None

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised."""
        self._torch = torch
        self._original = torch.nn.Module.__call__
        self._patch = self._capture.patches.wrap(torch.nn.Module, "__call__", lambda call: _NamedCall(self, call))
        self._capture.before_backward.append(lambda roots: self._find_nodes(roots, None))
        CompiledModules(self._capture, self._path_of).install(torch)
        self._capture.imports.when_imported("torch.fx._symbolic_trace", self._outlive_tracers)
        self._capture.imports.when_imported("torch._dynamo.eval_frame", self._note_compiled_calls)

    def is_named(self) -> bool:
        """Whether a call that begins now is named. torch.compile must not trace the names, nor meet them in a graph
        that it has broken up: it would compile other graphs then."""
        capture = self._capture
        return not capture.is_compiling or not (capture.is_in_compile_call or self._inside.num_compiled)

    def call_of(self, module: Any) -> Callable[..., Any]:
        """The function named after the module's path."""
        known = self._calls.get(id(module))
        if known is None or known[0]() is not module:
            self._name_all(module)
            known = self._calls[id(module)]
        return known[1]

    def _name_all(self, root: Any) -> None:
        """Name an unnamed module that is called, and its children: the root of a model, or a part added since."""
        inside = self._inside.paths
        kind = type(getattr(root, _ORIGINAL, root)).__name__
        name = f"{inside[-1]}.{kind}" if inside else self._root_name(kind)
        for path, module in root.named_modules():
            parts = [name, *(part for part in path.split(".") if part not in ("", _ORIGINAL))]
            self._calls[id(module)] = weakref.ref(module), self._named(".".join(parts))
        if not inside:
            self._capture.guarded("labels", partial(self._labels.model, name, root))

    def _root_name(self, kind: str) -> str:
        number = self._num_roots[kind] = self._num_roots.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}#{number}"

    def _named(self, path: str) -> Callable[..., Any]:
        code = _call.__code__.replace(co_filename=MODULE_FRAME, co_name=path)
        known = {"path": path, "original": self._original, "begin": self._begin, "end": self._end, "made": self._made}
        return FunctionType(code, known, path)

    def _begin(self, module: Any, path: str, args: Any) -> None:
        paths = self._inside.paths
        if not paths:
            for call in self._capture.on_root_call:
                self._capture.guarded("phases", partial(call, module))
        self._made(args, paths[-1] if paths else None)  # nodes the caller made for the arguments
        paths.append(path)

    def _end(self) -> None:
        self._inside.paths.pop()

    def _made(self, result: Any, path: str | None) -> None:
        if self._torch.is_grad_enabled():
            self._find_nodes(result, path)

    def _find_nodes(self, value: Any, path: str | None) -> None:
        """Assign nodes not found before to the module that has just ended."""
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

    def _note_compiled_calls(self, eval_frame: Any) -> None:
        def noting(original: Any) -> Any:
            @wraps(original)
            def compile_function(context: Any, function: Any) -> Any:
                compiled = original(context, function)
                if not inspect.isfunction(compiled):  # a module or a class: the functions it calls come here too
                    return compiled

                @wraps(compiled)
                def call(*args: Any, **kwargs: Any) -> Any:
                    self._inside.num_compiled += 1
                    try:
                        return compiled(*args, **kwargs)
                    finally:
                        self._inside.num_compiled -= 1

                return call

            return compile_function

        self._capture.patches.wrap(eval_frame._TorchDynamoContext, "__call__", noting)
        # What runs between two graphs is compiled too, unless it is excepted.
        for function in (_NamedCall.__get__, Modules.is_named):
            eval_frame.skip_code(function.__code__)

    def _outlive_tracers(self, module: Any) -> None:
        """torch.fx replaces the call while it traces, and then restores what it has read: the original."""

        def redoing(original: Any) -> Any:
            @wraps(original)
            def leave(*args: Any, **kwargs: Any) -> Any:
                try:
                    return original(*args, **kwargs)
                finally:
                    if vars(self._torch.nn.Module)["__call__"] is self._original:
                        self._patch.redo()

            return leave

        for name in ("__exit__", "revert_all_patches"):
            self._capture.patches.wrap(module._Patcher, name, redoing)

    def _path_of(self, number: int) -> str | None:
        """By the id of a module."""
        known = self._calls.get(number)
        return None if known is None or known[0]() is None else known[1].__name__


def module_of(node: Any) -> str | None:
    """Path of the module whose forward made an autograd node."""
    path: str | None = node.metadata.get(_SEEN)
    return path


class _NamedCall:
    """Replaces `nn.Module.__call__`: gives the original when read from the class, and a module its own function."""

    def __init__(self, modules: Modules, original: Any) -> None:
        self._modules = modules
        self._original = original

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if module is None:
            return self._original
        return MethodType(self._modules.call_of(module) if self._modules.is_named() else self._original, module)


def _call(self, *args, **kwargs):  # type: ignore[no-untyped-def]
    begin(self, path, args)  # type: ignore[name-defined]  # noqa: F821
    try:
        result = original(self, *args, **kwargs)  # type: ignore[name-defined]  # noqa: F821
    finally:
        end()  # type: ignore[name-defined]  # noqa: F821
    made(result, path)  # type: ignore[name-defined]  # noqa: F821
    return result


def tensors_of(value: Any, tensor_type: type) -> Iterator[Any]:
    if isinstance(value, tensor_type):
        yield value
    else:
        for each in contents(value) or ():
            yield from tensors_of(each, tensor_type)


def contents(value: Any) -> Iterable[Any] | None:
    """What a container holds; None: it is none. The code of a subclass is not run: a mapping that loads a class when it
    is asked for would load them all (transformers')."""
    return next((of(value) for kind, of in _CONTENTS.items() if isinstance(value, kind)), None)


_CONTENTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: dict.values,
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    deque: deque.__iter__,
}
