"""A calibration of the virtual GPU gives back the virtual GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import RunForetell
from foretell import calibration, gpus
from foretell.calibration import from_runs
from foretell.calibration.from_runs import MeasuredRun, RepeatedRun
from foretell.errors import UnsupportedError, UsageError
from foretell.rules import guessed_context_bytes, library_bytes
from foretell.units import MIB
from warm_runs import WarmRuns

CONVOLUTION = {
    "direction": "forward", "element_bytes": 4, "x": [8, 64, 56, 56], "y": [8, 64, 56, 56], "w": [64, 64, 3, 3],
    "workspace_bytes": 1024,
}  # fmt: skip
PROFILE = {
    "schema": "foretell.profile/1", "device_name": "NVIDIA GeForce RTX 3060", "total_bytes": 12622168064,
    "torch_version": "2.6.0", "cuda_version": "12.4", "cudnn_version": 90100, "driver_version": "580",
    "context_bytes": 256 << 20, "libraries": {"cublas": 1 << 20, "cudnn": 2 << 20, "nccl": 0, "cudnn_batch_norm": 0},
    "convolutions": [CONVOLUTION],
}  # fmt: skip
TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3), nn.Conv2d(64, 128, 3),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(16, 3, 70, 70).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def calibrate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foretell", "calibrate", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["a100-40gb", "rtx-3060"])
def test_a_calibration_of_the_virtual_gpu_reproduces_it(name: str, tmp_path: Path, warm_runs: WarmRuns) -> None:
    target, script = tmp_path / "profile.json", tmp_path / "train.py"
    script.write_text(TRAIN)
    done = calibrate("--gpu", name, "--output", str(target))
    assert done.returncode == 0, done.stderr
    gpu, profile = gpus.find(name), calibration.load(target)
    expected = library_bytes(gpu)
    assert profile.context_bytes == gpu.context_bytes
    assert (profile.libraries.cublas, profile.libraries.cudnn) == (expected.cublas, expected.cudnn)
    assert profile.libraries.cudnn_batch_norm == expected.cudnn_batch_norm
    assert len(profile.convolutions) > 200
    guessed = warm_runs.run(script, gpu=name, context_bytes=gpu.context_bytes)
    measured = warm_runs.run(script, gpu=name, profile=profile)
    assert measured.code == 0, measured.tail()
    assert measured.peak == guessed.peak


def test_a_profile_replaces_what_is_guessed(tmp_path: Path, run_in_forks: RunForetell) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    done = run_in_forks(tmp_path / "train.py", options=["--profile", str(tmp_path / "profile.json")])
    assert done.code == 0, done.tail()
    assert done.peak["context_bytes"] == 256 << 20
    assert done.peak["library_bytes"] == 3 << 20


def test_a_profile_of_another_card_is_refused(tmp_path: Path, run_in_forks: RunForetell) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    profile = ["--profile", str(tmp_path / "profile.json")]
    done = run_in_forks(tmp_path / "train.py", gpu="a100-40gb", options=profile)
    assert done.code == 2
    assert "RTX 3060" in done.stderr
    assert "A100" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"schema": "foretell.estimate/1"}', "the schema is 'foretell.estimate/1'"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the schema is None"),
        (json.dumps({**PROFILE, "context_bytes": None}), "damaged: "),
        (json.dumps({**PROFILE, "context_bytes": -1}), "damaged: .*context_bytes: -1 is not a number of bytes"),
        (json.dumps({**PROFILE, "context_bytes": float("inf")}), "damaged: "),
        (json.dumps({**PROFILE, "context_bytes": 10**25}), "damaged: .*context_bytes"),
        (json.dumps({**PROFILE, "libraries": {**PROFILE["libraries"], "cublas": 10**15}}), "damaged: cublas takes"),
        (json.dumps({**PROFILE, "libraries": {**PROFILE["libraries"], "cublas": -1}}), "damaged: cublas takes -1"),
        (json.dumps({**PROFILE, "convolutions": [{**CONVOLUTION, "workspace_bytes": -1}]}), "damaged: "),
        (json.dumps({**PROFILE, "convolutions": [{**CONVOLUTION, "x": [1, 1, 1, -4]}]}), "damaged: "),
        (json.dumps({**PROFILE, "convolutions": [{**CONVOLUTION, "direction": "up"}]}), "damaged: "),
        (json.dumps({**PROFILE, "convolutions": [{**CONVOLUTION, "x": [1]}]}), "damaged: "),
    ],
)
def test_a_file_that_is_no_profile_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        calibration.load(tmp_path / "profile.json")


def test_a_machine_without_a_card_is_told_what_is_missing(tmp_path: Path) -> None:
    done = calibrate("--output", str(tmp_path / "profile.json"))
    assert done.returncode == 2
    assert "cannot measure the GPU" in done.stderr
    assert "--gpu NAME" in done.stderr
    assert not (tmp_path / "profile.json").exists()


# --- from measured runs -----------------------------------------------------------------------------------------------

MLP = """
import sys, torch
width = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(64, width).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
A100 = gpus.find("a100-40gb")


