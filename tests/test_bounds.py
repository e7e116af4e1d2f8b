"""The judge of `make bounds`: published batch sizes against the largest one found."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.bounds.__main__ import Bounds, Found, judgement, read, sample

ROW = Bounds(model="resnet50", image_size=224, is_channels_last=False, ran=100, failed=200)


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (None, "no answer"),
        (0, "too small"),
        (89, "too small"),
        (90, "right"),
        (100, "right"),
        (199, "right"),
        (219, "right"),
        (220, "too large"),
    ],
)
def test_an_answer_is_right_between_the_bounds_or_within_ten_percent(largest: int | None, expected: str) -> None:
    assert judgement(ROW, Found(largest, 1)) == expected


def test_without_a_failure_every_larger_batch_is_right() -> None:
    row = Bounds(model="resnet50", image_size=224, is_channels_last=False, ran=100, failed=None)
    assert judgement(row, Found(10_000, 1)) == "right"
    assert judgement(row, Found(50, 1)) == "too small"


def test_rows_are_read_and_a_sample_has_each_model_once(tmp_path: Path) -> None:
    path = tmp_path / "bounds.csv"
    head = "layout,model,train_img_size,batch_that_ran,next_larger_batch_that_failed"
    path.write_text(f"{head}\nnchw,a,224,512,\nnhwc,a,224,256,384\nnchw,b,160,64,96\n")
    rows = read(path)
    assert rows[1] == Bounds(model="a", image_size=224, is_channels_last=True, ran=256, failed=384)
    assert rows[0].failed is None
    assert sorted(row.model for row in sample(rows, 10, seed=1)) == ["a", "b"]
    assert len(sample(rows, 1, seed=1)) == 1
