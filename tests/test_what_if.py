"""What a saved trace says of another card or other options is what a run there says."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capture_folder import SEGMENT, training_run
from conftest import ZOO
from foretell import gpus
from foretell.analysis.verdict import estimate_of
from foretell.analysis.what_if import what_if as run_what_if
from foretell.errors import UnsupportedError
from foretell.records import Attribution, Block
from foretell.trace import load, save
from warm_runs import WarmRuns

GRAPH = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
x = torch.randn(64, 1024, device="cuda")
stream = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    kept = [torch.zeros(4 << 20, device="cuda") for _ in range(4)]
del kept
with torch.cuda.stream(stream):  # the graph's memory stays the graph's
    more = [torch.empty(4 << 20, device="cuda") for _ in range(4)]
graph.replay()
"""


pytestmark = pytest.mark.xdist_group("what-if")
"""They share one recorded run."""


def what_if(trace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foretell", "what-if", str(trace), *words], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("recorded") / "unet.trace"
    words = ["run", "--gpu", "rtx-3060", "--steps", "all", "--quiet", "--trace", str(target), str(ZOO / "unet.py")]
    done = subprocess.run(
        [sys.executable, "-m", "foretell", *words], cwd=ZOO, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize(
    "options", ["expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:[1:2,64:4,>:8]"]
)
def test_other_options_give_what_a_run_with_them_gives(trace: Path, options: str, warm_runs: WarmRuns) -> None:
    done = what_if(trace, "--alloc-conf", options, "--json", "-")
    assert done.returncode == 0, done.stderr
    real = warm_runs.run(ZOO / "unet.py", environment={"PYTORCH_CUDA_ALLOC_CONF": options}, cwd=ZOO)
    document = json.loads(done.stdout)
    assert document["verdict"] == "fits"
    assert document["peak"]["reserved_bytes"] == real.peak["reserved_bytes"]
    assert document["peak"]["allocated_bytes"] == real.peak["allocated_bytes"]


def test_a_card_that_is_too_small_is_found_to_be_so(trace: Path) -> None:
    total = 300 << 20
    words = ("--gpu", f"{total},sm86", "--context", "280MiB", "--json", "-")
    done = what_if(trace, *words)
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "oom"
    assert document["oom"]["requested_bytes"] > 0


def test_what_if_yields_a_trace_and_so_every_report(trace: Path, tmp_path: Path) -> None:
    names = ("what-if.json", "other.trace", "page.html", "run.pickle", "report.json")
    files = {name: tmp_path / name for name in names}
    words = ("--json", "--trace", "--report", "--snapshot")
    options = [word for pair in zip(words, map(str, files.values()), strict=False) for word in pair]
    done = what_if(trace, "--alloc-conf", "expandable_segments:True", *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(files["what-if.json"].read_text())
    assert "</html>" in files["page.html"].read_text()
    snapshot = pickle.loads(files["run.pickle"].read_bytes())
    assert all(segment["is_expandable"] for segment in snapshot["segments"])
    command = [sys.executable, "-m", "foretell", "report", files["other.trace"], "--json", files["report.json"]]
    subprocess.run(command, capture_output=True, check=True)
    report = json.loads(files["report.json"].read_text())
    assert report == document["estimate"]
    assert report["peak"]["reserved_bytes"] == document["peak"]["reserved_bytes"]
    assert not [text for text in report["caveats"] if "not known" in text or "since the beginning" in text]


def test_what_if_nothing_is_different_gives_the_recorded_run_again(trace: Path) -> None:
    """Who holds what, the peak of every step and the device's bytes, found anew from other addresses."""
    recorded = load(trace)
    again = estimate_of(run_what_if(recorded, gpu=recorded.gpu).trace)
    before = estimate_of(recorded)
    assert (again.peak, again.steps, again.peak_step) == (before.peak, before.steps, before.peak_step)
    assert again.attribution is not None
    assert before.attribution is not None

    def without_addresses(attribution: Attribution) -> list[Block]:
        return sorted((replace(block, address=0, begin=0, end=None) for block in attribution.blocks), key=str)

    assert without_addresses(again.attribution) == without_addresses(before.attribution)
    assert again.attribution.fragmentation_bytes == before.attribution.fragmentation_bytes


def test_out_of_memory_names_the_step_the_phase_and_the_line(trace: Path, tmp_path: Path) -> None:
    words = ("--gpu", f"{300 << 20},sm86", "--context", "280MiB", "--trace", str(tmp_path / "small.trace"))
    assert what_if(trace, *words).returncode == 3
    estimate = estimate_of(load(tmp_path / "small.trace"))
    assert estimate.oom is not None
    assert estimate.verdict == "oom"
    assert (estimate.oom.where or "").rpartition(":")[0].endswith(".py")
    assert estimate.oom.phase in ("forward", "other")
    assert estimate.attribution is not None


def test_it_must_be_said_what_is_different(trace: Path) -> None:
    done = what_if(trace)
    assert done.returncode == 2
    assert "--gpu NAME, --alloc-conf OPTIONS" in done.stderr


def test_a_trace_that_does_not_come_to_its_own_peaks_is_refused(trace: Path, tmp_path: Path) -> None:
    whole = load(trace)
    final = tuple(replace(each, peak_reserved_bytes=each.peak_reserved_bytes + (2 << 20)) for each in whole.final)
    save(replace(whole, final=final), tmp_path / "other.trace")
    done = what_if(tmp_path / "other.trace", "--gpu", "rtx-4060")
    assert done.returncode == 2
    assert "cannot be replayed" in done.stderr


def test_an_incomplete_history_is_refused(tmp_path: Path) -> None:
    folder = training_run(tmp_path).history(("free_completed", SEGMENT + 512, 512, 11))
    with pytest.raises(UnsupportedError, match="history is incomplete: free completed at 0x700000000200"):
        run_what_if(folder.trace(), gpu=gpus.find("rtx-4060"))


def test_cuda_graphs_are_told_rather_than_guessed(tmp_path: Path, warm_runs: WarmRuns) -> None:
    """Their memory is in pools of their own, which the history does not tell."""
    (tmp_path / "graph.py").write_text(GRAPH)
    run = warm_runs.run(tmp_path / "graph.py", trace=tmp_path / "graph.trace")
    assert run.code == 0, run.tail()
    done = what_if(tmp_path / "graph.trace", "--gpu", "rtx-4060")
    assert done.returncode == 2
    assert "CUDA graphs" in done.stderr


def test_a_run_that_ran_out_of_memory_is_refused(tmp_path: Path, warm_runs: WarmRuns) -> None:
    target = tmp_path / "small.trace"
    run = warm_runs.run(ZOO / "unet.py", gpu=f"{300 << 20},sm86", context_bytes=280 << 20, trace=target, cwd=ZOO)
    assert run.code == 3, run.tail()
    done = what_if(target, "--gpu", "rtx-3060")
    assert done.returncode == 2
    assert "ran out of memory" in done.stderr
