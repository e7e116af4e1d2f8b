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


def test_offline_can_be_switched_off(capture: Run) -> None:
    captured = capture("import os; print(os.environ.get('WANDB_MODE'))", offline=False, cold=True).check()
    assert captured.said == ["None"]
