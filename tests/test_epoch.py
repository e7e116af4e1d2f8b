"""The worst batch of an epoch: found by all steps and by `--data-only`, missed with a caveat by a few steps."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capture_folder import CaptureFolder
from foretell.analysis.batches import batches_of
from foretell.analysis.verdict import estimate_of
from foretell.errors import UnsupportedError
from foretell.records import Batches, Estimate, StepPeak
from foretell.report import html
from foretell.report.batches import batch_rows
from foretell.runs import find_torch
from foretell.trace import load, save
from foretell.units import MIB
from foretell.virtual import library_paths

if TYPE_CHECKING:
    from warm_runs import WarmRuns

SCRIPT = """
import random, sys, torch
from torch import nn
from torch.utils.data import DataLoader

lengths = [random.Random(i).randrange(20, 200) for i in range(60)]
lengths[43] = 900

def collate(samples):
    tokens = nn.utils.rnn.pad_sequence([torch.zeros(lengths[i], dtype=torch.long) for i in samples], batch_first=True)
    return {"tokens": tokens, "labels": torch.tensor([i % 7 for i in samples])}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 256), nn.Linear(256, 7)
        self.layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)

    def forward(self, tokens, labels):
        logits = self.head(self.layer(self.embed(tokens)).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(range(60), 2, collate_fn=collate, num_workers=int(sys.argv[2]))
"""
LOOPS = {
    "plain": """
model.cuda()
for batch in loader:
    model(batch["tokens"].cuda(), batch["labels"].cuda())["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "accelerate": """
import accelerate
accelerator = accelerate.Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
""",
    "transformers": """
import transformers
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=2, num_train_epochs=1, report_to=[], remove_unused_columns=False,
    disable_tqdm=True, eval_strategy="epoch",
)
class Trainer(transformers.Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(range(60))
Trainer(model, arguments, train_dataset=range(60), eval_dataset=range(10), data_collator=collate).train()
""",
    "lightning": """
import lightning
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        return self.model(**batch)["loss"]
    def validation_step(self, batch, index):
        self.model(**batch)
    def configure_optimizers(self):
        return optimizer
trainer = lightning.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_progress_bar=False)
trainer.fit(Lit(), loader, DataLoader(range(10), 2, collate_fn=collate))
""",
}


@pytest.fixture(autouse=True)
def needed(request: pytest.FixtureRequest) -> None:
    if "runs" not in request.fixturenames:
        return
    if find_torch(sys.executable) is None:
        pytest.skip("torch is not installed")
    try:
        library_paths()
    except UnsupportedError as error:
        pytest.skip(str(error))


class Runs:
    def __init__(self, warm: WarmRuns, folder: Path) -> None:
        self._warm = warm
        self._folder = folder

    def __call__(self, loop: str, steps: Any, *, workers: int = 0, gpu: str = "rtx-3060", **options: Any) -> Any:
        script = self._folder / "train.py"
        script.write_text(SCRIPT + LOOPS[loop])
        run = self._warm.run(script, loop, str(workers), gpu=gpu, steps=steps, cwd=self._folder, **options)
        if loop != "plain" and "No module named" in run.stderr + run.stdout:
            pytest.skip(f"{loop} is not installed")
        assert run.code in (0, 3), run.stderr + run.stdout
        return run.result


@pytest.fixture
def runs(warm_runs: WarmRuns, tmp_path: Path) -> Runs:
    return Runs(warm_runs, tmp_path)


def test_a_few_steps_miss_the_longest_batch_and_say_so(runs: Runs) -> None:
    few, every = runs("plain", "auto"), runs("plain", "all")
    assert few["peak"]["allocated_bytes"] < every["peak"]["allocated_bytes"] * 0.7
    seen = few["batches"]["num"]
    assert seen < 22
    assert few["caveats"] == [
        f"batches differ in shape, and only {seen} of 30 were seen: a larger one may need more; --data-only finds the "
        "largest, --steps all runs them all"
    ]
    assert every["caveats"] == []


@pytest.mark.parametrize(
    ("loop", "workers"), [("plain", 0), ("plain", 2), ("accelerate", 0), ("transformers", 0), ("lightning", 0)]
)
def test_both_ways_find_the_longest_batch_with_the_same_bytes(runs: Runs, loop: str, workers: int) -> None:
    every, worst = runs(loop, "all", workers=workers), runs(loop, "worst", workers=workers)
    names = ("allocated_bytes", "reserved_bytes")
    assert [worst["peak"][name] for name in names] == [every["peak"][name] for name in names]
    for document in (every, worst):
        batch = document["batches"]["worst"]
        assert (batch["index"], batch["epoch"], batch["samples"]) == (21, 0, [42, 43])
        assert batch["tensors"] == [
            {"name": "tokens", "dtype": "int64", "shape": [2, 900]},
            {"name": "labels", "dtype": "int64", "shape": [2]},
        ]
        assert batch["peak_allocated_bytes"] == document["peak"]["allocated_bytes"]
        assert document["batches"]["shapes"][0]["tensors"] == batch["tensors"]
        assert document["batches"]["shapes"][0]["peak_allocated_bytes"] == batch["peak_allocated_bytes"]
        assert document["batches"]["median_peak_allocated_bytes"] < batch["peak_allocated_bytes"] * 0.7
        assert document["batches"]["num_in_epoch"] == 30
    assert every["batches"]["worst"]["step"] == 21
    assert (every["batches"]["num"], every["batches"]["num_looked_at"]) == (30, 0)
    assert worst["batches"]["num_looked_at"] == 30
    assert worst["batches"]["num_shapes"] == every["batches"]["num_shapes"]
    assert len(worst["steps"]) < 8


@pytest.mark.parametrize("steps", ["all", "worst"])
def test_the_batch_that_runs_out_of_memory_is_named(runs: Runs, steps: str) -> None:
    document = runs("plain", steps, gpu="256MiB,sm86", context_bytes=170 * MIB)
    assert document["verdict"] == "oom"
    batch = document["batches"]["worst"]
    assert (batch["index"], batch["samples"], batch["step"]) == (21, [42, 43], document["oom"]["step"])
    assert runs("plain", "auto", gpu="256MiB,sm86", context_bytes=170 * MIB)["verdict"] == "fits"


# --- which batch is for which step ------------------------------------------------------------------------------------


def recorded(directory: Path, deliveries: list[tuple[int, int]], *, num_steps: int, length: int = 9) -> CaptureFolder:
    """(step in which it was delivered, length of the sequence) of each batch of one pass."""
    folder = CaptureFolder(directory).torch()
    about = {"num_samples": 9, "batch_size": 1, "sampler": "RandomSampler", "num_workers": 0}
    folder.journal("pass", number=0, length=length, **about)
    shapes: dict[int, int] = {}
    for index, (step, size) in enumerate(deliveries):
        tensors = {} if size in shapes else {"tensors": [["x", "int64", [1, size]]]}
        shape = shapes.setdefault(size, len(shapes))
        folder.journal(
            "batch", loader=0, index=index, step=step, shape=shape, num_elements=size, samples=[7 * index],
            num_samples=1, **tensors,
        )  # fmt: skip
        folder.journal("phase", phase="backward", step=step)
    for step in range(num_steps):
        folder.step(step, 10 + step, 0, MIB, (512, MIB))
    return folder


def found(folder: CaptureFolder, peaks: list[int]) -> Batches:
    trace = folder.trace()
    steps = [StepPeak(index=i, peak_allocated_bytes=peak, peak_reserved_bytes=MIB) for i, peak in enumerate(peaks)]
    batches = batches_of(trace, steps, (), None)
    assert batches is not None
    return batches


def test_a_batch_is_for_the_step_in_which_it_was_delivered(tmp_path: Path) -> None:
    batches = found(recorded(tmp_path, [(0, 3), (1, 9), (2, 4)], num_steps=3), [3, 9, 4])
    assert batches.worst is not None
    assert (batches.worst.index, batches.worst.step, batches.worst.samples) == (1, 1, (7,))
    assert [(each.num_elements, each.peak_allocated_bytes) for each in batches.shapes] == [(9, 9), (4, 4), (3, 3)]
    assert batches.median_peak_allocated_bytes == 4


def test_a_prefetcher_is_a_batch_ahead(tmp_path: Path) -> None:
    deliveries = [(0, 3), (0, 5), (1, 9), (2, 4)]
    batches = found(recorded(tmp_path, deliveries, num_steps=4), [3, 5, 9, 4])
    assert [(each.num_elements, each.peak_allocated_bytes) for each in batches.shapes] == [
        (9, 9), (5, 5), (4, 4), (3, 3),
    ]  # fmt: skip
    assert batches.worst is not None
    assert (batches.worst.index, batches.worst.step) == (2, 2)


def test_of_accumulated_batches_the_largest_counts(tmp_path: Path) -> None:
    deliveries = [(0, 3), (0, 5), (1, 9), (1, 4), (2, 1), (2, 2)]
    batches = found(recorded(tmp_path, deliveries, num_steps=3), [5, 9, 2])
    assert [(each.num_elements, each.peak_allocated_bytes) for each in batches.shapes] == [
        (9, 9), (5, 5), (4, None), (3, None), (2, 2), (1, None),
    ]  # fmt: skip


def test_without_a_dataloader_there_are_no_batches(tmp_path: Path) -> None:
    trace = CaptureFolder(tmp_path).torch().step(0, 6, 0, MIB, (512, MIB)).end(0, MIB, (512, MIB)).trace()
    assert estimate_of(trace).batches == Batches(num=0)


def test_batches_survive_a_trace_and_json(tmp_path: Path) -> None:
    folder = recorded(tmp_path, [(0, 3), (1, 9)], num_steps=2).end(0, MIB, (512, MIB))
    save(folder.trace(), tmp_path / "a.trace")
    estimate = estimate_of(load(tmp_path / "a.trace"))
    assert estimate.batches is not None
    assert Estimate.from_json(estimate.to_json()).batches == estimate.batches
    assert json.loads(estimate.to_json())["batches"]["num"] == asdict(estimate.batches)["num"] == 2


@pytest.mark.parametrize(
    ("samples", "sizes", "possible", "is_trained", "num_caveats"),
    [
        ([2, 0, 1], [(3, 4), (9, 8), (5, 6)], [9, 8], True, 0),
        ([2, 0, 1], [(3, 4), (9, 2), (5, 8)], [9, 8], False, 1),  # never together in this epoch
        ([0, 1, 2], [(3, 4), (9, 2), (5, 8)], None, False, 0),  # not shuffled
        ([2, 0, 2], [(3, 4), (9, 2), (5, 8)], None, False, 0),  # sample 1 is missing
    ],
)
def test_what_no_shuffle_exceeds(
    tmp_path: Path, samples: list[int], sizes: list[tuple[int, int]], possible: list[int] | None, is_trained: bool,
    num_caveats: int,
) -> None:  # fmt: skip
    folder = CaptureFolder(tmp_path).torch()
    about = {"num_samples": 3, "batch_size": 1, "sampler": "RandomSampler", "num_workers": 0}
    folder.journal("pass", number=0, length=3, **about)
    for index, (sample, (source, target)) in enumerate(zip(samples, sizes, strict=True)):
        tensors = [["source", "int64", [1, source]], ["target", "int64", [1, target]]]
        folder.journal(
            "batch", loader=0, index=index, step=index, shape=index, num_elements=source + target, samples=[sample],
            num_samples=1, tensors=tensors,
        )  # fmt: skip
        folder.journal("phase", phase="backward", step=index).step(index, 10 + index, 0, MIB, (512, MIB))
    estimate = estimate_of(folder.end(0, MIB, (512, MIB)).trace())
    assert estimate.batches is not None
    assert [tensor.shape[1] for tensor in estimate.batches.largest_possible] == (possible or [])
    assert estimate.batches.is_largest_trained == is_trained
    caveats = [caveat for caveat in estimate.caveats if caveat.startswith("another shuffle")]
    assert len(caveats) == num_caveats
    assert all("up to 17 elements instead of 13" in caveat for caveat in caveats)


@pytest.mark.parametrize(
    ("shapes", "is_certain"),
    [([[8, 3], [8, 3], [2, 3]], True), ([[6, 3], [2, 3]], False), ([[8, 3], [8, 4]], False)],
    ids=["a smaller last batch", "none was full", "other sizes"],
)
def test_a_smaller_last_batch_does_not_announce_larger_ones(
    tmp_path: Path, shapes: list[list[int]], is_certain: bool
) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.journal("pass", number=0, length=3, num_samples=18, batch_size=8, sampler="RandomSampler", num_workers=0)
    for index, shape in enumerate(shapes):
        folder.journal(
            "batch", loader=0, index=index, step=index, shape=index, num_elements=shape[0] * shape[1],
            tensors=[["", "float32", shape]],
        )  # fmt: skip
        peak = 512 * shape[0] * shape[1]
        folder.journal("phase", phase="backward", step=index).step(index, 10 + index, 0, MIB, (peak, MIB))
    evidence = estimate_of(folder.end(0, MIB, (512, MIB)).trace()).evidence
    assert evidence is not None
    assert (evidence.longer_bytes == 0) == is_certain


def test_the_page_has_the_rows_of_the_terminal(tmp_path: Path) -> None:
    estimate = estimate_of(recorded(tmp_path, [(0, 3), (1, 9)], num_steps=2).end(0, MIB, (512, MIB)).trace())
    rows = [(title.capitalize(), words) for title, words in batch_rows(estimate)]
    assert [title for title, _ in rows] == ["Batches", "Worst batch", "", ""]
    assert html._estimate(estimate)["batches"] == rows


def test_the_caveat_needs_different_shapes_and_an_early_end(tmp_path: Path) -> None:
    def caveats(name: str, sizes: list[int], *, is_cut: bool, length: int = 9) -> list[str]:
        (tmp_path / name).mkdir()
        folder = recorded(tmp_path / name, list(enumerate(sizes)), num_steps=len(sizes), length=length)
        if is_cut:
            folder.journal("ended_early", how="loader", step=3, what="training loop over a DataLoader")
        return [each for each in estimate_of(folder.end(0, MIB, (512, MIB)).trace()).caveats if "batches" in each]

    assert len(caveats("differ", [3, 4], is_cut=True)) == 1
    assert caveats("same", [3, 3], is_cut=True) == []
    assert caveats("all", [3, 4], is_cut=True, length=2) == []
    assert caveats("whole", [3, 4], is_cut=False) == []
