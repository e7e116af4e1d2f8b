"""Names the modules of compiled code in the memory history.

Inductor's code runs without the modules it was made from. But it says in comments which nodes of Dynamo's graph each
kernel comes from, and Dynamo's graph knows the module of each node. So the graph is noted when it is compiled, the file
when it is loaded (also from a cache), and the comments are read when the history is written: an allocation in such a
file gets a frame that names the module, as calls of modules have (modules.py).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from ...protocol.marks import MODULE_FRAME
from ..capture import Capture

_SOURCE_NODES = re.compile(r"# (?:Topologically Sorted )?Source Nodes: \[(.*?)\]")
_ALLOCATION = re.compile(r"= empty_strided\w*\(")
"""Comes before the comment on the kernel that fills it; any other call comes after its comment."""
_SELF = "L['self']"
_CHILD = re.compile(r"(?:\._modules)?\['([^']*)'\]")
_NOTED = "_foretell_graph"


@dataclass(frozen=True)
class Node:
    """The module of a node of Dynamo's graph."""

    path: str | None
    """Of the module that was traced; another one of the same class may run the code later."""
    below: str | None
    """From the module whose forward was compiled; None if a function was compiled."""

    @property
    def root(self) -> str | None:
        """The path of the module whose forward was compiled."""
        if self.path is None or self.below is None or not f".{self.path}".endswith(f".{self.below}"):
            return None
        return self.path[: -len(self.below)].rstrip(".") if self.below else self.path

    def module(self, called: str | None) -> str | None:
        """Its path when the innermost module that is called has this path."""
        if called is None or self.below is None:
            return self.path or called
        if self.root is not None and self.root.startswith(f"{called}."):
            return self.path  # in a graph that was broken up: the calls within are not named
        return f"{called}.{self.below}" if self.below else called


_Graph = dict[str, Node]


class CompiledModules:
    def __init__(self, capture: Capture, path_of: Callable[[int], str | None]) -> None:
        self._capture = capture
        self._path_of = path_of
        """The path of a module by its id."""
        self._files: dict[str, _Graph] = {}
        self._nodes: dict[str, dict[int, str]] = {}
        """For each file that was read, the node of each line."""
        self._running = threading.local()

    def install(self, torch: Any) -> None:
        self._context = torch._guards.TracingContext.try_get
        watch, patches = self._capture.imports.when_imported, self._capture.patches
        watch("torch._inductor.compile_fx", lambda module: patches.wrap(module, "compile_fx", self._compiling))
        watch(
            "torch._inductor.codecache",
            lambda module: patches.wrap(module.PyCodeCache, "load_by_key_path", self._loading),
        )
        self._capture.before_history.append(self.name_stacks)

    def _compiling(self, original: Any) -> Any:
        @wraps(original)
        def compile_fx(model: Any, *args: Any, **kwargs: Any) -> Any:
            before = getattr(self._running, "graph", None)
            self._running.graph = self._graph_of(model)
            context = self._context()
            if context is not None:  # the backward graph may be compiled later, in the same context
                setattr(context, _NOTED, self._running.graph)
            try:
                return original(model, *args, **kwargs)
            finally:
                self._running.graph = before

        return compile_fx

    def _loading(self, original: Any) -> Any:
        @wraps(original)
        def load_by_key_path(key: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            graph = getattr(self._running, "graph", None) or getattr(self._context(), _NOTED, None)
            if graph is not None:
                self._files[str(path)] = graph
            return original(key, path, *args, **kwargs)

        return load_by_key_path

    def _graph_of(self, model: Any) -> _Graph:
        found = {node.name: self._node_of(node) for node in getattr(getattr(model, "graph", None), "nodes", ())}
        root = next((node.root for node in found.values() if node.root is not None), None)
        return {name: replace(node, path=root) if node.below == "" else node for name, node in found.items()}

    def _node_of(self, node: Any) -> Node:
        stack = node.meta.get("nn_module_stack")
        if not stack:
            return Node(path=None, below="")
        number, (source, *_) = list(stack.items())[-1]
        below = None
        if str(source).startswith(_SELF):
            below = _CHILD.sub(r".\1", str(source)[len(_SELF) :]).strip(".")
        return Node(path=self._path_of(int(number)) if str(number).isdigit() else None, below=below)

    def name_stacks(self, window: dict[str, Any]) -> None:
        """Add a frame to each stack that runs compiled code."""
        frames, stacks = window["frames"], window["stacks"]
        compiled = {n: self._node(file, line) for n, (file, line, _) in enumerate(frames) if file in self._files}
        called = {n: path for n, (file, _, path) in enumerate(frames) if file == MODULE_FRAME}
        if not compiled:
            return
        numbers = {path: number for number, path in called.items()}
        for stack in stacks:
            node = next((compiled[number] for number in stack if number in compiled), None)
            path = node.module(next((called[number] for number in stack if number in called), None)) if node else None
            if path is not None:
                if path not in numbers:
                    numbers[path] = len(frames)
                    frames.append([MODULE_FRAME, 0, path])
                stack.insert(0, numbers[path])

    def _node(self, file: str, line: int) -> Node | None:
        nodes = self._nodes.get(file)
        if nodes is None:
            nodes = self._nodes[file] = nodes_of_lines(file, self._files[file])
        return self._files[file].get(nodes.get(line, ""))


def nodes_of_lines(file: str, graph: _Graph) -> dict[int, str]:
    """The node that each line of a generated file comes from; of several, the last: the others are its inputs."""
    try:
        with open(file, encoding="utf-8") as source:
            lines = source.readlines()
    except OSError:
        return {}
    nodes: dict[int, str] = {}
    waiting: list[int] = []
    last: str | None = None
    for number, line in enumerate(lines, start=1):
        comment = _SOURCE_NODES.search(line)
        if comment is not None:
            names = [name for name in re.split(r",\s*", comment[1]) if name in graph]
            last = names[-1] if names else None
            if last is not None:
                nodes.update(dict.fromkeys(waiting, last))
            waiting.clear()
        elif _ALLOCATION.search(line):
            waiting.append(number)
        elif last is not None:
            nodes[number] = last
    return nodes
