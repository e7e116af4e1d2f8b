"""Compares estimated times of compiled models with measured ones.

python -m benchmarks.compiled_times --ground-truth FOLDER [--models N] [--seed N] [--only NAME ...]

The rows of time_timm_infer.csv with `compiled`, under autocast: no constant was fitted to them. Compiling takes up to a
minute for a model, so `foretell evaluate` leaves them out.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy

from foretell import api, gpus
from foretell.errors import ForetellError
from foretell.evaluation import times
from foretell.evaluation.records import Case
from foretell.evaluation.runner import job_of, modules_of
from foretell.runs import Warm
from foretell.time import performance, why_unknown, work_of

RECORDED_ON = "rtx-4090"
TIMEOUT_SECONDS = 900.0


def chosen(folder: Path, num_models: int, seed: int, only: list[str]) -> list[list[Case]]:
    """For each model, the rows that one recorded run answers."""
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    with (folder / "time_timm_infer.csv").open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            is_wanted = row["compiled"] == "True" and row["precision"] == "amp" and not row["torch"].startswith("1.")
            if not is_wanted:
                continue
            case = times.timm_infer(f"time_timm_infer/{number}", {**row, "compiled": "False"})
            if case is not None:
                groups[case.arguments].append(case)
    each_model = {arguments[1]: rows for arguments, rows in sorted(groups.items(), key=lambda item: len(item[1]))}
    names = only or random.Random(seed).sample(sorted(each_model), min(num_models, len(each_model)))
    unknown = [name for name in names if name not in each_model]
    if unknown:
        raise SystemExit(f"no compiled rows of {', '.join(unknown)}")
    return [each_model[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ground-truth", type=Path, required=True)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options = parser.parse_args()
    found = chosen(options.ground_truth, options.models, options.seed, options.only)
    ratios: dict[str, list[float]] = defaultdict(list)
    insides: list[bool] = []
    with Warm(modules=modules_of([rows[0] for rows in found])) as warm:
        for rows in found:
            case = replace(rows[0], arguments=(*rows[0].arguments, "--compile"), gpu=RECORDED_ON)
            job = job_of(case, "virtual")
            # Without the history nobody tells when a compiled model is called.
            job = replace(job, options=replace(job.options, timeout_seconds=TIMEOUT_SECONDS, history=True))
            try:
                trace = api.run(job, warm=warm).trace
            except ForetellError as error:
                print(f"{case.arguments[1]}: {error}")
                continue
            for row in rows:
                performed = performance(trace, gpus.find(row.gpu)) if work_of(trace) is not None else None
                if performed is None:
                    print(f"{case.arguments[1]}: no time: {why_unknown(trace)}")
                    continue
                step, measured = performed.time, row.measured["step_ms"]
                ratios[row.gpu].append(step.step_ms / measured)
                insides.append(step.step_low_ms <= measured <= step.step_high_ms)
                name = case.arguments[1]
                print(f"{name:40} {row.gpu:20} {measured:8.1f} ms  x {ratios[row.gpu][-1]:.2f}", flush=True)
    for card, each in sorted(ratios.items()):
        errors = numpy.abs(numpy.array(each) - 1)
        median, bias = numpy.median(errors), numpy.median(each) - 1
        print(f"{card:20} {len(each):3} rows, median {median:.1%}, largest {errors.max():.1%}, bias {bias:+.1%}")
    print(f"inside of the interval: {sum(insides)} of {len(insides)}")


if __name__ == "__main__":
    main()
