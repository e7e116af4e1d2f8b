"""The Trainer writes its checkpoints, reads them back, and leaves nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from conftest import RunForetell, no_kernel_isolation

from .conftest import HERE


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_trainer_with_a_tokenizer_saves_to_a_new_folder_that_is_not_there_afterwards(
    run_foretell: RunForetell, tmp_path: Path
) -> None:
    run = run_foretell(HERE / "trainer.py", "out", options=["--isolation", "kernel"])
    if "--isolation kernel is not possible" in run.stderr:
        no_kernel_isolation(run.stderr)
    assert run.code == 0, run.tail()
    (saved,) = [line for line in run.stdout.splitlines() if line.startswith("saved ")]
    assert "'tokenizer.json'" in saved
    assert "'checkpoint-4'" in saved
    assert not (tmp_path / "out").exists()
    assert str(tmp_path / "out" / "tokenizer.json") in run.result["redirected_writes"]
