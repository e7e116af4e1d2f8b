"""Measured pairs of jobs on one card (`time_collocation.csv`) compared with what `rules/sharing.py` says.

How busy each job alone keeps the card is taken from `time_lucid_single.csv` beside it, which has what nvidia-smi
showed; pairs of jobs that are not in it have no estimate.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.errors import UsageError
from foretell.evaluation.metrics import quantile
from foretell.rules.sharing import Load, Speed, speeds

SET = "time_collocation"
_SINGLE = "time_lucid_single.csv"
_Job = tuple[str, str, str, str]
"""Model, data set, batch size, mixed precision."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Of a job beside another one, relative to the job alone."""

    own: _Job
    other: _Job
    own_load: Load
    other_load: Load
    speed: float
    """Values above 1 are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFigures:
    set: str
    tool: str
    metric: Literal["speed"] = "speed"
    num_runs: int
    median_error: float
    """Errors are |estimated - measured|: speeds are relative already."""
    p90_error: float
    mean_abs_error: float
    bias: float
    """Mean of estimated - measured."""
    interval_coverage: float | None = None
    interval_width: float | None = None
    utilization: Literal["measured"] = "measured"
    """Where that of each job alone is from."""


def read(folder: Path) -> tuple[list[MeasuredSpeed], int]:
    """What was measured, two rows a pair; and how many pairs have jobs of unknown utilization."""
    loads = _loads(folder / _SINGLE)
    found, num_unknown = [], 0
    for row in _rows(folder / f"{SET}.csv"):
        try:
            first, second = (_job(row, side) for side in "ab")
            if row["source"] != "Lucid" or first not in loads or second not in loads:
                num_unknown += 1
                continue
            for own, other, side in ((first, second, "a"), (second, first, "b")):
                found.append(MeasuredSpeed(own, other, loads[own], loads[other], float(row[f"{side}_speed"])))
        except (KeyError, TypeError, ValueError) as error:  # TypeError: a row that is too short
            raise UsageError(f"{folder / SET}.csv: {type(error).__name__}: {error}. Not a file of pairs?") from None
    return found, num_unknown


def _loads(path: Path) -> dict[_Job, Load]:
    if not path.is_file():
        return {}
    try:
        return {
            (row["model"], row["dataset"], row["batch_size"], row["amp"]): Load(
                float(row["gpu_utilization_pct"]) / 100, float(row["memory_utilization_pct"]) / 100
            )
            for row in _rows(path)
        }
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}. Not a file of measured jobs?") from None


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {path}: {error}.") from None


def _job(row: dict[str, str], side: str) -> _Job:
    return row[side], row[f"{side}_dataset"], row[f"{side}_batch"], row[f"{side}_amp"]


def _alone(own: Load, other: Load) -> Speed:
    return Speed(1.0, 1.0, 1.0)


def _ours(own: Load, other: Load) -> Speed:
    return speeds([own, other])[0]


def _takes_turns(own: Load, other: Load) -> Speed:
    speed = 1 / (1 + own.gract * other.gract)
    return Speed(speed, speed, speed)


def _fills_up(own: Load, other: Load) -> Speed:
    speed = min(1.0, 1 / max(own.gract + other.gract, 1e-9))
    return Speed(speed, speed, speed)


TOOLS: dict[str, Callable[[Load, Load], Speed]] = {
    "foretell": _ours,
    "no slowdown": _alone,
    "1 / (1 + u1 u2)": _takes_turns,
    "min(1, 1 / (u1 + u2))": _fills_up,
}


def figures(measured: Sequence[MeasuredSpeed]) -> list[SpeedFigures]:
    return [_figures(tool, estimate, measured) for tool, estimate in TOOLS.items() if measured]


def _figures(tool: str, estimate: Callable[[Load, Load], Speed], measured: Sequence[MeasuredSpeed]) -> SpeedFigures:
    estimated = [(estimate(each.own_load, each.other_load), each.speed) for each in measured]
    errors = [speed.expected - found for speed, found in estimated]
    sizes = [abs(error) for error in errors]
    has_range = any(speed.low < speed.high for speed, _ in estimated)
    inside = statistics.fmean(speed.low <= min(1.0, found) <= speed.high for speed, found in estimated)
    return SpeedFigures(
        set=SET,
        tool=tool,
        num_runs=len(measured),
        median_error=statistics.median(sizes),
        p90_error=quantile(sizes, 0.9),
        mean_abs_error=statistics.fmean(sizes),
        bias=statistics.fmean(errors),
        interval_coverage=inside if has_range else None,
        interval_width=statistics.median(speed.high - speed.low for speed, _ in estimated) if has_range else None,
    )
