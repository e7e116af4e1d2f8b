"""Instant step times and utilization: the work of a forward pass, the formula, and what is learned on top of it."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.test_formulas import JOB
from torch import nn

from foretell import gpus
from foretell.errors import TraceError, UsageError
from foretell.evaluation import instant
from foretell.evaluation.records import Case
from foretell.features import Guess, JobFeatures, Speed, Work, features_from, plain_features
from foretell.formulas import speed as formula
from foretell.guessing import answer
from foretell.learn import dataset, estimator, speed
from foretell.learn.dataset import Row, Timing
from foretell.learn.meta import describe_model
from foretell.records import Gpu
from foretell.time.rates import sustained_flops

A100, T4 = gpus.find("a100-40gb"), gpus.find("t4")
PRODUCT = Work(
    kind="product", element_bytes=4, calls=2, flops=10**9, bytes=4 * 10**6, weight_bytes=10**6, tiles=10**6
)  # fmt: skip
RELU = Work(kind="elementwise", element_bytes=4, calls=1, flops=0, bytes=10**7, weight_bytes=0, tiles=0)
VIEWS = Work(kind="view", element_bytes=0, calls=5, flops=0, bytes=0, weight_bytes=0, tiles=0)
WORKING = replace(JOB, work=(PRODUCT, RELU, VIEWS), num_tensors=4)


def described(model: nn.Module, *inputs: torch.Tensor) -> dict[str, Work]:
    job = features_from({"source": "model", **describe_model(model, *inputs)})
    assert job.work is not None
    return {each.kind: each for each in job.work}


def test_a_linear_layer_computes_two_flops_for_each_weight_and_sample() -> None:
    work = described(nn.Sequential(nn.Linear(256, 384), nn.ReLU()), torch.zeros(300, 256))
    product = work["product"]
    assert (product.calls, product.flops) == (1, 2 * 300 * 256 * 384)
    assert (product.bytes, product.weight_bytes) == (4 * 300 * (256 + 384), 4 * (256 * 384 + 384))
    assert product.tiles == 3 * 3  # 300 x 384 results, in blocks of 128
    assert work["elementwise"].bytes == 4 * 300 * 384 * 2


@pytest.mark.parametrize(
    ("layer", "kind", "flops"),
    [
        (nn.Conv2d(8, 16, 3, padding=1), "convolution", 2 * 4 * 32 * 32 * 16 * 8 * 9),
        (nn.Conv2d(8, 16, 3, padding=1, groups=8), "grouped_convolution", 2 * 4 * 32 * 32 * 16 * 9),
        (nn.ConvTranspose2d(8, 16, 2, stride=2), "convolution", 2 * 4 * 32 * 32 * 8 * 16 * 4),
    ],
)
def test_a_convolution_computes_two_flops_for_each_weight_and_position(layer: nn.Module, kind: str, flops: int) -> None:
    assert described(layer, torch.zeros(4, 8, 32, 32))[kind].flops == flops


def test_convolutions_of_channels_last_are_apart() -> None:
    images = torch.zeros(4, 8, 32, 32).contiguous(memory_format=torch.channels_last)
    assert "convolution_nhwc" in described(nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last), images)


def test_attention_computes_scores_and_values() -> None:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.project(x).view(2, 16, 4, 16).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(heads, heads, heads)

    work = described(Attend(), torch.zeros(2, 16, 64))
    assert work["attention"].flops == 4 * 2 * 4 * 16 * 16 * 16
    assert work["view"].calls > 0


def test_another_batch_scales_what_is_computed_and_not_the_weights() -> None:
    scaled = WORKING.with_batch(200).work
    assert scaled is not None
    assert scaled[0] == replace(PRODUCT, flops=2 * 10**9, bytes=8 * 10**6, tiles=2 * 10**6)


def test_work_goes_through_plain_values_and_back() -> None:
    assert features_from(plain_features(WORKING)) == WORKING


def test_a_product_takes_three_times_its_forward_pass_by_hand() -> None:
    point = formula.point_of(WORKING, A100)
    assert point is not None
    busy = dict(zip(formula.BUSY, point.busy, strict=True))
    computing, moving = 1e9 / sustained_flops(A100, "fp32") * 1e3, 5e6 / A100.bandwidth_bytes_per_second * 1e3
    assert busy["product"] == pytest.approx(3 * (computing**3 + moving**3) ** (1 / 3))
    assert busy["elementwise"] == pytest.approx(1e7 / A100.bandwidth_bytes_per_second * 1e3)
    # Adam reads and writes the parameters and two states, and reads the gradients.
    trained = JOB.trainable_bytes or 0
    assert busy["optimizer"] == pytest.approx((3 + 2 * 2) * trained / A100.bandwidth_bytes_per_second * 1e3)
    assert point.host[:3] == pytest.approx((3 * 0.01, 5 * 0.01, 4 * 0.01))  # 10 us each
    assert busy["convolution"] == busy["attention"] == point.nhwc_share == 0


def test_few_tiles_leave_multiprocessors_idle() -> None:
    small = replace(WORKING, work=(replace(PRODUCT, tiles=2, bytes=0, weight_bytes=0),))
    large = replace(WORKING, work=(replace(PRODUCT, bytes=0, weight_bytes=0),))
    ratio = [(formula.point_of(each, A100) or pytest.fail("no point")).busy[3] for each in (small, large)]
    assert ratio[0] == pytest.approx(ratio[1] * A100.num_sms**0.4)


def test_a_step_takes_as_long_as_the_slower_of_gpu_and_host() -> None:
    assert formula.step_ms(100, 1) == pytest.approx(100)
    assert formula.step_ms(1, 100) == pytest.approx(100)
    assert 100 < formula.step_ms(100, 100) < 110


def test_without_its_work_a_job_has_no_step_time() -> None:
    assert formula.point_of(JOB, A100) is None
    assert answer(JOB, A100).speed is None


# --- the data set and the training ------------------------------------------------------------------------------------


def truth(job: JobFeatures, gpu: Gpu) -> Timing:
    """Twice what the formula has for the GPU, half of what it has for the host, and a third of the SMs."""
    point = formula.point_of(job, gpu)
    assert point is not None
    busy, host = 2 * sum(point.busy), sum(point.host) / 2
    step = formula.step_ms(busy, host)
    gract = speed.GRACT_OF_BUSY * busy / step
    return Timing(
        step_ms=step, step_low_ms=0.9 * step, step_high_ms=1.2 * step, busy_ms=busy, host_ms=host, gract=gract,
        gract_low=0.9 * gract, gract_high=gract, smact=gract / 3, smact_low=0.3 * gract, smact_high=gract / 2,
    )  # fmt: skip


def rows(num: int = 80) -> list[Row]:
    generator = random.Random(0)
    found = []
    for i in range(num):
        work = tuple(
            replace(
                each, flops=round(each.flops * size), bytes=round(each.bytes * size), calls=generator.randint(1, 90)
            )
            for each, size in ((each, 10 ** generator.uniform(-2, 2)) for each in WORKING.work or ())
        )
        job = replace(WORKING, work=work)
        found.append(
            Row(
                kind="mlp", group=f"mlp-{i}", gpu="400GiB,sm80", torch="2.15.0", source="virtual", draw=str(i),
                features=job, reserved_bytes=2**30, times={gpu.name: truth(job, gpu) for gpu in (A100, T4)},
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("name", ["labels.csv", "labels.csv.gz"])
def test_times_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    dataset.write(tmp_path / name, rows(2))
    assert dataset.read(tmp_path / name) == rows(2)


def test_a_data_set_without_times_is_still_read(tmp_path: Path) -> None:
    dataset.write(tmp_path / "labels.csv", [replace(rows(1)[0], times={})])
    text = (tmp_path / "labels.csv").read_text().replace(dataset.SCHEMA, "foretell.dataset/1").replace(",times\n", "\n")
    (tmp_path / "labels.csv").write_text(text.removesuffix(",\n") + "\n")
    assert dataset.read(tmp_path / "labels.csv")[0].times == {}


@pytest.mark.parametrize("times", ['{"t4": {"gract": 1.5}}', '{"no such card": {}}', "[]", '{"t4": {"step": 1}}'])
def test_times_that_cannot_be_are_refused(tmp_path: Path, times: str) -> None:
    dataset.write(tmp_path / "labels.csv", [replace(rows(1)[0], times={})])
    text = (tmp_path / "labels.csv").read_text().removesuffix(",\n")
    (tmp_path / "labels.csv").write_text(f"{text},'{times}'\n".replace('"', '""').replace("'", '"'))
    with pytest.raises((TraceError, UsageError)):
        dataset.read(tmp_path / "labels.csv")


@pytest.fixture(scope="module")
def trained() -> Any:
    pytest.importorskip("lightgbm")
    from foretell.learn import train_speed

    return train_speed.train(train_speed.timed(rows()))


def test_training_recovers_what_the_times_were_made_of(trained: Any) -> None:
    from foretell.learn import train_speed

    assert trained.scores["step_median"] < 0.05
    fast = train_speed.with_intervals(trained, [])
    guesses = fast.guess_all([(row.features, T4) for row in rows()])
    inside = [
        each is not None and each.step_low_ms <= (row.times["t4"].step_ms or 0) <= each.step_high_ms
        for row, each in zip(rows(), guesses, strict=True)
    ]
    assert sum(inside) >= 0.95 * len(inside)
    shares = [each.smact / each.gract for each in guesses if each is not None]
    assert sorted(shares)[len(shares) // 2] == pytest.approx(1 / 3, rel=0.05)


def test_intervals_hold_for_measured_runs_that_took_longer(trained: Any) -> None:
    from foretell.learn import train_speed

    slower = [
        replace(row, source="measured", times={"t4": Timing(step_ms=3 * (row.times["t4"].step_ms or 0))})
        for row in rows()
    ]
    narrow, wide = (train_speed.with_intervals(trained, train_speed.timed(each)) for each in ([], slower))
    row = slower[0]
    (before,), (after,) = (each.guess_all([(row.features, T4)]) for each in (narrow, wide))
    assert before is not None
    assert after is not None
    assert before.step_high_ms < (row.times["t4"].step_ms or 0) < 1.1 * after.step_high_ms


def test_a_few_step_times_are_too_few() -> None:
    pytest.importorskip("lightgbm")
    from foretell.learn import train_speed

    assert train_speed.train([]) is None
    with pytest.raises(UsageError, match="20 step times; at least 100 are needed, or none"):
        train_speed.train(train_speed.timed(rows(10)))


def test_the_shipped_model_knows_time_and_the_answer_says_it() -> None:
    found = answer(WORKING, A100)
    assert found.speed is not None
    assert found.to_dict()["speed"] == asdict(found.speed)
    assert found.speed.smact <= found.speed.gract <= speed.GRACT_OF_BUSY
    slower = answer(WORKING, T4).speed
    assert slower is not None
    assert slower.step_ms > found.speed.step_ms


def test_a_job_a_thousand_times_as_large_takes_a_thousand_times_as_long() -> None:
    """Nothing is answered by the largest value that was seen."""
    large, larger = (answer(WORKING.with_batch(size), A100).speed for size in (10**7, 10**10))
    assert large is not None
    assert larger is not None
    assert larger.step_ms == pytest.approx(1000 * large.step_ms, rel=0.2)


def test_a_model_without_trees_for_time_is_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".json"):
        (tmp_path / f"model{suffix}").write_bytes(estimator.SHIPPED.with_suffix(suffix).read_bytes())
    card = (tmp_path / "model.json").read_text()
    (tmp_path / "model.json").write_text(card.replace('"coefficients"', '"coefs"'))
    with pytest.raises(TraceError, match="its card is damaged"):
        estimator.read(tmp_path / "model")


# --- judged on measured runs ------------------------------------------------------------------------------------------


class _Fixed:
    name = "fixed"

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        took = Speed(
            step_ms=10.0, step_low_ms=8.0, step_high_ms=20.0, gract=0.5, gract_low=0.4, gract_high=0.6, smact=0.2,
            smact_low=0.1, smact_high=0.3,
        )  # fmt: skip
        return Guess(estimator="fixed", reserved_bytes=1, speed=took)


def test_step_times_and_shares_are_judged_where_they_were_measured() -> None:
    case = Case(
        key="timed/1", set="timed", workload="timm_step.py", arguments=(), gpu="a100-40gb", measured_bytes=0,
        is_oom=False, context_bytes=None, measured={"step_ms": 12.5, "smact": 0.35, "smocc": 0.1},
    )  # fmt: skip
    found = {(each.tool, each.metric): each for each in instant.speed_figures([case], {case.key: JOB}, {"a": _Fixed()})}
    assert set(found) == {("a", "step_ms"), ("a", "smact"), ("always the median", "smact")}
    assert found["a", "step_ms"].bias == pytest.approx(-0.2)
    assert found["a", "step_ms"].interval_coverage == 1
    assert found["a", "smact"].bias == pytest.approx(-0.15)
    assert found["a", "smact"].interval_coverage == 0
    assert instant.is_judged(case)
    assert not instant.is_judged(replace(case, arguments=("--mode", "infer")))
    assert instant.judge([case], {case.key: JOB}, {"a": _Fixed()}) == ([], [])
    (row,) = instant.measured_rows([case], {case.key: JOB})
    assert (row.reserved_bytes, row.times) == (0, {"a100-40gb": Timing(step_ms=12.5, smact=0.35)})
