"""Turns a job and its estimate into advice: what each change saves, and whether it makes the job fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from foretell.advice.alternatives import CHECKPOINTING_OF_MODEL, Alternative, alternatives
from foretell.advice.held import release_earlier
from foretell.advice.trials import Job, Trial, Trials
from foretell.errors import ForetellError, UnsupportedError
from foretell.records import Advice, Estimate, Gpu, Verdict
from foretell.trace import ACTIONS
from foretell.units import MIB, format_bytes

_ROOMY = (4, 16)
"""How many times the memory a card has on which a job is measured that does not fit."""
_FEWEST_BYTES = 2 * MIB
_SMALLEST_SHARE = 0.01
"""Less than these is not worth a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    reserved_bytes: int
    """The peak without a change, which savings are counted from; of a job that does not fit, on a larger card."""
    advice: tuple[Advice, ...]
    """The largest saving first; the last may be all of them together."""
    not_tried: tuple[str, ...]
    """What could not be run, and why."""


def advise(
    job: Job,
    estimate: Estimate,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Findings:
    with Trials(job) as trials:
        say("alternatives: looking at what could be changed")
        base, card = _base(trials, job, estimate)
        assert base.survey is not None, "a survey run that ended well left no survey"
        reserved = estimate.peak.reserved_bytes if estimate.oom is None else base.reserved_bytes
        least = max(_FEWEST_BYTES, int(_SMALLEST_SHARE * reserved))
        not_tried: list[str] = []
        if base.reserved_bytes != reserved:
            difference = abs(base.reserved_bytes - reserved)
            least = max(least, difference + 1)
            not_tried.append(
                f"what saves {format_bytes(difference)} or less: by so much two runs of this script differ"
            )
        desk = _Desk(trials, job.gpu, card, reserved, base.estimate)

        found: list[tuple[Alternative, Advice]] = []
        for alternative in alternatives(base.survey, job.gpu, estimate.torch_version, least_bytes=least):
            say(f"alternatives: {alternative.title}")
            try:
                found.append((alternative, desk.advice(alternative)))
            except ForetellError as error:
                not_tried.append(f"{alternative.title}: {_first_line(error)}")
        worthwhile = [(a, advice) for a, advice in found if desk.is_worthwhile(advice, least)]
        together = None
        if len(parts := _compatible(worthwhile)) > 1:
            say("alternatives: all of them together")
            try:
                together = desk.advice(_joined(parts))
            except ForetellError as error:
                not_tried.append(f"all together: {_first_line(error)}")
    advice = [each for _, each in worthwhile]
    if base.estimate.attribution is not None:
        earlier = release_earlier(base.trace, base.estimate.attribution)
        if earlier is not None:
            earlier = replace(earlier, verdict=desk.verdict_of(earlier.peak_reserved_bytes))
            advice += [earlier] if desk.is_worthwhile(earlier, least) else []
    advice.sort(key=lambda each: each.saved_bytes, reverse=True)
    if together is not None and together.saved_bytes > advice[0].saved_bytes:
        advice.append(together)
    return Findings(reserved_bytes=reserved, advice=tuple(advice), not_tried=tuple(not_tried))


def _base(trials: Trials, job: Job, estimate: Estimate) -> tuple[Trial, Gpu]:
    if estimate.oom is None:
        return trials.survey(job.gpu, expected_bytes=estimate.peak.reserved_bytes), job.gpu
    for times in _ROOMY:
        card = replace(job.gpu, total_bytes=times * job.gpu.total_bytes)
        base = trials.survey(card, expected_bytes=None)
        if base.estimate.oom is None:
            return base, card
    raise UnsupportedError(f"even {_ROOMY[-1]} times the memory of {job.gpu.name} is not enough to look for savings.")


class _Desk:
    """Where a change becomes an advice."""

    def __init__(self, trials: Trials, gpu: Gpu, card: Gpu, reserved_bytes: int, base: Estimate) -> None:
        self._trials = trials
        self._gpu = gpu
        self._card = card
        """As the job's, or with more memory: savings are found where nothing runs out."""
        self._reserved_bytes = reserved_bytes
        self._beside_bytes = base.peak.library_bytes + base.peak.context_bytes + base.used_by_others_bytes

    def advice(self, alternative: Alternative) -> Advice:
        """Raises where the change cannot be run, or was not made."""
        if alternative.saved_bytes is not None:
            reserved = self._reserved_bytes - alternative.saved_bytes
            return self._advice(alternative, reserved, "estimated", self.verdict_of(reserved))
        trial = self._run(alternative, self._card)
        reserved, verdict = trial.reserved_bytes, self.verdict_of(trial.reserved_bytes)
        if verdict == "oom" and self.verdict_of(trial.estimate.peak.allocated_bytes) == "fits":
            # What is cached beyond it can be given back: whether that is enough, its own card says.
            verdict = self._run(alternative, self._gpu).estimate.verdict
        if trial.changes.get("checkpoint", {}).get("by") == "model" and len(alternative.words) == 1:
            alternative = replace(alternative, how=CHECKPOINTING_OF_MODEL)
        return self._advice(alternative, reserved, "measured", verdict)

    def is_worthwhile(self, advice: Advice, least: int) -> bool:
        makes_it_fit = self._card is not self._gpu and advice.verdict == "fits"
        return advice.saved_bytes >= least or (makes_it_fit and advice.saved_bytes > 0)

    def verdict_of(self, reserved_bytes: int) -> Verdict:
        return "fits" if reserved_bytes + self._beside_bytes <= self._gpu.total_bytes else "oom"

    def _run(self, alternative: Alternative, gpu: Gpu) -> Trial:
        trial = self._trials.run(gpu, words=alternative.words, variables=alternative.variables)
        if trial.estimate.oom is not None:
            if gpu is self._card:
                raise UnsupportedError("with it the job runs out of memory where it did not before")
            return trial  # perhaps before the place of the change
        missing = {word.partition("=")[0] for word in alternative.words} - trial.changes.keys()
        if missing or (alternative.variables and ACTIONS.index("segment_map") not in trial.trace.memory.action):
            raise UnsupportedError("nothing was found that it would change")
        return trial

    def _advice(
        self, of: Alternative, reserved: int, basis: Literal["measured", "estimated"], verdict: Verdict
    ) -> Advice:
        return Advice(
            title=of.title,
            how=of.how,
            saved_bytes=self._reserved_bytes - reserved,
            peak_reserved_bytes=reserved,
            basis=basis,
            price=of.price,
            verdict=verdict,
        )


def _compatible(found: list[tuple[Alternative, Advice]]) -> list[Alternative]:
    """Of those that concern the same thing, the one that saves most; the earlier one where they save the same."""
    best: dict[str, tuple[Alternative, Advice]] = {}
    for alternative, advice in found:
        so_far = best.get(alternative.concerns)
        if advice.basis == "measured" and (so_far is None or advice.saved_bytes > so_far[1].saved_bytes):
            best[alternative.concerns] = (alternative, advice)
    return [alternative for alternative, _ in best.values()]


def _joined(parts: list[Alternative]) -> Alternative:
    return Alternative(
        concerns="activations",
        title="all together: " + ", ".join(part.title for part in parts),
        how="each as above",
        price="the price of each",
        words=tuple(word for part in parts for word in part.words),
        variables=tuple(variable for part in parts for variable in part.variables),
    )


def _first_line(error: ForetellError) -> str:
    return str(error).splitlines()[0]
