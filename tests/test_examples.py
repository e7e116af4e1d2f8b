"""The three examples through `foretell run`, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT, RunForetell

EXAMPLES = {
    "train_resnet.py": "--model resnet18 --batch-size 4 --image-size 64 --steps-per-epoch 4 --validation-steps 1 --amp",
    "train_gpt2.py": "--size tiny --batch-size 2 --seq-len 64 --steps 4 --checkpointing --accumulate 2"
    " --precision fp16",
    "train_trainer.py": "--hidden-size 64 --layers 2 --heads 4 --vocabulary 256 --batch-size 2 --seq-len 32 --steps 4"
    " --gradient-checkpointing",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_to_its_end_and_leaves_no_file(example: str, run_foretell: RunForetell, tmp_path: Path) -> None:
    run = run_foretell(ROOT / "examples" / example, *EXAMPLES[example].split())
    assert run.code == 0, run.tail()
    assert run.result["verdict"] == "fits"
    assert len(run.result["steps"]) == 4
    assert run.peak["reserved_bytes"] >= run.peak["allocated_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["estimate.json"], "checkpoints belong into the overlay"


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_knows_nothing_of_foretell(example: str) -> None:
    assert "foretell" not in (ROOT / "examples" / example).read_text()


def test_gradient_checkpointing_saves_memory(run_foretell: RunForetell) -> None:
    def allocated(*flags: str) -> int:
        arguments = ["--size", "tiny", "--batch-size", "64", "--seq-len", "1024", "--steps", "2", *flags]
        run = run_foretell(ROOT / "examples" / "train_gpt2.py", *arguments)
        assert run.code == 0, run.tail()
        return run.peak["allocated_bytes"]

    assert allocated("--checkpointing") < 0.7 * allocated()
