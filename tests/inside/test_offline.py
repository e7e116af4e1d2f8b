"""Trackers and hubs are off, and the journal says so only if the script used one."""

from __future__ import annotations

from pathlib import Path

from .conftest import Run


def test_a_tracker_in_use_is_noted_and_one_only_imported_is_not(capture: Run, tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("import os\ndef init(**_): print(os.environ['WANDB_MODE'])")
    (tmp_path / "comet_ml.py").write_text("class Experiment: pass")
    captured = capture(
        "import sys; sys.path.insert(0, sys.argv[1]); import wandb, comet_ml; wandb.init(); wandb.init()",
        str(tmp_path),
        cold=True,  # the variables are set before anything is imported
    ).check()
    assert captured.said == ["disabled", "disabled"]
    assert [line["what"] for line in captured.lines("not_sent")] == ["Weights & Biases"]


def test_online_gives_downloads_back_and_still_keeps_trackers_from_sending(capture: Run, tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("import os\ndef init(**given): print(os.environ['WANDB_MODE'], given)")
    script = """
import os, sys
sys.path.insert(0, sys.argv[1])
print(os.environ.get("HF_HUB_OFFLINE"), os.environ["WANDB_MODE"])
os.environ["WANDB_MODE"] = "online"
import wandb
wandb.init(mode="online")
"""
    captured = capture(script, str(tmp_path), offline=False, cold=True, environment={"HF_HUB_OFFLINE": ""}).check()
    assert captured.said == [" disabled", "disabled {'mode': 'disabled'}"]
