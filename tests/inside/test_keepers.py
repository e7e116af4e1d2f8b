"""Variables that hold more after each step are named, and looking at them keeps nothing alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

LOOP = """
    import torch
    def train():
        model = torch.nn.Linear(512, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        total, kept, seen, fixed = 0, [], {}, [torch.zeros(4).cuda()]
        for step in range(6):
            out = model(torch.ones(256, 512, device="cuda"))
            out.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            KEEP
        return kept, seen, total
    train()
"""


@pytest.mark.parametrize(
    ("keep", "name", "what"),
    [
        ("kept.append(out)", "kept", "a growing list of tensors"),
        ("kept.append({'out': out, 'step': step})", "kept", "a growing list of tensors"),
        ("seen[step] = out.detach()", "seen", "a growing dict of tensors"),
        ("total = total + model(out.detach()[:, :512]).mean()", "total", "a sum that keeps the graph of each step"),
    ],
)
def test_what_holds_more_after_each_step_is_named_with_its_line(capture: Run, keep: str, name: str, what: str) -> None:
    run = capture(LOOP.replace("KEEP", keep), steps="all").check()
    (keeper,) = run.lines("keeper")
    assert (keeper["name"], keeper["what"]) == (name, what)
    file, _, line = keeper["where"].rpartition(":")
    assert keep in Path(file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("keep", ["kept.append(out.mean().item())", "kept = [out]", "total = out.mean()"])
def test_what_does_not_grow_is_not_named(capture: Run, keep: str) -> None:
    assert not capture(LOOP.replace("KEEP", keep), steps="all").check().lines("keeper")


def test_what_a_function_lets_go_of_is_free(capture: Run) -> None:
    """A frame keeps the copy of its variables that was made for whoever asked (before Python 3.13)."""
    script = """
        import torch
        def train():
            model = torch.nn.Linear(512, 1024).cuda()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for step in range(4):
                out = model(torch.ones(1 << 16, 512, device="cuda"))
                out.mean().backward()
                optimizer.step()
                del out
                print(torch.cuda.memory_allocated() < 64 << 20)
        train()
        """
    assert capture(script, steps="all").check().said == ["True"] * 4


def test_a_mapping_that_loads_what_it_is_asked_for_is_not_asked(capture: Run) -> None:
    """transformers' tables of models import the modules of all of them."""
    script = """
        import torch
        class Lazy(dict):
            def values(self):
                raise ImportError("loads everything")
            __iter__ = __len__ = items = values
        TABLE, ROWS = Lazy(), type("Rows", (list,), {"__iter__": Lazy.values, "__len__": Lazy.values})()
        model = torch.nn.Linear(512, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            model(torch.ones(64, 512, device="cuda")).mean().backward()
            optimizer.step()
        """
    assert not capture(script, steps="all").check().lines("caveat")
