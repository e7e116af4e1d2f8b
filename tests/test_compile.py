"""torch.compile: Inductor and Triton really compile for the card, and the compiled step's memory is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import FEATURES, ForetellRun, with_its_own_peaks
from foretell import trace
from warm_runs import WarmRuns


@pytest.fixture
def run_compiled(warm_runs: WarmRuns, tmp_path: Path) -> Callable[[str], ForetellRun]:
    """In a fork, with a cache of this test's own."""

    def run(how: str) -> ForetellRun:
        done = warm_runs.run(
            FEATURES / "compiled.py", how, environment={"XDG_CACHE_HOME": str(tmp_path / "cache")},
            trace=tmp_path / "trace", cwd=tmp_path,
        )  # fmt: skip
        return with_its_own_peaks(done)

    return run


def kernels(tmp_path: Path) -> set[str]:
    seen = trace.load(tmp_path / "trace")
    return {seen.names[name] for name in seen.kernels.name}


def binaries(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "cache").rglob("*.cubin"))


def test_a_compiled_step_needs_what_its_fused_kernels_need_cold_and_warm(
    run_compiled: Callable[[str], ForetellRun], tmp_path: Path
) -> None:
    eager = run_compiled("eager")
    assert not binaries(tmp_path)
    cold = run_compiled("default")
    compiled = binaries(tmp_path)
    assert len(compiled) >= 2
    assert any(name.startswith("triton_") for name in kernels(tmp_path))
    warm = run_compiled("default")
    assert binaries(tmp_path) == compiled, "the second run takes them from the cache"
    assert any(name.startswith("triton_") for name in kernels(tmp_path))
    assert warm.peak["allocated_bytes"] < eager.peak["allocated_bytes"], "fusion keeps fewer activations"
    graphs = [block for block in warm.peak["blocks"] if str(block["operator"]).startswith("compiled graph ")]
    assert graphs
    assert all("compiled.py:" in block["where"] for block in graphs), "the line in the model"
    modules = {block["module"] for block in graphs if block["category"] == "activation"}
    assert {"Block.wide", "Block.norm"} <= modules <= {"Block", "Block.norm", "Block.wide", "Block.narrow"}
    assert {block["module"] for block in graphs if block["phase"] == "backward"} <= modules | {"Block.narrow"}
    assert warm.peak["by_category"]["activation"] > 0
    assert warm.peak["by_category"]["parameter"] > 0
    assert warm.peak["allocated_bytes"] <= cold.peak["allocated_bytes"], "the first run also tries kernels out"


@pytest.mark.parametrize("how", ["reduce-overhead", "flex"])
def test_graphs_of_compiled_steps_and_flex_attention(
    run_compiled: Callable[[str], ForetellRun], tmp_path: Path, how: str
) -> None:
    run_compiled(how)
    assert any(name.startswith("triton_") for name in kernels(tmp_path))
