"""The largest value of a knob with which a job fits on its card."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from foretell import api
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.jobs import Job
from foretell.plan.knobs import Knob, LoaderBatch
from foretell.plan.loaders import observe
from foretell.plan.search import Answer, largest
from foretell.plan.variants import Outcome, Variants
from foretell.records import Estimate, Need
from foretell.runs.pool import Workers
from foretell.units import format_bytes

LARGEST = 1 << 20
"""The end of the range, if none is given."""
_FIRST = 8
"""The first value that is tried, if the job has none."""
_AUTO = ("auto", "")
_WIDEST = 8
_HOST_SHARE = 0.8
REFUSED = re.compile(
    r"unrecognized arguments?|no such option|unknown option|unexpected (?:keyword )?argument|could not override|"
    r"error: argument |is not used by the",
    re.IGNORECASE,
)
"""What argparse, click, Fire, Hydra and HfArgumentParser say of an option they do not know, or of its value."""

Verdict = Literal["fits", "does not fit", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One value that was tried."""

    value: int
    verdict: Verdict
    estimate: Estimate | None
    """None: the script failed."""
    problem: str | None = None
    """Why there is no verdict."""

    @property
    def seconds(self) -> float | None:
        return None if self.estimate is None else self.estimate.seconds.get("total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum:
    """The answer, and what was tried to find it."""

    job: Job
    """As given, with the safety margin as memory used by others."""
    knob: Knob
    values: range
    """The values that were allowed."""
    value: int | None
    """None: nothing fits."""
    above: Literal["memory", "failure", "range"]
    """Why the next value is none: it does not fit, the script fails with it, or it is outside the range."""
    is_certain: bool
    """False: the search has ended before it had tried all the values that it wanted to."""
    evaluations: tuple[Evaluation, ...]
    """By value."""
    safety_bytes: int = 0
    need: Need | None = None
    """If nothing fits: what the smallest value needs."""

    @property
    def estimate(self) -> Estimate | None:
        return next((each.estimate for each in self.evaluations if each.value == self.value), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the answer should know."""
        return tuple(_notes(self))


def maximum(
    job: Job,
    knob: Knob,
    *,
    low: int = 1,
    high: int | None = None,
    multiple_of: int = 1,
    safety_bytes: int = 0,
    is_request: bool = False,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
    on_evaluation: Callable[[Evaluation], None] = lambda evaluation: None,
) -> Maximum:
    """Search for the largest value in `low` to `high` that fits, leaving `safety_bytes` of the card free; with
    `is_request`, what to request from a scheduler must fit as well. Raises `UsageError` if the script does not know the
    knob or ignores it."""
    limit = LARGEST if high is None else high
    if isinstance(knob, LoaderBatch):
        knob, loaders = observe(job, say=say)
        lengths = [loader.num_samples for loader in loaders]
        if high is None and None not in lengths:
            limit = max(1, *(length or 0 for length in lengths))
    values = _range(low, limit, multiple_of)
    present = _present(knob, job)
    knob.set(job, str(values[0]))  # what is wrong with the knob is told before anything runs
    if safety_bytes:
        job = replace(job, used_by_others_bytes=job.used_by_others_bytes + safety_bytes)
    evaluations: dict[int, Evaluation] = {}
    with Variants(job, workers=workers, say=say) as variants:
        job = with_host_limit(job, variants.num_workers)

        def ask(asked: Sequence[int]) -> list[Answer]:
            say(f"trying {knob.name} {' and '.join(map(str, asked))}")
            outcomes = variants.run([knob.set(job, str(value)) for value in asked])
            found = [_evaluation(value, each, is_request) for value, each in zip(asked, outcomes, strict=True)]
            evaluations.update((each.value, each) for each in found)
            for each in found:
                on_evaluation(each)
            _check_use(knob, tuple(evaluations.values()), outcomes)
            return [_answer(each, is_request) for each in found]

        found = largest(
            ask, values, start=present or _FIRST, limit_bytes=job.available_bytes,
            width=min(variants.num_workers, _WIDEST),
        )  # fmt: skip
        need = None
        if found.value is None:
            refuse_if_it_runs_without(variants, job, [knob], _problems(evaluations.values()))
            need = _need_of_smallest(variants, knob, job, list(evaluations.values()))
    result = Maximum(
        job=job, knob=knob, values=values, value=found.value, above=found.above, is_certain=found.is_certain,
        evaluations=tuple(sorted(evaluations.values(), key=lambda each: each.value)), safety_bytes=safety_bytes,
        need=need,
    )  # fmt: skip
    if found.above == "range":
        _refuse_ignored(knob, result.evaluations, least=2)
    return result


def _range(low: int, high: int, multiple_of: int) -> range:
    if low < 1 or multiple_of < 1:
        what = f"--min {low}" if low < 1 else f"--multiple-of {multiple_of}"
        raise UsageError(f"{what}: must be 1 or more.")
    first = -(-low // multiple_of) * multiple_of
    if first > high:
        multiples = f" that is a multiple of {multiple_of}" if multiple_of > 1 else ""
        raise UsageError(f"--min {low} --max {high}: there is no value{multiples} between them.")
    return range(first, high + 1, multiple_of)


def _present(knob: Knob, job: Job) -> int | None:
    """The value the job has; raises if it is not a number."""
    text = knob.value_in(job)
    if text is None or text.strip().lower() in _AUTO:
        return None
    if not re.fullmatch("[0-9]{1,12}", text.strip()):
        raise UsageError(f"{knob.name} is {text!r}: not an integer, so there is no largest value to search for.")
    return int(text)


def with_host_limit(job: Job, num_workers: int) -> Job:
    """Large batches are made on the host: runs of the job that are under way together must not exhaust it."""
    if job.options.most_host_bytes is not None:
        return job
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return replace(job, options=replace(job.options, most_host_bytes=int(_HOST_SHARE * total) // num_workers))


# --- one value --------------------------------------------------------------------------------------------------------


def _evaluation(value: int, outcome: Outcome, is_request: bool) -> Evaluation:
    estimate = outcome.estimate
    if estimate is None or outcome.why_unknown is not None:
        return Evaluation(value=value, verdict="failed", estimate=None, problem=outcome.why_unknown)
    fits = estimate.verdict == "fits" and (not is_request or estimate.request_bytes <= estimate.available_bytes)
    return Evaluation(value=value, verdict="fits" if fits else "does not fit", estimate=estimate)


def _answer(evaluation: Evaluation, is_request: bool) -> Answer:
    if evaluation.estimate is None:
        return Answer(None)
    fits = evaluation.verdict == "fits"
    return Answer(fits, _needed(evaluation.estimate, is_request) if fits else None)


def _needed(estimate: Estimate, is_request: bool) -> int:
    return estimate.request_bytes if is_request else estimate.device_bytes


# --- what is wrong with the knob --------------------------------------------------------------------------------------


def _check_use(knob: Knob, evaluations: Sequence[Evaluation], outcomes: Sequence[Outcome]) -> None:
    """Raise as soon as it is clear that the script does not know the knob, or ignores it."""
    if all(each.estimate is None for each in evaluations):
        for outcome in outcomes:
            refused = [line.strip() for line in (outcome.problem or "").splitlines() if REFUSED.search(line)]
            if refused:
                raise UsageError(f"the script does not accept {knob.name}: {refused[-1]}")
        if all(outcome.kind == "unsupported" for outcome in outcomes):
            raise UnsupportedError(outcomes[0].problem or "")
    _refuse_ignored(knob, evaluations, least=4)


def _problems(evaluations: Iterable[Evaluation]) -> list[str]:
    """Why there is no verdict for any value; empty if there is one."""
    found = sorted(evaluations, key=lambda each: each.value)
    return [each.problem or "" for each in found] if all(each.estimate is None for each in found) else []


def refuse_if_it_runs_without(variants: Variants, job: Job, knobs: Sequence[Knob], problems: Sequence[str]) -> None:
    """Raise if the script has failed with every value of the knobs (`problems`), but works as it was given: then the
    knobs are what is wrong."""
    if not problems:
        return
    (as_given,) = variants.run([job])
    if as_given.estimate is None:
        return
    names = ", ".join(knob.name for knob in knobs)
    one_word = [f"--arg={knob.name}=" for knob in knobs if knob.kind == "arg" and knob.name.startswith("--")]
    raise UsageError(
        f"the script runs as given, but fails with every value of {names} that was tried: {problems[0]}\n"
        "Check the name and the range (--min, --multiple-of)."
        + (f" For a script that takes only --name=value in one word, give {one_word[0]}." if one_word else "")
    )


def _refuse_ignored(knob: Knob, evaluations: Sequence[Evaluation], *, least: int) -> None:
    """`least`: as many values that fit must have been tried."""
    known = {each.value: each.estimate.peak for each in evaluations if each.estimate and each.estimate.oom is None}
    peaks = {(peak.allocated_bytes, peak.reserved_bytes) for peak in known.values()}
    if len(known) >= least and len(peaks) == 1:
        values = " and ".join(", ".join(map(str, sorted(known))).rsplit(", ", 1))
        reserved = format_bytes(peaks.pop()[1])
        raise UsageError(
            f"the script ignores {knob.name}: with {values} it reserves the same {reserved}. Check the name, and that "
            "nothing later in the command or in the script overrides it."
        )


def _need_of_smallest(variants: Variants, knob: Knob, job: Job, evaluations: list[Evaluation]) -> Need | None:
    """What the smallest value needs. Raises if the script fails with every value."""
    ran_out = [each for each in evaluations if each.estimate is not None]
    if not ran_out:
        first = min(evaluations, key=lambda each: each.value)
        raise ScriptError(f"the script itself fails with {knob.name} {first.value} and all others: {first.problem}")
    smallest = min(each.value for each in ran_out)
    large = replace(knob.set(job, str(smallest)), gpu=api.with_much_memory(job.gpu))
    (outcome,) = variants.run([large])
    return None if outcome.estimate is None or outcome.estimate.oom else api.need_of(outcome.estimate)


def _notes(found: Maximum) -> Iterator[str]:
    name, value = found.knob.name, found.value
    if value is None:
        return
    below = [each for each in found.evaluations if each.value < value]
    holes = [str(each.value) for each in below if each.verdict == "does not fit"]
    if holes:
        yield f"not every smaller value fits: {', '.join(holes)} did not"
    if found.above == "range":
        same = [each.value for each in below if each.estimate and _same_peak(each.estimate, found.estimate)]
        if same:
            yield f"from {min(same)} to {value} the peak is the same: {name} may exceed the data there is"
    for problem, values in _failures(found.evaluations).items():
        yield f"failed with {', '.join(map(str, values))}: {problem}"
    if found.above == "failure":
        yield f"larger values than {value} may fit in memory, but the script fails with them"
    if not found.is_certain:
        yield f"the search was ended after {len(found.evaluations)} values; larger ones may fit"


def _failures(evaluations: Sequence[Evaluation]) -> dict[str, list[int]]:
    """The values with which the script failed, by what it said; numbers in it may differ."""
    found: dict[str, list[int]] = {}
    known: dict[str, str] = {}
    for each in evaluations:
        if each.verdict == "failed":
            problem = (each.problem or "").partition("\n")[0]
            found.setdefault(known.setdefault(re.sub(r"\d+", "N", problem), problem), []).append(each.value)
    return found


def _same_peak(one: Estimate, other: Estimate | None) -> bool:
    return other is not None and one.peak.allocated_bytes == other.peak.allocated_bytes
