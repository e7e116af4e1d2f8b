"""Scripts that end in ways of their own, on the virtual GPU: each gives a number, or a reason why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import HAS_CUDA, ForetellRun
from foretell.analysis.verdict import estimate_of
from foretell.trace import load
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
SMALL = {"gpu": "512MiB,sm86", "context_bytes": 160 << 20}


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


LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
"""


def test_a_limit_of_address_space_is_not_the_memory_of_the_card(warm_runs: WarmRuns, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIMITED + TRAINING.format(device="cuda"))
    done = warm_runs.run(tmp_path / "train.py", cwd=tmp_path)
    if HAS_CUDA:
        assert done.code == 2, done.tail()
        assert "ulimit -v unlimited" in done.stderr
    else:  # the CPU engine reserves no addresses
        assert done.result["verdict"] == "fits"


# --- nothing is lost --------------------------------------------------------------------------------------------------

HOSTILE = {
    "os._exit": ("", "import os; os._exit(0)"),
    "no environment": ("import os; os.environ.clear()", ""),
    "no environment after its start": ("", "import os; os.environ.clear(); step(64)"),
    "closed descriptors": ("", "import os; os.closerange(3, 200); step(64); step(64)"),
    "descriptors given to others": (
        "", "import os; os.closerange(3, 200); files = [open('mine', 'w') for _ in range(50)]; step(64)"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_library_bytes_and_peaks_survive_what_a_script_does_to_its_process(
    run: Any, warm_runs: WarmRuns, tmp_path: Path, name: str
) -> None:
    before, after = HOSTILE[name]
    plain = run()
    (tmp_path / "train.py").write_text(f"{before}\n{TRAINING.format(device='cuda')}{after}\nprint('end')\n")
    done = warm_runs.run(tmp_path / "train.py", cwd=tmp_path)
    assert done.code == 0, done.tail()
    assert done.result["library_names"] == ["cuBLAS"]
    numbers = ("allocated_bytes", "reserved_bytes", "library_bytes", "device_bytes")
    assert {name: done.peak[name] for name in numbers} == {name: plain.peak[name] for name in numbers}
    assert done.result["caveats"] == plain.result["caveats"]
    assert not list(tmp_path.glob("*.bin"))


def test_a_bare_except_in_the_training_loop_loses_nothing(warm_runs: WarmRuns, tmp_path: Path) -> None:
    """foretell then has to end the process by os._exit."""
    loop = """
for _ in range(1000):
    try:
        step(64)
    except:
        print("caught")
raise AssertionError("not ended")
"""
    (tmp_path / "train.py").write_text(TRAINING.format(device="cuda").replace("for _ in range(3):\n    step(64)", loop))
    done = warm_runs.run(tmp_path / "train.py", cwd=tmp_path, steps="auto")
    assert done.code == 0, done.tail()
    assert "caught" in done.stdout
    assert done.result["library_names"] == ["cuBLAS"]
    assert done.result["peak"]["by_category"]
    assert not any("exit" in caveat for caveat in done.result["caveats"])


@pytest.mark.parametrize("is_verbose", [False, True])
def test_the_traceback_of_an_oom_is_folded_and_that_of_another_failure_is_not(run: Any, is_verbose: bool) -> None:
    done = run("step(1 << 20)", verbose=is_verbose, **SMALL)
    assert done.result["verdict"] == "oom"
    assert ("Traceback (most recent call last)" in done.stdout) is is_verbose
    assert ("train.py:7; --verbose shows the traceback" in done.stdout) is not is_verbose
    failed = run("raise ValueError", verbose=is_verbose)
    assert "Traceback (most recent call last)" in failed.stdout


def test_a_killed_process_leaves_its_peaks_and_what_holds_them(warm_runs: WarmRuns, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.format(device="cuda") + "import os; os.kill(os.getpid(), 9)")
    trace = tmp_path / "killed.trace"
    assert warm_runs.run(tmp_path / "train.py", cwd=tmp_path, trace=trace).code == 1
    estimate = estimate_of(load(trace))
    assert estimate.ended_by is not None
    assert "SIGKILL" in estimate.ended_by.message
    assert estimate.library_names == ("cuBLAS",)
    assert estimate.attribution is not None
    assert any(block.category == "gradient" for block in estimate.attribution.blocks)


# --- out of memory, caught --------------------------------------------------------------------------------------------

CAUGHT = {
    "halves its batch": (
        """
batch = 1 << 20
while True:
    try:
        step(batch)
        break
    except torch.OutOfMemoryError:
        batch //= 2
""",
        "fits",
    ),
    "gives up": (
        """
try:
    step(1 << 20)
except torch.OutOfMemoryError:
    torch.cuda.empty_cache()
    print("giving up")
""",
        "oom",
    ),
    "a benchmark whose last configuration does not fit": (
        """
for batch in (64, 1 << 20):
    try:
        step(batch)
    except torch.OutOfMemoryError as error:
        print(batch, error)
""",
        "oom",
    ),
    "a benchmark with a configuration that does not fit": (
        """
for batch in (1 << 20, 64):
    try:
        step(batch)
    except torch.OutOfMemoryError as error:
        print(batch, error)
""",
        "fits",
    ),
    "an evaluation with smaller batches": (
        """
with torch.no_grad():
    for batch in (1 << 20, 64):
        try:
            model(torch.ones(64, 512, device=device).expand(batch // 64, 64, 512))
        except torch.OutOfMemoryError:
            print("smaller batches")
""",
        "fits",
    ),
    "an evaluation that is given up": (
        """
with torch.no_grad():
    try:
        model(torch.ones(64, 512, device=device).expand(1 << 14, 64, 512))
    except torch.OutOfMemoryError:
        print("no evaluation")
""",
        "oom",
    ),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_an_oom_that_the_script_caught_decides_unless_the_work_went_on(run: Any, name: str) -> None:
    code, verdict = CAUGHT[name]
    done = run(code, **SMALL)
    assert done.result["verdict"] == verdict, done.tail()
    told = [caveat for caveat in done.result["caveats"] if "ran out of memory" in caveat]
    assert len(told) == (verdict == "fits")


# --- several processes ------------------------------------------------------------------------------------------------

CHILDREN = """
import subprocess, sys
child = "import torch; held = torch.zeros(200 << 20, dtype=torch.uint8, device='cuda')"
for _ in range(2):
    subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_processes_that_share_the_card_are_added_and_those_that_follow_each_other_are_not(run: Any) -> None:
    alone, done = run(), run(CHILDREN)
    context = alone.peak["context_bytes"]
    assert done.result["together"] == {
        "num_processes": 2,
        "reserved_bytes": alone.peak["reserved_bytes"] + (200 << 20),
        "device_bytes": alone.peak["device_bytes"] + (200 << 20) + context,
    }
    assert done.result["verdict"] == "fits"
    one_child = CHILDREN.replace("range(2)", "range(1)")
    too_small = run(one_child, **SMALL)
    assert (too_small.code, too_small.result["oom"]["is_together"]) == (3, True)
    if HAS_CUDA:  # the CPU engine has one card, whatever CUDA_VISIBLE_DEVICES says
        elsewhere = run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n" + one_child, **SMALL)
        assert (elsewhere.code, elsewhere.result["together"]) == (0, None)
