"""torch.compile beside the hooks: the mode that repeats operators on the host must not be traced into the graph."""

from __future__ import annotations

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
