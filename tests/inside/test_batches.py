"""What DataLoaders deliver is noted: shapes, samples, for which step; the largest batches can be trained on alone."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.inside.watch.batches import DEEPEST, MOST_TENSORS, described

from .conftest import Captured, Run

SCRIPT = """
    import sys, torch
    from torch.utils.data import DataLoader
    lengths = [10, 20, 15, 12, 11, 13, 14, 90, 12, 16]
    def collate(samples):
        tokens = torch.nn.utils.rnn.pad_sequence([torch.zeros(lengths[i], dtype=torch.long) for i in samples], True)
        return {"tokens": tokens, "labels": torch.tensor(samples)}
    options = {"num_workers": int(sys.argv[1]), "persistent_workers": sys.argv[2] == "persistent"}
    num_accumulated, num_epochs = int(sys.argv[3]), int(sys.argv[4])
    loader = DataLoader(range(10), 1, collate_fn=collate, **options)
    model = torch.nn.Embedding(100, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(num_epochs):
        seen = []
        for number, batch in enumerate(loader):
            seen.append(batch["tokens"].shape[1])
            model(batch["tokens"].cuda()).sum().backward()
            batch["tokens"] = batch["labels"] = None  # the batch is the script's
            if (number + 1) % num_accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(seen)
        with torch.no_grad():
            for batch in DataLoader(range(10), 5, collate_fn=collate):
                model(batch["tokens"].cuda())
"""


def shapes_of(run: Captured) -> list[tuple[int, int, int, int]]:
    """Pass, index, step and length of each batch that the script got."""
    tensors: dict[int, Any] = {}
    found = []
    for line in run.lines("batch"):
        tensors.setdefault(line["shape"], line.get("tensors"))
        if line.get("is_trained", True):
            found.append((line["loader"], line["index"], line["step"], tensors[line["shape"]][0][2][1]))
    return found


@pytest.mark.parametrize("workers", [("0", "no"), ("2", "no"), ("2", "persistent")], ids="-".join)
def test_every_batch_has_its_shapes_and_samples_in_every_epoch(capture: Run, workers: tuple[str, str]) -> None:
    run = capture(SCRIPT, *workers, "1", "2", steps="all").check()
    lengths = [10, 20, 15, 12, 11, 13, 14, 90, 12, 16]
    assert shapes_of(run) == [
        *((0, index, index, length) for index, length in enumerate(lengths)),
        (1, 0, 10, 20), (1, 1, 10, 90),
        *((2, index, 10 + index, length) for index, length in enumerate(lengths)),
        (3, 0, 20, 20), (3, 1, 20, 90),
    ]  # fmt: skip
    assert [line["samples"] for line in run.lines("batch")][:11] == [*([i] for i in range(10)), [0, 1, 2, 3, 4]]
    assert run.lines("batch")[0]["tensors"] == [["tokens", "int64", [1, 10]], ["labels", "int64", [1]]]
    assert [(line["length"], line["num_samples"], line["batch_size"]) for line in run.lines("pass")] == [
        (10, 10, 1), (2, 10, 5), (10, 10, 1), (2, 10, 5),
    ]  # fmt: skip
    assert len(list(run.directory.glob("journal-*"))) == 1  # none of a worker


@pytest.mark.parametrize("workers", [("0", "no"), ("2", "persistent")], ids="-".join)
def test_the_largest_batch_is_trained_after_two_others_and_the_one_before_it(
    capture: Run, workers: tuple[str, str]
) -> None:
    run = capture(SCRIPT, *workers, "1", "3", steps="worst").check()
    assert run.said[0] == "[10, 20, 14, 90, 14]"
    trained = [each for each in shapes_of(run) if each[0] == 0]
    assert trained == [(0, 0, 0, 10), (0, 1, 1, 20), (0, 6, 2, 14), (0, 7, 3, 90), (0, 6, 4, 14)]
    looked_at = [line["index"] for line in run.lines("batch") if not line.get("is_trained", True)]
    assert looked_at == list(range(2, 10))
    assert run.lines("caveat") == []


def test_with_accumulated_gradients_the_largest_batch_is_the_last_of_its_step(capture: Run) -> None:
    run = capture(SCRIPT, "0", "no", "2", "1", steps="worst").check()
    trained = [each[2:] for each in shapes_of(run) if each[0] == 0]
    assert trained[:6] == [(0, 10), (0, 20), (1, 15), (1, 12), (2, 14), (2, 90)]


def test_a_script_that_ends_its_training_first_is_told(capture: Run) -> None:
    script = SCRIPT.replace("optimizer.zero_grad()", "optimizer.zero_grad()\n                if number == 2: break")
    (caveat,) = capture(script, "0", "no", "1", "1", steps="worst").check().lines("caveat")
    assert caveat["text"] == "the script ended its training before it got 1 of the 1 largest batches"


NOT_STEERED = {
    "no-loader": (
        "for _ in range(100):\n                train(torch.zeros(4, 8))",
        "--data-only cannot choose the batches of this training, because it uses no DataLoader",
    ),
    "one-batch": (
        "while True:\n                train(next(iter(DataLoader(torch.zeros(40, 8), 4))))",
        "--data-only cannot choose the batches of this training, because its DataLoader is not read in a loop",
    ),
    "on-the-gpu": (
        "for batch in DataLoader(torch.zeros(40, 8), 4, collate_fn=lambda s: torch.stack(s).cuda()):\n"
        "                train(batch)",
        "--data-only keeps the largest batches on the host, but this DataLoader makes its batches on the GPU",
    ),
}


@pytest.mark.parametrize("name", NOT_STEERED)
def test_what_cannot_be_steered_ends_with_exit_code_2(capture: Run, name: str) -> None:
    loop, what = NOT_STEERED[name]
    script = f"""
            import torch
            from torch.utils.data import DataLoader
            model = torch.nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            def train(batch):
                model(batch.cuda()).sum().backward()
                optimizer.step()
            {loop}
            """
    run = capture(script, steps="worst").check(2)
    assert run.one("unsupported")["what"] == what


def test_an_endless_dataset_is_looked_at_for_a_while(capture: Run) -> None:
    script = """
        import torch, itertools
        from torch.utils.data import DataLoader, IterableDataset
        class Endless(IterableDataset):
            def __iter__(self):
                return (torch.zeros(5 + (i == 9000) + (i == 11000)) for i in itertools.count())
        model = torch.nn.Linear(1, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in DataLoader(Endless(), batch_size=None):
            model(batch.cuda()[:, None]).sum().backward()
            optimizer.step()
        print("ended")
        """
    run = capture(script, steps="worst").check()
    assert run.said == ["ended"]
    assert run.one("caveat")["text"] == (
        "the DataLoader has no length; of its batches, only the first 10,000 were looked at"
    )
    assert 9000 in [line["index"] for line in run.lines("batch") if line.get("is_trained", True)]


class Array:
    dtype = "float32"

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Record:
    def __init__(self) -> None:
        self.image = Array(3, 4)
        self.name = "a"


def test_shapes_are_found_in_whatever_holds_them() -> None:
    named = type("Pair", (tuple,), {"_fields": ("first", "second")})
    batch = ({"x": Array(2, 3), "names": ["a", "b"], 7: [Array(4), (Array(5), None)]}, Record(), named([Array(), 1]))
    assert described(batch) == (
        (
            ("0.x", "float32", (2, 3)),
            ("0.7.0", "float32", (4,)),
            ("0.7.1.0", "float32", (5,)),
            ("1.image", "float32", (3, 4)),
            ("2.first", "float32", ()),
        ),
        6 + 4 + 5 + 12 + 1,
    )
    assert described(Array(2)) == ((("", "float32", (2,)),), 2)


def test_the_description_of_a_huge_or_deep_batch_is_bounded() -> None:
    tensors, num_elements = described([Array(2) for _ in range(1000)])
    assert (len(tensors), num_elements) == (MOST_TENSORS, 2000)
    deep: Any = Array(2)
    for _ in range(DEEPEST + 1):
        deep = [deep]
    assert described(deep) == ((), 0)
    ring: dict[str, Any] = {}
    ring["self"] = ring
    assert described(ring) == ((), 0)


LOADED = """
    import sys, torch
    from torch.utils.data import DataLoader
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 48
        def __getitem__(self, index):
            modes = torch._C._len_torch_function_stack()
            return torch.full((64,), float(modes), device=sys.argv[2])
    for batch in DataLoader(Data(), 8, num_workers=int(sys.argv[1])):
        print(int(batch.max()))
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_batches_are_loaded_without_hooks_after_one_that_left_the_gpu_alone(capture: Run) -> None:
    run = capture(LOADED, "0", "cpu", steps="all", time=True).check()
    assert run.stdout.split() == ["1", "0", "1", "0", "0", "1"]  # the third one is loaded under the profiler
    assert [line.get("took_us", 0) > 0 for line in run.lines("batch")] == [False, True, False, True, True, False]


def test_batches_that_use_the_gpu_are_loaded_with_hooks(capture: Run) -> None:
    run = capture(LOADED, "0", "cuda", steps="all", time=True).check()
    assert run.stdout.split() == ["1"] * 6
    assert not any("took_us" in line for line in run.lines("batch"))


def test_workers_tell_how_long_a_batch_takes_them(capture: Run) -> None:
    run = capture(LOADED, "1", "cpu", steps="all", time=True).check()
    assert run.lines("batch")[-1]["worker_us"] > 0
    assert "worker_us" not in capture(LOADED, "1", "cpu", steps="all").check().lines("batch")[-1]
