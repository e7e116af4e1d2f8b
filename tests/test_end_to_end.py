"""A training script of a few lines on the virtual GPU, as users run it. The zoo (test_zoo.py) has the many kinds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretell
from conftest import HANG_SECONDS, RunForetell
from foretell import gpus
from foretell.api import run as foretell_run
from foretell.cli import main
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, Job, changes
from foretell.runs import Progress, Warm, find_torch
from foretell.trace import load
from foretell.units import MIB
from foretell.virtual import library_paths
from warm_runs import WarmRuns

SCRIPT = """
import json, sys, torch
batch, steps = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    model(torch.randn(batch * (1 + step % 2), 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), "checkpoint.pt")
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""
# Without an optimizer of torch's: the first one of a process imports torch's compiler, for as much CPU as torch itself.
BY_HAND = """
import torch
weights = torch.ones(64, 64, device="cuda", requires_grad=True)
for step in range(2):
    (torch.randn(8, 64, device="cuda") @ weights).sum().backward()
    with torch.no_grad():
        weights -= 0.1 * weights.grad
    weights.grad = None
    print("step", step)
"""
WAITS = BY_HAND.replace('print("step", step)', "pass") + "import signal; print('trained', flush=True); signal.pause()\n"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def needed() -> None:
    if find_torch(sys.executable) is None:
        pytest.skip("torch is not installed")
    try:
        library_paths()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "train.py").write_text(SCRIPT)

    def foretell_run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "foretell", "run", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=HANG_SECONDS)

    return foretell_run


