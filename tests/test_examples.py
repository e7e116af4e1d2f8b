"""The three examples through `foretell run`, small; what their reports say is kept in tests/data/reports."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, RunForetell
from warm_runs import WarmRuns

GOLDEN = Path(__file__).parent / "data" / "reports"
GOLDEN_TORCH = "2.15.0"

EXAMPLES = {
    "train_resnet.py": "--model resnet18 --batch-size 4 --image-size 64 --steps-per-epoch 4 --validation-steps 1 --amp",
    "train_gpt2.py": "--size tiny --batch-size 2 --seq-len 64 --steps 4 --checkpointing --accumulate 2"
    " --precision fp16",
    "train_trainer.py": "--hidden-size 64 --layers 2 --heads 4 --vocabulary 256 --batch-size 2 --seq-len 32 --steps 4"
    " --gradient-checkpointing",
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_to_its_end_and_leaves_no_file(example: str, run_foretell: RunForetell, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run = run_foretell(ROOT / "examples" / example, *EXAMPLES[example].split(), options=["--report", str(page)])
    assert run.code == 0, run.tail()
    assert run.result["verdict"] == "fits"
    if run.result["torch"].startswith(GOLDEN_TORCH):
        golden = json.loads((GOLDEN / f"{Path(example).stem}.json").read_text())
        found = gist(run.peak, document_in(page)["attribution"])
        assert found == golden, json.dumps(found, indent=1)
    page.unlink()
    assert len(run.result["steps"]) == 4
    assert run.peak["reserved_bytes"] >= run.peak["allocated_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["estimate.json"], "checkpoints belong into the overlay"


def document_in(page: Path) -> dict[str, Any]:
    packed = re.search(r'id="data">([^<]+)<', page.read_text())
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def gist(peak: dict[str, Any], attribution: dict[str, Any]) -> dict[str, Any]:
    """Of the JSON and of the page, what does not depend on the machine: no address, no path but this checkout's."""
    blocks = [{**block, "where": str(block["where"]).replace(f"{ROOT}/", "")} for block in peak["blocks"]]
    return {
        "by_category": peak["by_category"],
        "fragmentation_bytes": peak["fragmentation_bytes"],
        "slack_bytes": peak["slack_bytes"],
        "by_module": peak["by_module"][:10],
        "blocks": [block for block in blocks if block["where"].startswith("examples/")][:10],
        "num_events": attribution["num_events"],
        "num_segments": len(attribution["segments"]["bytes"]),
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_knows_nothing_of_foretell(example: str) -> None:
    assert "foretell" not in (ROOT / "examples" / example).read_text()


def test_gradient_checkpointing_saves_memory(warm_runs: WarmRuns) -> None:
    def allocated(*flags: str) -> int:
        arguments = ["--size", "tiny", "--batch-size", "64", "--seq-len", "1024", "--steps", "2", *flags]
        run = warm_runs.run(ROOT / "examples" / "train_gpt2.py", *arguments)
        assert run.code == 0, run.tail()
        return run.peak["allocated_bytes"]

    assert allocated("--checkpointing") < 0.7 * allocated()
