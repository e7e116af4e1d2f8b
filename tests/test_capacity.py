"""One rule says what fits: in Python for both engines and every report, in C for the virtual GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell import gpus
from foretell.rules import library_bytes
from foretell.rules.capacity import Capacity, capacity_for
from foretell.units import GIB, MIB
from warm_runs import WarmRuns

GPU = gpus.find("rtx-3060")
CONTEXT, OTHERS = 200 * MIB, 4 * GIB
SCRIPT = """
import torch

def reservable():
    free, total = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved()

x = torch.ones(64, 64, device="cuda")
print("LOADED nothing", reservable())
y = x @ x
print("LOADED cublasCreate", reservable())
"""


@pytest.mark.parametrize("engine", ["virtual", "cpu"])
def test_what_pytorch_can_reserve_is_the_same_in_c_and_in_python(
    engine: str, tmp_path: Path, warm_runs: WarmRuns
) -> None:
    (tmp_path / "asks.py").write_text(SCRIPT)
    taken = {"context_bytes": CONTEXT, "used_by_others_bytes": OTHERS}
    run = warm_runs.run(tmp_path / "asks.py", gpu=GPU.name, engine=engine, **taken)
    assert run.code == 0, run.tail()
    told = [line.split()[1:] for line in run.stdout.splitlines() if line.startswith("LOADED")]
    assert [function for function, _ in told] == ["nothing", "cublasCreate"]
    for function, reservable in told:
        capacity = capacity_for(
            GPU,
            context_bytes=CONTEXT,
            libraries=library_bytes(GPU),
            functions=[function],
            used_by_others_bytes=OTHERS,
        )
        assert int(reservable) == capacity.reservable_bytes
    assert run.result["capacity"]["reservable_bytes"] == capacity.reservable_bytes
    assert run.result["capacity"]["available_bytes"] == GPU.total_bytes - OTHERS


def test_a_job_fits_up_to_the_last_byte() -> None:
    capacity = Capacity(total_bytes=100, context_bytes=10, library_bytes=5, used_by_others_bytes=20)
    assert (capacity.available_bytes, capacity.reservable_bytes) == (80, 65)
    assert (capacity.verdict_of(65), capacity.verdict_of(66)) == ("fits", "oom")
    assert (capacity.spare_bytes(80), capacity.spare_bytes(90)) == (0, -10)
