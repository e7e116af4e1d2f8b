"""A calibration of the virtual GPU gives back the virtual GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import RunForetell
from foretell import calibration, gpus
from foretell.errors import UsageError
from foretell.rules import library_bytes
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


def test_a_profile_replaces_what_is_guessed(tmp_path: Path, run_foretell: RunForetell) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    done = run_foretell(tmp_path / "train.py", options=["--profile", str(tmp_path / "profile.json")])
    assert done.code == 0, done.tail()
    assert done.peak["context_bytes"] == 256 << 20
    assert done.peak["library_bytes"] == 3 << 20


def test_a_profile_of_another_card_is_refused(tmp_path: Path, run_foretell: RunForetell) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    profile = ["--profile", str(tmp_path / "profile.json")]
    done = run_foretell(tmp_path / "train.py", gpu="a100-40gb", options=profile)
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