def test_the_peaks_are_what_torch_says_inside_the_script(run: Run, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "checkpoint.pt").write_text("precious")
    done = run("--gpu", "rtx-3060", "--steps", "all", "--json", "e.json", "--trace", "t.trace", "train.py", "4096", "4")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "e.json").read_text())
    allocated, reserved = json.loads(done.stdout.splitlines()[0])
    assert (document["peak"]["allocated_bytes"], document["peak"]["reserved_bytes"]) == (allocated, reserved)
    steps = [step["peak_allocated_bytes"] for step in document["steps"]]
    assert max(steps) == allocated
    assert steps[1] == steps[3] > steps[2]
    assert document["phases"] == ["forward", "backward", "optimizer"]
    assert "FITS" in done.stdout
    # Nothing of the user's was changed, and the saved trace tells the same.
    assert (tmp_path / "checkpoint.pt").read_text() == "precious"
    assert any(path.endswith("checkpoint.pt") for path in document["redirected_writes"])
    assert main(["report", str(tmp_path / "t.trace"), "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)
    for each in (again, document):  # the analysis was done twice
        each["seconds"] = {"script": each["seconds"]["script"]}
    assert again == document


def test_a_card_that_is_too_small_is_exit_code_3_with_the_line(
    run: Run, warm_runs: WarmRuns, tmp_path: Path
) -> None:
    plain = SCRIPT.replace("torch.optim.AdamW(model.parameters())", "model").replace("optimizer.step()", "pass")
    (tmp_path / "train.py").write_text(plain)
    done = run("--gpu", "512MiB,sm86", "--context", "160MiB", "--json", "-", "train.py", "65536", "4")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "oom"
    assert (document["oom"]["step"], document["oom"]["phase"]) == (0, "forward")
    assert document["oom"]["where"].endswith("train.py:7")
    assert document["oom"]["message"].startswith("CUDA out of memory. Tried to allocate 256.00 MiB")
    assert document["oom"]["requested_bytes"] == 256 * MIB
    assert "running again on a larger card" in done.stderr
    script = str(tmp_path / "train.py")
    peak = warm_runs.run(script, "65536", "4", gpu="48GiB,sm86", context_bytes=160 * MIB, cwd=tmp_path).peak
    assert {name: document["need"][name] for name in ("device_bytes", "reserved_bytes", "request_bytes")} == {
        name: peak[name] for name in ("device_bytes", "reserved_bytes", "request_bytes")
    }
    assert document["need"]["smallest_gpus"]
    assert "OUT OF MEMORY" in done.stderr
    assert "Traceback" not in done.stderr  # all of it is in the result
    assert "train.py:7; --verbose shows the traceback" in done.stderr


FILES = ("e.json", "t.trace", "r.html", "s.pickle")
ALL_FILES = ("--json", "e.json", "--trace", "t.trace", "--report", "r.html", "--snapshot", "s.pickle")


def test_a_script_that_fails_after_training_gives_its_number_in_every_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(BY_HAND + "torch.save_as(weights)\n")
    done = run("--gpu", "rtx-3060", *ALL_FILES, "--steps", "all", "fails.py")
    assert done.returncode == 1, done.stderr
    assert "AttributeError" in done.stderr
    assert "INCOMPLETE  the script itself failed at" in done.stdout
    assert all((tmp_path / name).stat().st_size for name in FILES)
    document = json.loads((tmp_path / "e.json").read_text())
    assert (document["complete"], document["ended_by"]["kind"], len(document["steps"])) == (False, "script", 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_gives_its_number_in_every_file(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    words = [sys.executable, "-m", "foretell", "run", "--gpu", "rtx-3060", "--steps", "all", *ALL_FILES, "waits.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)  # whatever came: what waits for ever must end
        shown = process.stdout.read()
    assert first == "trained\n"
    assert process.returncode == 130
    assert "INCOMPLETE  the run was interrupted after 2 training steps" in shown
    assert all((tmp_path / name).stat().st_size for name in FILES)
    document = json.loads((tmp_path / "e.json").read_text())
    assert (document["complete"], document["ended_by"]["kind"]) == (False, "interrupted")


def test_a_run_at_its_time_limit_gives_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    # The first look at the run comes when it has trained, however long that takes; its time is then over.
    monkeypatch.setattr("foretell.runs.waiting._FIRST_PROGRESS_SECONDS", 0.0)

    read, write = os.pipe()
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: popen(*args, **{**more, "stdout": write}))

    said: list[bytes] = []

    def until_trained(progress: Progress) -> None:
        if not said:  # a later look finds nothing to read, and would wait for ever
            said.append(os.read(read, 8))

    options = CaptureOptions(steps="all", timeout_seconds=5.0)
    job = Job(command=("waits.py",), cwd=tmp_path, gpu=gpus.find("rtx-3060"), options=options)
    estimate = foretell_run(job, on_progress=until_trained).estimate
    os.close(read)
    os.close(write)
    assert said[0].startswith(b"trained")
    assert estimate.ended_by is not None
    assert (estimate.ended_by.kind, len(estimate.steps)) == ("time_limit", 2)
    assert estimate.attribution is not None


def test_what_the_script_wrote_can_be_kept(run_in_forks: RunForetell, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run_in_forks("train.py", "8", "2", options=["--keep-writes", "kept", "--quiet"])
    assert done.code == 0, done.tail()
    assert [path.name for path in (tmp_path / "kept").rglob("*.pt")] == ["checkpoint.pt"]


def train(width: int, *, steps: int = 3) -> None:
    import torch

    model = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, width, device="cuda")).sum().backward()
        optimizer.step()


def test_a_function_is_estimated_in_a_child_process() -> None:
    estimate = foretell.estimate(train, gpu="rtx-3060", args=(1024,), kwargs={"steps": 2}, context="200MiB")
    assert (estimate.verdict, len(estimate.steps)) == ("fits", 2)
    assert estimate.peak.allocated_bytes > 8 * MIB  # weight and gradient
    assert estimate.peak.context_bytes == 200 * MIB


@pytest.mark.usefixtures("in_forks")
def test_a_lambda_is_estimated_too() -> None:
    assert foretell.estimate(lambda: train(64), gpu="a100").verdict == "fits"


@pytest.mark.usefixtures("in_forks")
def test_a_function_that_raises_is_a_script_error() -> None:
    def fails() -> None:
        raise ValueError("of its own")

    with pytest.raises(ScriptError, match="ValueError: of its own"):
        foretell.estimate(fails)


def test_a_function_that_cannot_travel_is_a_mistake_of_usage() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="picklable"):
        foretell.estimate(lambda: lock.acquire())


TELLS = """
import os, sys
import torch
print(os.getcwd(), os.environ.get("OF_THE_JOB"), "HOME" in os.environ, sys.argv[1:], file=open(sys.argv[1], "w"))
torch.zeros(4, device="cuda")
"""


@pytest.mark.parametrize("words", [["train.py"], ["-m", "package.train"]])
def test_a_job_runs_in_its_folder_with_its_environment(words: list[str], warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).write_text(TELLS)
    job = Job(
        command=(*words, "said"),
        gpu=gpus.find("rtx-3060"),
        cwd=tmp_path,
        environment=changes({"OF_THE_JOB": "5", "HOME": None}),
        options=CaptureOptions(isolation="none"),
    )
    for each in (None, warm):
        assert foretell_run(job, warm=each).estimate.verdict == "fits"
        assert (tmp_path / "said").read_text() == f"{tmp_path} 5 False ['said']\n"
        (tmp_path / "said").unlink()


@pytest.mark.usefixtures("in_forks")
def test_a_function_runs_in_the_folder_and_the_environment_it_is_given(tmp_path: Path) -> None:
    def tells() -> None:
        import os

        import torch

        torch.zeros(4, device="cuda")
        if os.environ["OF_THE_JOB"] != "5":
            raise ValueError
        print(os.getcwd())

    estimate = foretell.estimate(tells, cwd=tmp_path, env={"OF_THE_JOB": "5"})
    assert estimate.verdict == "fits"


def test_a_folder_or_a_script_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such working folder: .*nowhere"):
        foretell.estimate(["train.py"], cwd=tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"no such script: train.py. .* contains no Python scripts"):
        foretell.estimate(["train.py"], cwd=tmp_path)


@pytest.mark.usefixtures("in_forks")
def test_a_script_that_fails_leaves_its_trace(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.zeros(4, device='cuda')\nraise ValueError('of its own')\n")
    run = foretell_run(Job(command=("train.py",), cwd=tmp_path, gpu=gpus.find("rtx-3060")), warm=warm)
    assert run.trace.exception is not None
    assert run.trace.final[0].peak_reserved_bytes > 0
    with pytest.raises(ScriptError, match="ValueError: of its own"):
        _ = run.estimate
    with pytest.raises(ScriptError, match="ValueError: of its own"):
        foretell.estimate(["train.py"], cwd=tmp_path, trace=tmp_path / "failed.trace")
    assert load(tmp_path / "failed.trace").exception == run.trace.exception


def test_a_command_is_a_list_of_words() -> None:
    with pytest.raises(UsageError, match="list of words"):
        foretell.estimate("train.py --batch-size 64")
    with pytest.raises(UsageError, match="for functions"):
        foretell.estimate(["train.py"], args=(1,))


def test_the_doctor_finds_all_that_is_needed(capsys: Any) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["self-test"]["state"] == "ok"
    assert findings["CUDA functions"]["state"] == "ok", findings["CUDA functions"]


# --- standard output --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("redirection", ["", ">&-", "2>&1"])
def test_a_script_does_not_notice_that_nobody_reads_what_it_prints(tmp_path: Path, redirection: str) -> None:
    """`foretell run train.py | head -1`: an error of its own, as on no GPU."""
    (tmp_path / "train.py").write_text(BY_HAND)
    read, write = os.pipe()
    os.close(read)
    command = f"exec {sys.executable} -m foretell run --json result.json train.py {redirection}"
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            ["sh", "-c", command], stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=unbuffered,
            timeout=HANG_SECONDS,
        )  # fmt: skip
    finally:
        os.close(write)
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["complete"], len(result["steps"])) == (True, 2)


def test_what_a_script_prints_into_a_pipe_comes_before_the_result_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BY_HAND + "import os, sys\nsys.stdout.flush()\nos.write(2, b'at last\\n')\n")
    command = [sys.executable, "-m", "foretell", "run", "train.py"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, timeout=HANG_SECONDS
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("foretell:")]
    assert lines[:3] == ["step 0", "step 1", "at last"]
    assert " FITS " in lines[4]
