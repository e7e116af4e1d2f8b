"""Fits the constants of `rules/sharing.py` on measured pairs of jobs, and judges the method on pairs of which neither
model was in the fit (`make sharing-calibration`). With `--estimated`, the CNN jobs among them are run on the virtual
GPU, and the pairs judged by how busy they are estimated to keep the card."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from foretell import api, evaluation, gpus
from foretell.evaluation.pairs import MeasuredSpeed, read
from foretell.jobs import CaptureOptions, Job
from foretell.rules.sharing import Load, speeds
from foretell.runs import Pool, Warm

CONTENTIONS = [number / 20 for number in range(41)]
SCATTERS = [number / 100 for number in range(1, 21)]
SLOPES = [number / 10 for number in range(16)]
COVERAGE = 0.97  # of the fitted pairs, so that about 90 % of pairs of other models are inside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ground-truth", type=Path, required=True, help="a folder with time_collocation.csv")
    parser.add_argument("--estimated", action="store_true", help="estimate the utilization of the CNN jobs as well")
    options = parser.parse_args()
    measured, num_unknown = read(options.ground_truth)
    contention = fit_contention(measured)
    scatter, slope = fit_range(measured, contention)
    print(f"{len(measured)} speeds of {len(measured) // 2} pairs; {num_unknown} pairs without known utilization")
    print(f"CONTENTION = {contention:g}, SCATTER = {scatter:g}, SCATTER_OF_SLOWDOWN = {slope:g}")
    unseen = list(of_unseen_models(measured))
    errors = [abs(speed - each.speed) for each, speed, _ in unseen]
    inside = [abs(speed - min(1.0, each.speed)) <= half for each, speed, half in unseen]
    print(f"neither model in the fit: mean error {statistics.fmean(errors):.4f}, {statistics.fmean(inside):.1%} inside")
    print(f"no slowdown, same rows: mean error {statistics.fmean(abs(1 - each.speed) for each, _, _ in unseen):.4f}")
    if options.estimated:
        judge_estimated(measured)
    return 0


def speed_of(each: MeasuredSpeed, contention: float) -> float:
    return 1 / (1 + contention * each.own_load.pressure * each.other_load.pressure)


def fit_contention(measured: Sequence[MeasuredSpeed]) -> float:
    return min(CONTENTIONS, key=lambda value: sum(abs(speed_of(each, value) - each.speed) for each in measured))


def fit_range(measured: Sequence[MeasuredSpeed], contention: float) -> tuple[float, float]:
    """The narrowest that holds as many speeds as it should."""
    pairs = [(speed_of(each, contention), min(1.0, each.speed)) for each in measured]
    found = []
    for scatter in SCATTERS:
        for slope in SLOPES:
            halves = [(speed, true, scatter + slope * (1 - speed)) for speed, true in pairs]
            if statistics.fmean(abs(speed - true) <= half for speed, true, half in halves) >= COVERAGE:
                width = statistics.fmean(min(1.0, speed + half) - speed + half for speed, _, half in halves)
                found.append((width, scatter, slope))
    _, scatter, slope = min(found)
    return scatter, slope


def of_unseen_models(measured: Sequence[MeasuredSpeed]) -> list[tuple[MeasuredSpeed, float, float]]:
    """Each with its speed and half the range, by constants fitted without both models."""
    by_models: dict[frozenset[str], list[MeasuredSpeed]] = {}
    for each in measured:
        by_models.setdefault(frozenset((each.own[0], each.other[0])), []).append(each)
    found = []
    for models, rows in by_models.items():
        others = [each for each in measured if not models & {each.own[0], each.other[0]}]
        contention = fit_contention(others)
        scatter, slope = fit_range(others, contention)
        for each in rows:
            speed = speed_of(each, contention)
            found.append((each, speed, scatter + slope * (1 - speed)))
    return found


# --- with estimated utilization ---------------------------------------------------------------------------------------

MODELS = {"MobileNetV3": "mobilenet_v3_small", "ResNet18": "resnet18", "EfficientNet": "efficientnet_b0"}
WORKLOAD = Path(evaluation.__file__).parent / "workloads" / "collocated_cnn.py"
CARD = "rtx-3090"


def judge_estimated(measured: Sequence[MeasuredSpeed]) -> None:
    jobs = sorted({each.own for each in measured if each.own[0] in MODELS})
    with Pool(2, modules=["torchvision"]) as pool:
        loads = {job: load for job, load in pool.map(estimated, jobs) if load is not None}
    rows = [each for each in measured if each.own in loads and each.other in loads]
    estimates = [speeds([loads[each.own], loads[each.other]])[0] for each in rows]
    errors = [abs(speed.expected - each.speed) for speed, each in zip(estimates, rows, strict=True)]
    inside = [speed.low <= min(1.0, each.speed) <= speed.high for speed, each in zip(estimates, rows, strict=True)]
    by_measured = [abs(speeds([each.own_load, each.other_load])[0].expected - each.speed) for each in rows]
    print(f"estimated utilization, {len(loads)} of {len(jobs)} CNN jobs, {len(rows)} speeds:")
    print(f"  mean error {statistics.fmean(errors):.4f}, {statistics.fmean(inside):.1%} inside")
    print(f"  by measured utilization, same rows: {statistics.fmean(by_measured):.4f}")
    print(f"  no slowdown, same rows: {statistics.fmean(abs(1 - each.speed) for each in rows):.4f}")


def estimated(job: tuple[str, str, str, str], warm: Warm) -> Load | None:
    model, data, batch_size, amp = job
    words = ["--model", MODELS[model], "--batch-size", batch_size]
    words += ["--amp"] * (amp == "1") + ["--small"] * (data == "CIFAR-10")
    options = CaptureOptions(steps=4, time=True, history=False, attribution=False, stdout="file")
    run = api.run(Job(command=(str(WORKLOAD), *words), gpu=gpus.find(CARD), options=options), warm=warm)
    found = run.estimate.performance
    return None if found is None else Load(found.activity.gpu, found.activity.dram_active)


if __name__ == "__main__":
    raise SystemExit(main())
