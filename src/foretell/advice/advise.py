"""Advice for a job: what each change saves, and whether it makes the job fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from foretell.advice.alternatives import CHECKPOINTING_OF_MODEL, Alternative, alternatives
from foretell.advice.held import release_earlier
from foretell.advice.trials import Trial, Trials
from foretell.errors import ForetellError, UnsupportedError
from foretell.jobs import Job
from foretell.records import Advice, Estimate, Gpu, Verdict
from foretell.rules.capacity import capacity_of
from foretell.trace import ACTIONS
from foretell.units import MIB, format_bytes

_LARGER = (4, 16)
"""A job that does not fit is measured on a card with this many times the memory."""
_FEWEST_BYTES = 2 * MIB
_SMALLEST_SHARE = 0.01
"""Smaller savings are not worth a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    reserved_bytes: int
    """The peak without changes, the baseline of all savings; measured on a larger card if the job does not fit."""
    advice: tuple[Advice, ...]
    """Largest saving first; the last may be all of them combined."""
    not_tried: tuple[str, ...]
    """Changes that could not be run, and why."""


def advise(
    job: Job,
    estimate: Estimate,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Findings:
    with Trials(job) as trials:
        say("advice: looking for possible changes")
        base, card = _base(trials, job, estimate)
        assert base.survey is not None, "a survey run that ended well left no survey"
        reserved = estimate.peak.reserved_bytes if estimate.oom is None else base.reserved_bytes
        least = max(_FEWEST_BYTES, int(_SMALLEST_SHARE * reserved))
        not_tried: list[str] = []
        if base.reserved_bytes != reserved:
            difference = abs(base.reserved_bytes - reserved)
            least = max(least, difference + 1)
            not_tried.append(
                f"savings of {format_bytes(difference)} or less: two runs of this script differ by that much"
            )
        builder = _AdviceBuilder(trials, job.gpu, card, reserved, base.estimate)

        found: list[tuple[Alternative, Advice]] = []
        settings = base.trace.allocator_settings or ""
        for alternative in alternatives(
            base.survey, job.gpu, estimate.torch_version, least_bytes=least, allocator_settings=settings
        ):
            say(f"advice: trying {alternative.title}")
            try:
                found.append((alternative, builder.advice(alternative)))
            except ForetellError as error:
                not_tried.append(f"{alternative.title}: {_first_line(error)}")
        worthwhile = [(a, advice) for a, advice in found if builder.is_worthwhile(advice, least)]
        together = None
        if len(parts := _compatible(worthwhile)) > 1:
            say("advice: trying all of them combined")
            try:
                together = builder.advice(_joined(parts))
            except ForetellError as error:
                not_tried.append(f"all combined: {_first_line(error)}")
    advice = [each for _, each in worthwhile]
    if base.estimate.attribution is not None:
        earlier = release_earlier(base.trace, base.estimate.attribution)
        if earlier is not None:
            earlier = replace(earlier, verdict=builder.verdict_of(earlier.peak_reserved_bytes))
            advice += [earlier] if builder.is_worthwhile(earlier, least) else []
    advice.sort(key=lambda each: each.saved_bytes, reverse=True)
    if together is not None and together.saved_bytes > advice[0].saved_bytes:
        advice.append(together)
    return Findings(reserved_bytes=reserved, advice=tuple(advice), not_tried=tuple(not_tried))


def _base(trials: Trials, job: Job, estimate: Estimate) -> tuple[Trial, Gpu]:
    if estimate.oom is None:
        return trials.survey(job.gpu, expected_bytes=estimate.peak.reserved_bytes), job.gpu
    for times in _LARGER:
        card = replace(job.gpu, total_bytes=times * job.gpu.total_bytes)
        base = trials.survey(card, expected_bytes=None)
        if base.estimate.oom is None:
            return base, card
    raise UnsupportedError(f"no advice: the job needs more than {_LARGER[-1]} times the memory of {job.gpu.name}.")


class _AdviceBuilder:
    """Runs alternatives and builds the `Advice` of each."""

    def __init__(self, trials: Trials, gpu: Gpu, card: Gpu, reserved_bytes: int, base: Estimate) -> None:
        self._trials = trials
        self._gpu = gpu
        self._card = card
        """The job's GPU, or one with more memory: savings are measured where the job fits."""
        self._reserved_bytes = reserved_bytes
        self._step_ms = _step_ms(base)
        others = base.used_by_others_bytes + base.other_processes_bytes
        self._capacity = replace(capacity_of(base), total_bytes=gpu.total_bytes, used_by_others_bytes=others)

    def advice(self, alternative: Alternative) -> Advice:
        """Raises if the change cannot be run or had no effect."""
        if alternative.saved_bytes is not None:
            reserved = self._reserved_bytes - alternative.saved_bytes
            return self._advice(alternative, reserved, "estimated", self.verdict_of(reserved), None)
        trial = self._run(alternative, self._card)
        reserved, verdict = trial.reserved_bytes, self.verdict_of(trial.reserved_bytes)
        if verdict == "oom" and self.verdict_of(trial.estimate.peak.allocated_bytes) == "fits":
            # The cache can be released; a run on the actual card shows whether that is enough.
            verdict = self._run(alternative, self._gpu).estimate.verdict
        if trial.changes.get("checkpoint", {}).get("by") == "model" and len(alternative.words) == 1:
            alternative = replace(alternative, how=CHECKPOINTING_OF_MODEL)
        return self._advice(alternative, reserved, "measured", verdict, _step_ms(trial.estimate))

    def is_worthwhile(self, advice: Advice, least: int) -> bool:
        makes_it_fit = self._card is not self._gpu and advice.verdict == "fits"
        return advice.saved_bytes >= least or (makes_it_fit and advice.saved_bytes > 0)

    def verdict_of(self, reserved_bytes: int) -> Verdict:
        return self._capacity.verdict_of(reserved_bytes)

    def _run(self, alternative: Alternative, gpu: Gpu) -> Trial:
        trial = self._trials.run(gpu, words=alternative.words, variables=alternative.variables)
        if trial.estimate.oom is not None:
            if gpu is self._card:
                raise UnsupportedError("with this change the job runs out of memory")
            return trial  # perhaps before the change took effect
        missing = {word.partition("=")[0] for word in alternative.words} - trial.changes.keys()
        if missing or (alternative.variables and ACTIONS.index("segment_map") not in trial.trace.memory.action):
            raise UnsupportedError("it has nothing to change in this job")
        return trial

    def _advice(
        self,
        of: Alternative,
        reserved: int,
        basis: Literal["measured", "estimated"],
        verdict: Verdict,
        step_ms: float | None,
    ) -> Advice:
        return Advice(
            title=of.title,
            how=of.how,
            saved_bytes=self._reserved_bytes - reserved,
            peak_reserved_bytes=reserved,
            basis=basis,
            price=of.price,
            step_ms=step_ms,
            step_ms_before=self._step_ms,
            verdict=verdict,
        )


def _step_ms(estimate: Estimate) -> float | None:
    return None if estimate.performance is None else estimate.performance.time.step_ms


def _compatible(found: list[tuple[Alternative, Advice]]) -> list[Alternative]:
    """Of alternatives for the same thing, the one that saves most; the earlier one on a tie."""
    best: dict[str, tuple[Alternative, Advice]] = {}
    for alternative, advice in found:
        so_far = best.get(alternative.concerns)
        if advice.basis == "measured" and (so_far is None or advice.saved_bytes > so_far[1].saved_bytes):
            best[alternative.concerns] = (alternative, advice)
    return [alternative for alternative, _ in best.values()]


def _joined(parts: list[Alternative]) -> Alternative:
    return Alternative(
        concerns="activations",
        title="all combined: " + ", ".join(part.title for part in parts),
        how="make each change above",
        price="the cost of each",
        words=tuple(word for part in parts for word in part.words),
        variables=tuple(variable for part in parts for variable in part.variables),
    )


def _first_line(error: ForetellError) -> str:
    return str(error).splitlines()[0]
