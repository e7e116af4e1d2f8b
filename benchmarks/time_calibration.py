"""Fits the shares in src/foretell/time/constants.toml to measured steps, and says how good they are.

python -m benchmarks.time_calibration --ground-truth FOLDER [--models N] [--write]

Fitted is on steps of timm's models on the RTX 3090, training and inference. Judged is by families: each is estimated
with constants that were fitted without it; and by cards: no other card is in the fit. A share stays inside LIMITS and
near the one that was set by hand, before any fit: few families do not tell fifty constants apart, and a fit that began
at another one would know the families that it is judged by.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
from scipy.optimize import least_squares

from foretell import api, gpus
from foretell import trace as traces
from foretell.errors import ForetellError
from foretell.evaluation import cases
from foretell.evaluation.records import Case
from foretell.evaluation.runner import job_of, modules_of
from foretell.jobs import Job
from foretell.runs import Pool, Warm
from foretell.time import model, work_of
from foretell.time.model import Constants
from foretell.time.performance import DOUBTFUL, KERNEL_SPREAD, UNKNOWN_SPREAD

FITTED_CARD = "rtx-3090"
RECORDED_ON = FITTED_CARD
LIMITS = {"bandwidth": (0.15, 1.05), "rate": (0.08, 1.16), "set": (2.0, 6.0)}
BY_HAND = {
    "bandwidth": {
        "elementwise": 0.85, "strided": 0.7, "reduction": 0.7, "softmax": 0.6, "norm": 0.6, "batch_norm": 0.76,
        "batch_norm_nhwc": 0.7, "pool": 0.6, "indexing": 0.5, "foreach": 0.65, "gemm": 0.6, "bmm": 0.6, "conv": 0.5,
        "conv_nhwc": 0.9, "grouped_conv": 0.5, "depthwise": 0.5, "depthwise_backward": 0.4, "attention": 0.6,
        "recurrent": 0.4, "upsample": 0.5, "fused": 0.85, "fused_reduction": 0.75, "other": 0.4,
    },
    "rate": {
        "gemm": 0.95, "bmm": 0.8, "conv": 0.8, "conv_nhwc": 1.0, "grouped_conv": 0.6, "grouped_conv_backward": 0.25,
        "depthwise": 0.3, "depthwise_backward": 0.15, "attention": 0.5, "recurrent": 0.3, "other": 0.5,
    },
    "set": {"start_us": 4.0},
}  # fmt: skip
"""Where a fit begins. A class that is not here has the value of the one it is a case of."""
PRIOR = 0.35
"""How strongly a share is held: one that is off by 1/PRIOR in the logarithm costs as much as one row."""
TRAINING_WEIGHT = 2.0
NUM_FOLDS = 4
START = "start_us"
CACHE = Path.home() / ".cache" / "foretell" / "time-calibration"
CONSTANTS = Path(model.__file__).with_name("constants.toml")


@dataclass
class Row:
    """A measured step, and its work as arrays: one element for each distinct demand."""

    case: Case
    measured_ms: float
    classes: list[str]
    computing: numpy.ndarray
    moving: numpy.ndarray
    launches: numpy.ndarray
    waiting: numpy.ndarray
    count: numpy.ndarray
    bandwidth_at: numpy.ndarray
    rate_at: numpy.ndarray

    @property
    def family(self) -> str:
        return str(self.case.factors["family"])

    @property
    def is_training(self) -> bool:
        return "train" in self.case.set

    def estimate(self, shares: numpy.ndarray) -> float:
        return float(self._each(shares).sum() * 1e3)

    def holds(self, shares: numpy.ndarray) -> bool:
        """Whether the interval of a step that only waits for the GPU has the measured time."""
        each, is_doubtful = self._each(shares), numpy.isin(self.classes, DOUBTFUL)
        low, high = KERNEL_SPREAD
        high *= 1 + UNKNOWN_SPREAD * each[is_doubtful].sum() / each.sum()
        return bool(low <= self.measured_ms / self.estimate(shares) <= high)

    def _each(self, shares: numpy.ndarray) -> numpy.ndarray:
        computing, moving = self.computing / shares[self.rate_at], self.moving / shares[self.bandwidth_at]
        took = numpy.maximum((computing**3 + moving**3) ** (1 / 3), self.waiting) + self.launches * shares[-1] * 1e-6
        return self.count * took

    def slopes(self, shares: numpy.ndarray) -> numpy.ndarray:
        """Of the logarithm of the estimate, by the logarithm of each share."""
        computing, moving = self.computing / shares[self.rate_at], self.moving / shares[self.bandwidth_at]
        took = (computing**3 + moving**3) ** (1 / 3)
        per_cube = -self.count * (took > self.waiting) / numpy.maximum(took, 1e-12) ** 2
        found = numpy.bincount(self.rate_at, per_cube * computing**3, len(shares))
        found += numpy.bincount(self.bandwidth_at, per_cube * moving**3, len(shares))
        found[-1] += (self.count * self.launches).sum() * shares[-1] * 1e-6
        return found * 1e3 / self.estimate(shares)


class Names:
    """The constants by position; the last is the start of a launch."""

    def __init__(self, constants: Constants) -> None:
        self.all = [("bandwidth", name) for name in constants.bandwidth]
        self.all += [("rate", name) for name in constants.rate]
        self.all.append(("set", START))
        tables = {"bandwidth": constants.bandwidth, "rate": constants.rate, "set": constants.set}
        self.values = numpy.array([tables[table][name] for table, name in self.all])
        self.by_hand = numpy.array([_by_hand(table, name) for table, name in self.all])
        self._at = {key: at for at, key in enumerate(self.all)}

    def at(self, table: str, kernel_class: str) -> int:
        plain = kernel_class.removesuffix("_nhwc")
        return next(self._at[table, name] for name in (kernel_class, plain, "other") if (table, name) in self._at)


def _by_hand(table: str, kernel_class: str) -> float:
    while kernel_class not in BY_HAND[table]:
        kernel_class = kernel_class.rpartition("_")[0] or "other"
    return BY_HAND[table][kernel_class]


def chosen(folder: Path, models_per_family: int) -> list[Case]:
    """All rows of some models of each family, without those whose precision or batch another row has too."""
    found = cases.read(folder, ["time_timm_train_3090", "time_timm_infer"])
    found = [case for case in found if "--precision amp" in " ".join(case.arguments)]
    families: dict[str, set[str]] = defaultdict(set)
    for case in found:
        families[str(case.factors["family"])].add(case.arguments[1])
    generator = random.Random(7)
    kept = {
        name
        for _, names in sorted(families.items())
        for name in generator.sample(sorted(names), min(models_per_family, len(names)))
    }
    return [case for case in found if case.arguments[1] in kept]


def recorded_job(case: Case) -> Job:
    """The work does not depend on the card, but for a few grids: every workload is recorded once."""
    return job_of(replace(case, gpu=RECORDED_ON), "virtual")


def record(asked: Job, warm: Warm) -> str:
    """Leaves a trace in CACHE; returns what went wrong."""
    try:
        run = api.run(asked, warm=warm)
        if run.trace.recorded_step is None:
            return "no step was recorded"
        traces.save(run.trace, CACHE / f"{asked.key}.trace")
    except ForetellError as error:
        return str(error)
    return ""


def rows_of(found: Sequence[Case], names: Names) -> Iterator[Row]:
    for case in found:
        path = CACHE / f"{recorded_job(case).key}.trace"
        work = work_of(traces.load(path)) if path.exists() else None
        if work is None:
            continue
        gpu = gpus.find(case.gpu)
        demands: Counter[tuple[str, float, float, int, float]] = Counter()
        for item in work.items:
            if item.kind == "kernel":
                need = model.demand(item, gpu)
                key = need.flop_seconds, need.byte_seconds, need.launches, need.waiting_seconds
                demands[(item.kernel_class, *key)] += 1
        classes, computing, moving, launches, waiting = zip(*demands, strict=True)
        yield Row(
            case=case,
            measured_ms=case.measured["step_ms"],
            classes=list(classes),
            computing=numpy.array(computing),
            moving=numpy.array(moving),
            launches=numpy.array(launches, float),
            waiting=numpy.array(waiting),
            count=numpy.array(list(demands.values()), float),
            bandwidth_at=numpy.array([names.at("bandwidth", each) for each in classes]),
            rate_at=numpy.array([names.at("rate", each) for each in classes]),
        )


def fit(rows: Sequence[Row], names: Names) -> numpy.ndarray:
    """Families count alike, however many models they have."""
    sizes = Counter(row.family for row in rows)
    weights = [(TRAINING_WEIGHT if row.is_training else 1.0) / sizes[row.family] ** 0.5 for row in rows]
    low, high = (numpy.array([LIMITS[table][end] for table, _ in names.all]) for end in (0, 1))
    begin = numpy.clip(names.by_hand, 1.001 * low, 0.999 * high)

    def residuals(logs: numpy.ndarray) -> numpy.ndarray:
        shares = numpy.exp(logs)
        errors = [
            3.0 * weight * numpy.log(row.estimate(shares) / row.measured_ms)
            for row, weight in zip(rows, weights, strict=True)
        ]
        return numpy.concatenate([errors, PRIOR * (logs - numpy.log(begin))])

    def slopes(logs: numpy.ndarray) -> numpy.ndarray:
        shares = numpy.exp(logs)
        of_rows = [3.0 * weight * row.slopes(shares) for row, weight in zip(rows, weights, strict=True)]
        return numpy.concatenate([of_rows, PRIOR * numpy.eye(len(logs))])

    found = least_squares(
        residuals, numpy.log(begin), slopes, bounds=(numpy.log(low), numpy.log(high)), loss="soft_l1", f_scale=0.3,
        max_nfev=30,
    )  # fmt: skip
    return numpy.exp(found.x)


def cross_validated(rows: Sequence[Row], names: Names) -> Iterator[tuple[Row, numpy.ndarray]]:
    """Each row with the constants that were fitted without its family."""
    families = sorted({row.family for row in rows})
    random.Random(1).shuffle(families)
    for fold in range(NUM_FOLDS):
        left_out = set(families[fold::NUM_FOLDS])
        shares = fit([row for row in rows if row.case.gpu == FITTED_CARD and row.family not in left_out], names)
        yield from ((row, shares) for row in rows if row.family in left_out)


def show(title: str, estimated: Iterable[tuple[Row, numpy.ndarray]]) -> None:
    groups: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row, shares in estimated:
        found = row.estimate(shares) / row.measured_ms, row.holds(shares)
        groups[f"{row.case.set} {row.case.gpu} {row.case.factors['layout']}"].append(found)
        groups["training, both" if row.is_training else "inference, all"].append(found)
    print(f"{title:44} {'rows':>5} {'median':>7} {'p90':>7} {'bias':>7} {'inside':>7}")
    for key, own in sorted(groups.items()):
        ratios, inside = (numpy.array(column) for column in zip(*own, strict=True))
        errors = numpy.abs(ratios - 1)
        median, p90, bias = numpy.median(errors), numpy.quantile(errors, 0.9), numpy.median(ratios) - 1
        print(f"{key:44} {len(own):5} {median:7.1%} {p90:7.1%} {bias:+7.1%} {inside.mean():7.1%}")


def write(shares: numpy.ndarray, names: Names) -> None:
    """Change the numbers in constants.toml and keep the rest of it."""
    text = CONSTANTS.read_text()
    parts = re.split(r"(?m)^(?=\[)", text)
    for (table, name), value in zip(names.all, shares, strict=True):
        at = next(at for at, part in enumerate(parts) if part.startswith(f"[{table}]"))
        parts[at] = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value:.3f}", parts[at])
    CONSTANTS.write_text("".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ground-truth", type=Path, required=True)
    parser.add_argument("--models", type=int, default=5, help="of each family (default: 5)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the constants fitted on all families")
    options = parser.parse_args()
    found = chosen(options.ground_truth, options.models)
    CACHE.mkdir(parents=True, exist_ok=True)
    jobs = {job.key: job for job in map(recorded_job, found)}
    missing = [job for key, job in jobs.items() if not (CACHE / f"{key}.trace").exists()]
    if missing:
        with Pool(min(options.workers, len(missing)), modules=modules_of(found)) as pool:
            for number, (job, problem) in enumerate(pool.map(record, missing), start=1):
                print(f"{number}/{len(missing)} {' '.join(job.command[1:5])} {problem}", flush=True)
    names = Names(model.constants())
    rows = list(rows_of(found, names))
    show("as it is", ((row, names.values) for row in rows))
    show("families that were not in the fit", cross_validated(rows, names))
    shares = fit([row for row in rows if row.case.gpu == FITTED_CARD], names)
    show("all families of the fit", ((row, shares) for row in rows))
    for (table, name), before, after in zip(names.all, names.values, shares, strict=True):
        print(f"{table}.{name}: {before:.3f} -> {after:.3f}")
    if options.write:
        write(shares, names)


if __name__ == "__main__":
    main()
