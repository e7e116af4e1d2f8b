"""What only the watched process knows is journaled there: nothing is guessed from our own environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capture_folder import CaptureFolder
from foretell.analysis.lifetimes import attribute
from foretell.trace import Trace

from .conftest import Captured, Run

TRAINING = """
    import os, torch
    {before}
    model = torch.nn.Sequential(torch.nn.Linear(1000, 450), torch.nn.Linear(450, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.zeros(16, 1000, device="cuda")
    {later}
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated())
"""
IN_ENVIRONMENT = 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:4"'
BY_CALL = 'torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")'


def trace_of(run: Captured) -> Trace:
    return CaptureFolder(run.directory, int((run.directory / "main").read_text())).trace()


@pytest.mark.parametrize("before", [IN_ENVIRONMENT, BY_CALL], ids=["environment", "call"])
def test_settings_of_the_allocator_that_the_script_makes_itself_are_known(
    capture: Run, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    run = capture(TRAINING.format(before=before, later=""), steps="all").check()
    # Ours must not matter when the trace is made.
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    trace = trace_of(run)
    assert trace.allocator_settings == "roundup_power2_divisions:4"
    assert set(trace.allocator.power2_divisions) == {4}
    found = attribute(trace, device=0)
    assert sum(found.blocks[number].bytes for number in found.at_peak) == int(run.said[-1])
    assert {block.category for block in found.blocks} >= {"parameter", "gradient", "optimizer_state"}


def test_settings_that_are_changed_while_memory_is_in_use_are_a_caveat(capture: Run) -> None:
    run = capture(TRAINING.format(before="", later=BY_CALL), steps="all").check()
    assert [line["settings"] for line in run.lines("allocator")] == ["", "roundup_power2_divisions:4"]
    trace = trace_of(run)
    assert trace.allocator.power2_divisions == ()
    (caveat,) = [text for text in trace.caveats if "allocator's settings" in text]
    assert "'roundup_power2_divisions:4' while memory was in use" in caveat


def test_the_workspace_configuration_of_cublas_is_that_of_the_process(
    capture: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = 'os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"'
    run = capture(TRAINING.format(before=before, later=""), steps="all").check()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":65536:8")
    assert trace_of(run).cublas_workspace_config == ":16:8"


def test_code_of_the_user_is_told_from_libraries_by_the_folders_of_its_python(capture: Run, tmp_path: Path) -> None:
    """The user's own folder looks like one of a library, and is none."""
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import torch\ndef batch():\n    return torch.zeros(512, 512).cuda()\n")
    script = f"""
        import sys, torch
        sys.path.insert(0, {str(package.parent)!r})
        import mine
        kept = mine.batch()
    """
    run = capture(script).check()
    trace = trace_of(run)
    assert any(os.path.dirname(os.__file__).startswith(folder.rstrip("/")) for folder in trace.library_folders)
    assert all(folder.endswith(os.sep) for folder in (*trace.library_folders, *trace.own_folders))
    (block,) = [block for block in attribute(trace, device=0).blocks if block.bytes == 512 * 512 * 4]
    assert block.where == f"{package / '__init__.py'}:3"
