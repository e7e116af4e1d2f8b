"""Measured step times and utilization: which script repeats a row, what the estimate says of it, how far it is off."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from foretell import gpus, time
from foretell.errors import UsageError
from foretell.evaluation import regressor
from foretell.evaluation.metrics import OURS, Figures, quantile
from foretell.evaluation.records import Answer, Case
from foretell.records import Gpu
from foretell.trace import Trace

Row = dict[str, str]

STEP_MS = "step_ms"
SHARES = {
    "gract": "avg_gract", "smact": "avg_smact", "smocc": "avg_smocc", "fp32_active": "avg_fp32a",
}  # fmt: skip
"""Columns of DCGM."""
RECORDED_ON = "a100-80gb"
MEMORY_OF_NO_LIMIT = 1 << 40
"""The measured runs fitted; whether those of another torch do is not the question."""
_PEAK, _ROOFLINE, _SCALED = "FLOPs over peak", "roofline", "roofline x one constant"


# --- cases ------------------------------------------------------------------------------------------------------------


def timm_train(key: str, row: Row) -> Case | None:
    return _timm(key, row, "train", is_unfused=True)


def timm_infer(key: str, row: Row) -> Case | None:
    """Compiled models are left out: their kernels are not known."""
    return None if row["compiled"] == "True" else _timm(key, row, "infer", is_unfused=row["torch"].startswith("1."))


def _timm(key: str, row: Row, mode: str, *, is_unfused: bool) -> Case | None:
    # A tag (`resnet50.a1_in1k`) names weights, not another network.
    arguments: tuple[str, ...] = (
        "--model", row["model"].partition(".")[0], "--batch-size", row["batch_size"],
        "--image-size", row["image_size"], "--mode", mode, "--layout", row["layout"], "--precision", row["precision"],
    )  # fmt: skip
    factors: dict[str, str | float] = {"family": row["family"], "layout": row["layout"], "gpu": row["gpu"]}
    arguments += ("--unfused-attention",) if is_unfused else ()
    # A ResNet with group norms moves 2 to 5 bytes more for each element than one with batch norms, in all sets of
    # inference: too few for norms in fp32, as autocast has them. In training it is 50.
    arguments += ("--fast-norm",) if mode == "infer" else ()
    return _case(key, "timm_step.py", arguments, row["gpu"], float(row["step_ms"]), factors)


def transformer_fp32(key: str, row: Row) -> Case | None:
    """Compiled models are left out, and the mixture of experts, whose layers nobody described."""
    if row["compiled"] == "True" or row["model"].startswith("switch"):
        return None
    columns = ("model", "mode", "batch_size", "sequence_length", "hidden", "layers", "heads", "vocabulary")
    arguments = tuple(word for name in columns for word in (f"--{name.replace('_', '-')}", row[name]))
    if row["intermediate"]:
        arguments += ("--intermediate", row["intermediate"])
    took = float(row["forward_ms"]) + float(row["backward_ms"])
    return _case(key, "transformer_fp32.py", arguments, row["gpu"], took, {"model": row["model"], "gpu": row["gpu"]})


def _case(
    key: str, workload: str, arguments: tuple[str, ...], gpu: str, step_ms: float, factors: dict[str, str | float]
) -> Case | None:
    try:
        gpus.find(gpu)
    except UsageError:
        return None  # a card that is not in the table
    return Case(
        key=key, set=key.split("/")[0], workload=workload, arguments=arguments, gpu=gpu, measured_bytes=0,
        is_oom=False, context_bytes=None, factors=factors, measured={STEP_MS: step_ms},
    )  # fmt: skip


def shares_of(row: Row) -> dict[str, float]:
    """Utilization, of a row of the campaigns that have it."""
    return {metric: float(row[column]) for metric, column in SHARES.items() if row.get(column)}


# --- answers ----------------------------------------------------------------------------------------------------------


def details(trace: Trace, gpu: Gpu) -> dict[str, Any]:
    """What is compared: [estimate, low, high] by metric, and what simpler rules say of the same work."""
    work = time.work_of(trace)
    if work is None or time.why_unknown(trace) is not None:
        return {}
    performance = time.performance_of(work, gpu)
    step = performance.time
    ours = {STEP_MS: [step.step_ms, step.step_low_ms, step.step_high_ms]}
    values, lows, highs = (
        asdict(each) for each in (performance.activity, performance.activity_low, performance.activity_high)
    )
    ours |= {metric: [values[metric], lows[metric], highs[metric]] for metric in SHARES}
    flops, roofline = time.plain_milliseconds(work, gpu)
    return {
        "metrics": ours, "simple": {_PEAK: flops, _ROOFLINE: roofline}, "parts": time.plain_parts(work, gpu),
        "bound": step.bound,
    }  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------------

_Triple = Sequence[float]


def figures(cases: Iterable[Case], answers: dict[str, Answer]) -> list[Figures]:
    """A row for each set, tool and metric. Errors of times are relative, those of shares are differences."""
    known = [(case, answers[case.key]) for case in cases if case.measured and case.key in answers]
    known = [(case, answer) for case, answer in known if answer.details.get("metrics")]
    found = []
    for name, metric in dict.fromkeys((case.set, metric) for case, _ in known for metric in case.measured):
        own = [(case, answer) for case, answer in known if case.set == name and metric in case.measured]
        measured = [case.measured[metric] for case, _ in own]
        ours = [answer.details["metrics"][metric] for _, answer in own]
        found.append(metric_figures(name, OURS, metric, measured, ours))
        learned = _learned(own, metric, measured)
        if learned is not None:
            found.append(metric_figures(name, regressor.NAME, metric, measured, [[each] for each in learned]))
        if metric != STEP_MS:
            found.append(always_the_median(name, metric, measured))
            continue
        simple = {tool: [answer.details["simple"][tool] for _, answer in own] for tool in (_PEAK, _ROOFLINE)}
        ratio = statistics.median(took / each for took, each in zip(measured, simple[_ROOFLINE], strict=True))
        simple[_SCALED] = [ratio * each for each in simple[_ROOFLINE]]
        for tool, values in simple.items():
            found.append(metric_figures(name, tool, metric, measured, [[each] for each in values]))
    return found


def always_the_median(set_name: str, metric: str, measured: Sequence[float]) -> Figures:
    typical = [statistics.median(measured)]
    return metric_figures(set_name, "always the median", metric, measured, [typical] * len(measured))


def _learned(own: Sequence[tuple[Case, Answer]], metric: str, measured: Sequence[float]) -> list[float] | None:
    names = ("family", "model", "architecture")
    families = [next((str(case.factors[name]) for name in names if name in case.factors), "") for case, _ in own]
    work = [answer.details.get("parts", {}) for _, answer in own]
    return regressor.held_out(work, families, measured, is_time=metric == STEP_MS)


def metric_figures(
    set_name: str, tool: str, metric: str, measured: Sequence[float], given: Sequence[_Triple]
) -> Figures:
    """Of estimates, or of an estimate, its low and its high end, for each measured run."""
    error: Callable[[float, float], float] = (
        (lambda value, truth: (value - truth) / truth) if metric == STEP_MS else (lambda value, truth: value - truth)
    )
    errors = [error(each[0], truth) for each, truth in zip(given, measured, strict=True)]
    inside = [each[1] <= truth <= each[2] for each, truth in zip(given, measured, strict=True) if len(each) == 3]
    widths = [abs(error(each[2], truth) - error(each[1], truth)) for each, truth in zip(given, measured, strict=True)
              if len(each) == 3]  # fmt: skip
    return Figures(
        set=set_name,
        tool=tool,
        metric=metric,
        num_runs=len(errors),
        num_errors=len(errors),
        median_error=statistics.median(map(abs, errors)),
        p90_error=quantile([abs(each) for each in errors], 0.9),
        mean_abs_error=statistics.fmean(map(abs, errors)),
        bias=statistics.median(errors),
        interval_coverage=statistics.fmean(inside) if inside else None,
        interval_width=statistics.median(widths) if widths else None,
    )
