"""Steps are counted, phases marked, peaks cumulative."""

from __future__ import annotations

import marshal
from array import array
from pathlib import Path

import pytest

from foretell.protocol.history import ACTIONS, COLUMNS

from .conftest import Captured, Run

PLAIN = """
    import torch
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        loss = model(torch.zeros(8, 256, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            big = torch.empty(64 << 20, device="cuda")
            del big
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    print(torch.cuda.max_memory_allocated() < 64 << 20)
    model.eval()
    with torch.no_grad():
        model(torch.zeros(8, 256, device="cuda"))
"""


@pytest.fixture(scope="module")
def plain(capture: Run) -> Captured:
    return capture(PLAIN, steps="all", cold=True).check()  # the import of torch is timed


def phases(captured: Captured) -> list[tuple[str, int]]:
    lines = [(line["phase"], line["step"]) for line in captured.lines("phase")]
    return [line for line in lines if line[0] != "other"]


def test_each_step_has_forward_backward_and_optimizer(plain: Captured) -> None:
    expected = [(phase, step) for step in range(3) for phase in ("forward", "backward", "optimizer")]
    assert phases(plain) == [*expected, ("evaluation", 3)]


def test_steps_are_numbered_from_zero_with_their_bytes(plain: Captured) -> None:
    assert [line["index"] for line in plain.lines("step")] == [0, 1, 2]
    assert plain.lines("step")[0]["devices"][0]["allocated_bytes"] > 0


def test_a_peak_survives_the_scripts_reset_and_the_script_sees_its_own(plain: Captured) -> None:
    assert plain.said == ["True"]
    assert plain.one("end")["devices"][0]["peak_allocated_bytes"] > 256 << 20
    assert plain.lines("step")[0]["devices"][0]["peak_allocated_bytes"] < 64 << 20


def test_the_end_says_what_was_seen(plain: Captured) -> None:
    end = plain.one("end")
    assert end["steps"] == 3
    assert end["phases"] == ["forward", "backward", "optimizer", "evaluation"]
    assert 0 < end["seconds"]["import_torch"] < end["seconds"]["script"]


def test_the_history_has_every_allocation_in_the_time_of_its_phase(plain: Captured) -> None:
    found = []
    for file in plain.directory.glob("history-*.marshal"):
        history = marshal.loads(file.read_bytes())
        columns = {name: array(letter, history["columns"][name]) for name, letter in COLUMNS.items()}
        for action, size, stack, time_us in zip(*map(columns.get, ("action", "size", "stack", "time_us")), strict=True):
            if ACTIONS[action] == "alloc" and size == 256 << 20:
                found.append(([history["frames"][frame] for frame in history["stacks"][stack]], time_us))
    ((frames, time_us),) = found
    assert frames[-1][0].endswith("train.py")
    first, second = (line["time_us"] for line in plain.lines("step")[:2])
    assert first < time_us < second


def test_with_several_optimizers_a_step_is_one_of_the_first(capture: Run) -> None:
    captured = capture(
        """
        import torch
        models = [torch.nn.Linear(8, 8).cuda() for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        for step in range(3):
            for model, optimizer in zip(models, optimizers):
                model(torch.zeros(2, 8, device="cuda")).sum().backward()
                optimizer.step()
        """,
        steps="all",
    ).check()
    assert captured.one("end")["steps"] == 3


def test_a_closure_is_forward_and_backward_inside_the_optimizer_step(capture: Run) -> None:
    captured = capture(
        """
        import torch
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        def closure():
            loss = model(torch.zeros(2, 8, device="cuda")).sum()
            loss.backward()
            return loss
        optimizer.step(closure)
        """,
        steps="all",
    ).check()
    assert [phase for phase, _ in phases(captured)] == ["optimizer", "forward", "backward", "optimizer"]


def test_a_script_that_uses_no_gpu_leaves_no_trace_of_one(capture: Run) -> None:
    captured = capture("import torch; torch.zeros(3).sum(); print(torch.cuda.is_initialized())").check()
    assert captured.said == ["False"]
    assert captured.lines("cuda") == []
    assert captured.one("torch")["cuda"]


def test_a_library_that_compiles_functions_of_its_own_does_not_hide_the_phases(capture: Run, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "compiles.py").write_text(
        "import torch\n@torch.compile(dynamic=True)\ndef one(x): return x\n@torch.compile\ndef two(x): return x\n"
    )
    script = f"""
        import sys
        sys.path.insert(0, {str(library)!r})
        import compiles, torch
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.ones(2, 4, device="cuda"))
        """
    assert set(capture(script, steps="all").check().one("end")["phases"]) >= {"forward", "backward", "evaluation"}
