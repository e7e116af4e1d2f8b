"""torch.compile: Inductor and Triton really compile for the card, and the compiled step's memory is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ForetellRun, RunForetell
from foretell import trace


@pytest.fixture
def run_compiled(run_feature: RunForetell, tmp_path: Path) -> RunForetell:
    """In one process (Inductor's pool of compilers costs more than it saves here), with a cache of this test's own."""
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(how: str) -> ForetellRun:
        return run_feature("compiled", how, environment=environment, options=["--trace", str(tmp_path / "trace")])

    return run


def kernels(tmp_path: Path) -> set[str]:
    seen = trace.load(tmp_path / "trace")
    return {seen.names[name] for name in seen.kernels.name}


def binaries(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "cache").rglob("*.cubin"))


def test_a_compiled_step_needs_what_its_fused_kernels_need_cold_and_warm(
    run_compiled: RunForetell, tmp_path: Path
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
def test_graphs_of_compiled_steps_and_flex_attention(run_compiled: RunForetell, tmp_path: Path, how: str) -> None:
    run_compiled(how)
    assert any(name.startswith("triton_") for name in kernels(tmp_path))
