"""Scripts that end in ways of their own, on the virtual GPU: each gives a number, or a reason why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import ForetellRun
from warm_runs import WarmRuns

TRAINING = """
import torch
device = {device!r}
model = torch.nn.Linear(512, 512).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(batch):
    model(torch.ones(batch, 512, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(3):
    step(64)
"""


@pytest.fixture
def run(warm_runs: WarmRuns, tmp_path: Path) -> Any:
    def run_code(code: str = "", *, device: str = "cuda", **options: Any) -> ForetellRun:
        (tmp_path / "train.py").write_text(TRAINING.format(device=device) + code)
        return warm_runs.run(tmp_path / "train.py", cwd=tmp_path, **options)

    return run_code


def test_a_script_that_trains_on_the_cpu_put_nothing_on_the_gpu(run: Any) -> None:
    done = run(device="cpu")
    assert done.code == 2
    assert "nothing was put on the GPU" in done.stderr
    assert "trained on the CPU" in done.stderr
