"""torch.compile beside the hooks: they must not be traced into the graph, and still see its modules and phases."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.inside.watch.compiled import Node, nodes_of_lines

from .conftest import Run

SCRIPT = """
    import torch
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).cuda(), backend="aot_eager")
    mask = torch.arange(8, device="cuda") > 3
    for _ in range(2):
        out = model(torch.randn(4, 8, device="cuda"))
        out.sum().backward()
    print(int(mask.sum()), torch.cuda.max_memory_allocated())
"""


def test_compiled_code_runs_without_the_mode_and_the_rest_with_it(capture: Run) -> None:
    with_hooks = capture(SCRIPT, steps="all").check()
    without = capture(SCRIPT, hooks=False).check()
    assert with_hooks.said[-1].split()[0] == "4"
    assert with_hooks.said[-1].split()[1] == without.said[-1].split()[1]


GRAPHS = """
    import torch
    from torch import nn
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
        def forward(self, x):
            x = self.layer(x)
            torch._dynamo.graph_break()
            return x.relu()
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts, self.head = nn.Sequential(Part(), Part()), nn.Linear(8, 2)
        def forward(self, x):
            return self.head(self.parts(x))
    def backend(graph, inputs):
        print("GRAPH", *(node.name for node in graph.graph.nodes))
        return graph
    net = Net().cuda()
    torch.fx.symbolic_trace(nn.Linear(2, 2))  # which replaces the call of modules for a while
    model = torch.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.randn(4, 8, device="cuda"))
    print("BYTES", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


def test_the_hooks_change_neither_graphs_nor_bytes_of_a_compiled_model(capture: Run) -> None:
    with_hooks = capture(GRAPHS, steps="all").check()
    without = capture(GRAPHS, hooks=False).check()
    assert len(with_hooks.said) > 3
    assert with_hooks.said == without.said


def test_the_phases_of_a_compiled_model_are_seen(capture: Run) -> None:
    phases = [(line["phase"], line["step"]) for line in capture(GRAPHS, steps="all").check().lines("phase")]
    passes = [each for each in phases if each[0] in ("forward", "evaluation")]
    assert passes == [("forward", 0), ("forward", 1), ("evaluation", 2)]


CODE = """
buf0 = empty_strided_cuda((2, 2), (2, 1), torch.float32)
assert_size_stride(primals_1)
buf1 = empty_strided_cuda((2, 2), (2, 1), torch.float32)
# Topologically Sorted Source Nodes: [x, linear], Original ATen: [aten.addmm]
extern_kernels.addmm(buf0, buf1)
# Topologically Sorted Source Nodes: [linear, relu], Original ATen: [aten.relu]
buf2 = torch.ops.aten.relu.default(buf0)
# Topologically Sorted Source Nodes: [], Original ATen: []
buf3 = torch.ops.aten.sin.default(buf2)
"""


def test_a_line_of_generated_code_belongs_to_the_last_node_of_its_kernel(tmp_path: Path) -> None:
    file = tmp_path / "generated.py"
    file.write_text(CODE.lstrip())
    graph = {name: Node(path=name, below=name) for name in ("x", "linear", "relu")}
    assert nodes_of_lines(str(file), graph) == {1: "linear", 3: "linear", 5: "linear", 7: "relu"}


@pytest.mark.parametrize(
    ("node", "called", "module"),
    [
        (Node(path="Net.head", below="head"), "Net", "Net.head"),
        (Node(path="Net.head", below="head"), None, "Net.head"),  # in a backward pass
        (Node(path="Net.layers.0.up", below="up"), "Net.layers.3", "Net.layers.3.up"),  # layers share their code
        (Node(path="Net.layers.0.up", below="up"), "Net", "Net.layers.0.up"),  # a graph that was broken up
        (Node(path=None, below=""), "Net", "Net"),
        (Node(path="Net.head", below=None), None, "Net.head"),  # a compiled function
        (Node(path=None, below=None), None, None),
    ],
)
def test_the_module_of_a_node_depends_on_the_module_that_is_called(
    node: Node, called: str | None, module: str | None
) -> None:
    assert node.module(called) == module