def repeated(*beside_mib: int, functions: tuple[str, ...] = (), has_convolutions: bool = False) -> list[RepeatedRun]:
    """Runs that took so much beside the 1,000 MiB that PyTorch reserves."""
    return [
        RepeatedRun(
            measured=MeasuredRun(command=("train.py",), peak_bytes=(1000 + mib) * MIB, line=line),
            reserved_bytes=1000 * MIB, functions=frozenset(functions), has_convolutions=has_convolutions,
            torch_version="2.6.0", cuda_version="12.4", cudnn_version=90100,
        )
        for line, mib in enumerate(beside_mib, start=2)
    ]  # fmt: skip


def test_the_context_is_what_neither_pytorch_nor_the_libraries_take() -> None:
    found = from_runs.fitted(repeated(524, 524, 530, functions=("cublasSgemm",)), A100)
    assert (found.context_bytes, found.libraries.cublas) == (483 * MIB, 41 * MIB)
    assert (found.torch_version, found.cuda_version, found.cudnn_version) == ("2.6.0", "12.4", 90100)
    assert found.context_below_bytes == MIB  # what nvidia-smi shows
    assert found.context_above_bytes == 14 * MIB  # 6 MiB, and more because three runs are few
    assert found.num_runs == 3


def test_a_large_context_of_runs_means_eager_loading() -> None:
    functions = ("cublasSgemm", "cudnnBackendExecute")
    found = from_runs.fitted(repeated(*[1429 + 254] * 4, functions=functions), A100)
    assert found.context_bytes == 1429 * MIB
    assert found.libraries == library_bytes(A100, context_bytes=1429 * MIB)
    assert abs(found.context_bytes - guessed_context_bytes(A100, is_eager=True)) < 64 * MIB


def test_runs_with_convolutions_count_only_if_there_are_no_others() -> None:
    plain, convolutional = repeated(500, 500), repeated(900, 900, 900, has_convolutions=True)
    assert from_runs.fitted([*convolutional, *plain], A100).context_bytes == 500 * MIB
    assert from_runs.fitted([*convolutional, *plain[:1]], A100).context_bytes == 900 * MIB


def test_runs_that_took_less_than_pytorch_reserves_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"line 3, 900 MiB were measured, but PyTorch reserves 1000 MiB here"):
        from_runs.fitted(repeated(-90, -100), A100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name the columns command and peak; it has nothing"),
        ("script,peak\nx,1\ny,2\n", "must name the columns command and peak; it has script, peak"),
        ("command,peak\ntrain.py,3GiB\n", "has 1 runs; 2 to 1,000 are possible"),
        ("command,peak\ntrain.py,3GiB\ntrain.py,much\n", "line 3: not a size: 'much'"),
        ("command,peak\n,3GiB\ntrain.py,3GiB\n", "line 2: needs a command and a peak"),
        ("command,peak\ntrain.py,3GiB\ntrain.py\n", "line 3: not a size"),
        ("command,peak\n'train.py,3GiB\ntrain.py,3GiB\n", "line 2: No closing quotation"),
    ],
)
def test_a_file_that_has_no_measured_runs_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        from_runs.read_runs(path)


def test_measured_runs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('peak,command\n7106,train.py --name "two words"\n1.5 GiB,-m trainer\n')
    first, second = from_runs.read_runs(path)
    assert first == MeasuredRun(command=("train.py", "--name", "two words"), peak_bytes=7106 * MIB, line=2)
    assert (second.command, second.peak_bytes) == (("-m", "trainer"), 1536 * MIB)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "p.toml"], "--from-runs needs --gpu NAME"),
        (["--output", "p.json", "--gpu", "a100-40gb"], "with --from-runs it is a TOML file; name it .toml"),
    ],
)
def test_wrong_options_with_measured_runs_are_told(tmp_path: Path, words: list[str], message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("command,peak\na.py,1GiB\nb.py,1GiB\n")
    done = calibrate("--from-runs", str(path), *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_profile_from_runs_gives_their_peaks_back(tmp_path: Path, warm_runs: WarmRuns) -> None:
    """As if they had been measured on a machine with a context of 700 MiB."""
    script, runs, target = tmp_path / "train.py", tmp_path / "runs.csv", tmp_path / "cluster.toml"
    script.write_text(MLP)
    there = {"gpu": "a100-40gb", "context_bytes": 700 * MIB}
    peaks = {width: warm_runs.run(script, str(width), **there).peak for width in (512, 4096)}
    lines = [f"{script} {width},{peak['device_bytes'] // MIB}MiB" for width, peak in peaks.items()]
    runs.write_text("\n".join(["command,peak", *lines]) + "\n")
    done = calibrate("--from-runs", str(runs), "--gpu", "a100-40gb", "--output", str(target))
    assert done.returncode == 0, done.stderr
    profile = calibration.load(target)
    assert abs(profile.context_bytes - 700 * MIB) <= MIB  # nvidia-smi shows whole ones
    again = warm_runs.run(script, "4096", gpu="a100-40gb", profile=profile)
    assert abs(again.peak["device_bytes"] - peaks[4096]["device_bytes"]) <= MIB
    (context,) = [cause for cause in again.result["causes"] if cause["name"] == "context"]
    assert context["above_bytes"] == profile.context_above_bytes > 0
    assert "# Fitted by `foretell calibrate --from-runs` to 2 measured runs." in target.read_text()


def test_a_profile_that_is_not_toml_is_told(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text("schema = ")
    with pytest.raises(UsageError, match="not TOML"):
        calibration.load(tmp_path / "profile.toml")
