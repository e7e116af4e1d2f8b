"""Labels of step time and utilization: a drawn job runs once, its work is recorded, and the time model plays it on each
card."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from foretell import api, gpus, time
from foretell.errors import ForetellError
from foretell.jobs import CaptureOptions, Job
from foretell.learn.dataset import Timing
from foretell.learn.draws import Draw
from foretell.plain import to_plain
from foretell.records import Performance
from foretell.runs import find_torch, state_of_code
from foretell.runs.pool import Pool, Workers
from foretell.runs.warm import Warm

RECORDED_ON = "a100-80gb"
_CARDS_OF_A_JOB = 3
"""Playing a step on a card takes longer than recording it."""
_NO_LIMIT = 1 << 40
"""Whether a job fits is not the question here."""
_SECONDS = 300.0


def time_all(draws: Sequence[Draw], cards: Sequence[str], *, workers: Workers) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each draw and its times, each on some of the cards, as they come; an answer with `problem` says why
    it has none."""
    if isinstance(workers, int):
        workers = max(1, min(workers, len(draws)))
    with Pool(workers) as pool:
        for (number, _), answer in pool.map(partial(_timed, tuple(cards)), enumerate(draws)):
            yield number, answer


def state_of_times() -> str:
    """What the times depend on: foretell's code, and torch."""
    installed = find_torch(sys.executable)
    return f"{state_of_code()}-{installed.version if installed else ''}"


def _timed(cards: tuple[str, ...], drawn: tuple[int, Draw], warm: Warm) -> dict[str, Any]:
    job = Job(
        command=("-m", "foretell.learn.jobs", json.dumps(to_plain(drawn[1]))),
        gpu=replace(gpus.find(RECORDED_ON), total_bytes=_NO_LIMIT),
        options=CaptureOptions(
            steps="all", history=False, attribution=False, time=True, engine="virtual", stdout="file",
            timeout_seconds=_SECONDS,
        ),
    )  # fmt: skip
    try:
        trace = api.run(job, warm=warm).trace
    except ForetellError as error:
        return {"problem": str(error)[:300]}
    work = time.work_of(trace)
    problem = time.why_work_unknown(work)
    if work is None or problem is not None:
        return {"problem": problem}
    chosen = random.Random(drawn[1].key).sample(cards, min(_CARDS_OF_A_JOB, len(cards)))
    found = {card: _timing(time.performance_of(work, gpus.find(card))) for card in chosen}
    return {"times": {card: to_plain(each) for card, each in found.items()}}


def _timing(performance: Performance) -> Timing:
    step, activity = performance.time, performance.activity
    low, high = performance.activity_low, performance.activity_high
    return Timing(
        step_ms=step.step_ms, step_low_ms=step.step_low_ms, step_high_ms=step.step_high_ms,
        busy_ms=step.gpu_busy_ms, host_ms=step.host_ms,
        gract=activity.gract, gract_low=low.gract, gract_high=high.gract,
        smact=activity.smact, smact_low=low.smact, smact_high=high.smact,
    )  # fmt: skip


__all__ = ["state_of_times", "time_all"]
