"""What instant estimates must reach, and what they reach on measured runs that they were not fitted to: `make instant`.

    python -m benchmarks.instant --ground-truth FOLDER [--labels labels.csv.gz] [--markdown docs/learned.md]

Runs with odd line numbers are judged. With `--labels`, a data set of `foretell dataset generate`, one row is of the
estimator trained on virtual labels alone. Speed is CPU time on this machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gpumemnet
from rich.console import Console
from rich.table import Table

from foretell import disk, gpus
from foretell.errors import ForetellError, UsageError
from foretell.evaluation import cases, instant, tables, trained
from foretell.evaluation.instant import GUESS, InstantFigures
from foretell.evaluation.metrics import Figures
from foretell.evaluation.records import Case
from foretell.features import JobFeatures
from foretell.formulas import Estimator
from foretell.guessing import answer_all
from foretell.learn import dataset, estimator
from foretell.learn.processes import state_of_description
from foretell.runs import Store
from foretell.runs.environment import private_cache

BEGIN, END = "<!-- begin: make instant -->", "<!-- end: make instant -->"
MLPS = ("mlp_a100", "mlp_plain_a100")
TRANSFORMERS = ("transformer", "transformer_a100")
MEMORY = (*MLPS, "cnn_a100", "cnn_rtx", *TRANSFORMERS, "timm_a100", "real_models_a100")
TIMES = ("time_timm_train_3090", "time_transformer_fp32")
BOUND = f"{GUESS}, bound"
HEADINGS = ("what", "must", "aim", "reached", "runs")
_JOBS_AT_ONCE = 5000
_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A row of the table."""

    what: str
    must: str
    aim: str
    reached: str
    num_runs: int | None = None
    is_met: bool | None = None
    """None: nothing to meet."""

    @property
    def row(self) -> tuple[str, ...]:
        mark = "" if self.is_met is None else " ✓" if self.is_met else " ✗"
        runs = "" if self.num_runs is None else str(self.num_runs)
        return self.what, self.must, self.aim, self.reached + mark, runs


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures of `guess`, and of its bound, by set."""

    best: dict[str, InstantFigures]
    bound: dict[str, InstantFigures]
    timed: dict[tuple[str, str], Figures]
    """By set and metric."""


def main() -> int:
    options = parsed()
    try:
        return run(options)
    except ForetellError as error:
        print(f"instant: {error}", file=sys.stderr)
        return error.exit_code


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ground-truth", type=Path, default=gpumemnet.GROUND_TRUTH, metavar="FOLDER")
    parser.add_argument(
        "--sample", type=int, default=220, metavar="N", help="at most N runs of each set (default: 220)"
    )  # fmt: skip
    parser.add_argument("--labels", type=Path, metavar="FILE", help="a data set to train on without measured runs")
    parser.add_argument(
        "--gpumemnet-runs", type=int, metavar="N", help="of the MLP set (default: all; 0: leave it out)"
    )
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="where descriptions are kept (default: in ~/.cache)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="that describe jobs")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table between its markers")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False)
    chosen = sampled(cases.read(options.ground_truth, [*MEMORY, *TIMES]), options.sample, options.seed)
    jobs = described(chosen, options, console)
    judged = judge(chosen, jobs, {GUESS: estimator.shipped()})
    goals = [*of_memory(judged), *of_time(judged)]
    if options.labels is not None:
        console.print("training on labels alone, in folds")
        alone = trained.own_held_out(chosen, dataset.read(options.labels), [])
        goals.append(of_labels(judge(chosen, jobs, {GUESS: alone})))
    if options.gpumemnet_runs != 0:
        goals.append(of_gpumemnet(options, console))
    goals += of_speed([job for job in jobs.values() if isinstance(job, JobFeatures)])
    rows = [goal.row for goal in goals]
    print_table(rows)
    if options.markdown:
        before, _, rest = options.markdown.read_text("utf-8").partition(BEGIN)
        text = f"{BEGIN}\n\n{tables.markdown(HEADINGS, rows)}\n\n{END}{rest.partition(END)[2]}"
        disk.write(options.markdown, before + text, is_private=False)
    return 0


def sampled(known: Iterable[Case], num: int, seed: int) -> list[Case]:
    """As `foretell evaluate --rows kept --sample` chooses them."""
    by_set: dict[str, list[Case]] = {}
    for case in known:
        if case.is_kept_back and instant.is_judged(case):
            by_set.setdefault(case.set, []).append(case)
    for own in by_set.values():
        random.Random(seed).shuffle(own)
    return [case for own in by_set.values() for case in own[:num]]


def described(
    chosen: Sequence[Case], options: argparse.Namespace, console: Console
) -> dict[str, JobFeatures | str]:
    folder = private_cache("evaluations", os.environ)
    if folder is None and options.answers is None:
        raise UsageError("there is no cache folder to keep descriptions in (~/.cache). Name a file: --answers FILE.")
    path = options.answers or (folder or Path()) / "descriptions.jsonl"
    store = Store(path, state=state_of_description(of_any_script=True))

    def show(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            console.print(f"{done} of {total} jobs described")

    jobs = instant.describe(chosen, store, workers=options.workers, on_progress=show)
    store.close()
    return jobs


def judge(
    chosen: Sequence[Case], jobs: dict[str, JobFeatures | str], estimators: dict[str, Estimator]
) -> Judged:
    best, bounds = instant.judge(chosen, jobs, estimators)
    figures = instant.instant_figures(best + bounds)
    timed = instant.speed_figures(chosen, jobs, estimators)
    return Judged(
        {each.set: each for each in figures if each.tool == GUESS},
        {each.set: each for each in figures if each.tool == BOUND},
        {(each.set, each.metric): each for each in timed if each.tool == GUESS},
    )


# --- rows of the table ------------------------------------------------------------------------------------------------


def of_memory(judged: Judged) -> list[Goal]:
    timm, named, cnn = judged.best["timm_a100"], judged.best["real_models_a100"], judged.bound["cnn_a100"]
    p90 = timm.p90_error or 0.0
    goals = [
        classes("MLP, class of 1 GiB / median error", judged.best, MLPS, (0.99, 0.005), (0.995, 0.003)),
        classes("CNN, class of 8 GiB / median error", judged.best, ("cnn_a100",), (0.91, 0.04), (0.93, 0.025)),
        classes("Transformer, class of 8 GiB / median error", judged.best, TRANSFORMERS, (0.92, 0.03), (0.97, 0.015)),
        Goal(
            what="timm, median / p90 error", must="3.5 % / 14 %", aim="2 % / 8 %",
            reached=f"{percent(timm.median_error)} / {percent(p90)}", num_runs=timm.num_runs,
            is_met=(timm.median_error or 0.0) <= 0.035 and p90 <= 0.14,
        ),
        Goal(
            what="named CNNs, median error", must="8 %", aim="3 %", reached=percent(named.median_error),
            num_runs=named.num_runs, is_met=(named.median_error or 0.0) <= 0.08,
        ),
    ]  # fmt: skip
    for name, each in judged.best.items():
        if each.interval_coverage is not None:
            reached = f"{percent(each.interval_coverage)} / {percent(each.interval_width)}"
            goals.append(
                Goal(
                    what=f"95 % interval, {name}: inside / median width", must="90 to 99 % / 45 %",
                    aim="93 to 97 % / 25 %", reached=reached,
                    num_runs=each.num_errors,
                    is_met=0.9 <= each.interval_coverage <= 0.99 and (each.interval_width or 0.0) < 0.45,
                )
            )  # fmt: skip
    goals.append(
        Goal(
            what="bound of CNNs, class too low / class right", must="2 % / 85 %", aim="1 % / 88 %",
            reached=f"{percent(cnn.class_too_low)} / {percent(cnn.class_accuracy)}", num_runs=cnn.num_runs,
            is_met=cnn.class_too_low <= 0.02 and cnn.class_accuracy >= 0.85,
        )
    )  # fmt: skip
    return goals


def classes(
    what: str, by_set: dict[str, InstantFigures], sets: Sequence[str], must: tuple[float, float],
    aim: tuple[float, float],
) -> Goal:  # fmt: skip
    """Class accuracy over all runs of the sets; of the medians of the sets, the largest."""
    found = [by_set[name] for name in sets if name in by_set]
    num = sum(each.num_runs for each in found)
    accuracy = sum(each.num_runs * each.class_accuracy for each in found) / max(1, num)
    median = max((each.median_error or 0.0 for each in found), default=0.0)
    return Goal(
        what=what, must=f"{percent(must[0])} / {percent(must[1])}", aim=f"{percent(aim[0])} / {percent(aim[1])}",
        reached=f"{percent(accuracy)} / {percent(median)}", num_runs=num,
        is_met=accuracy >= must[0] and median <= must[1],
    )  # fmt: skip


def of_time(judged: Judged) -> list[Goal]:
    """No goals: what the time model itself reaches is in docs/time.md."""
    return [
        Goal(
            what=f"{name}, {metric}: median / p90 error; inside" if metric == "step_ms"
            else f"{name}, {metric}: mean absolute error; inside",
            must="", aim="",
            reached=f"{percent(each.median_error)} / {percent(each.p90_error)}; {percent(each.interval_coverage)}"
            if metric == "step_ms"
            else f"{each.mean_abs_error:.3f}; {percent(each.interval_coverage)}",
            num_runs=each.num_runs,
        )
        for (name, metric), each in judged.timed.items()
    ]  # fmt: skip


def of_labels(judged: Judged) -> Goal:
    parts = (("cnn_a100",), TRANSFORMERS, MLPS)
    medians = [max(judged.best[name].median_error or 0.0 for name in sets) for sets in parts]
    return Goal(
        what="trained on virtual labels alone: CNN / Transformer / MLP, median error", must="4.5 / 3 / 0.6 %",
        aim="3 / 1.5 / 0.4 %", reached=" / ".join(map(percent, medians)),
        num_runs=sum(judged.best[name].num_runs for sets in parts for name in sets),
        is_met=all(found <= most for found, most in zip(medians, (0.045, 0.03, 0.006), strict=True)),
    )  # fmt: skip


def of_gpumemnet(options: argparse.Namespace, console: Console) -> Goal:
    """The better of its two kinds of networks, as in the paper."""
    given = argparse.Namespace(
        ground_truth=options.ground_truth, sample=options.gpumemnet_runs, workers=options.workers, seed=options.seed,
        folds=3, epochs=None,
    )  # fmt: skip
    examples = gpumemnet.read(given, "mlp_a100", console)
    found = [gpumemnet.judged("mlp_a100", examples, kind, 1 << 30, given) for kind in ("mlp", "transformer")]
    accuracy = max(each.means.accuracy for each in found)
    return Goal(
        what="GPUMemNet re-created, MLP set, class right in 3 folds", must="96 %", aim="98 %",
        reached=percent(accuracy), num_runs=len(examples), is_met=accuracy >= 0.96,
    )  # fmt: skip


def of_speed(jobs: Sequence[JobFeatures]) -> list[Goal]:
    """Of described jobs: an answer of memory, step time and utilization each."""
    gpu = gpus.find("a100-40gb")
    model = estimator.shipped()
    some = [jobs[i % len(jobs)] for i in range(_JOBS_AT_ONCE)]
    one = statistics.median(seconds(lambda job=job: model.guess(job, gpu)) for job in some[:200])  # type: ignore[misc]
    rate = len(some) / min(seconds(lambda: answer_all(some, gpu)) for _ in range(_REPEATS))
    return [
        Goal(
            what="one described job, CPU time", must="0.5 ms", aim="0.2 ms", reached=f"{1e3 * one:.2f} ms",
            is_met=one <= 0.5e-3,
        ),
        Goal(
            what="a batch of described jobs, a second", must="20,000", aim="50,000", reached=f"{rate:,.0f}",
            is_met=rate >= 20_000,
        ),
    ]  # fmt: skip


def seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "what" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=160, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
