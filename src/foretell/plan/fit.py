"""Which GPUs a job fits on, from as few runs of it as the cards allow.

What a job allocates depends on the kind of a card: on its compute capability (which kernels and plans of libraries
exist) and on its number of SMs (the size of their buffers). It depends on the card's memory only if the script asks for
it, or near the limit, where the allocator empties its cache and tries again. So the job runs

1. once for each compute capability, with so much memory that there is no limit; for the one with the widest range of
   SMs, with the fewest and with the most. If the two differ in any number, SMs matter to this job, and both ends run
   for every compute capability, then the middle of each range whose ends differ, until the ends of all ranges agree;
2. on every card whose memory lies between what is surely too little, the peak of live tensors, and what is surely
   enough, the peak of reserved memory;
3. on the smallest card that fits and on the largest that does not: both must do what the others have shown.

If the script asks for the memory or the name of the card, or if step 3 finds a difference, it runs on every card.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from foretell import api, gpus
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.jobs import Job
from foretell.plan.variants import Outcome, Variants
from foretell.records import Estimate, Gpu, GpuClass, Performance
from foretell.report import json as json_report
from foretell.report import performance as performance_report
from foretell.rules import widened
from foretell.rules.architectures import has_kernels_for
from foretell.rules.capacity import Capacity
from foretell.rules.interval import causes_of
from foretell.runs.pool import Workers
from foretell.time import performance_where_known, why_work_unknown
from foretell.units import parse_bytes

SCHEMA = "foretell.fit/1"
CardVerdict = Literal["fits", "tight", "oom", "cannot_run", "unknown"]
"""tight: it fits, but the memory to request for it does not; cannot_run: torch has no kernels for the card, or the
script fails on it; unknown: foretell cannot estimate the job there."""
_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFit:
    """What becomes of the job on one card."""

    gpu: Gpu
    verdict: CardVerdict
    device_bytes: int | None = None
    """What it needs there, or would need if the card were larger; None: unknown."""
    request_bytes: int | None = None
    """What to request from a scheduler, as in `PeakMemory`."""
    spare_bytes: int | None = None
    """What is left of the card's memory, less the request; negative if it is too little."""
    copies: int = 0
    """How many copies of the job fit side by side, each with its own CUDA context, by their requests; 1 if tight."""
    reason: str | None = None
    """Why it cannot run, or where it ran out of memory."""
    is_run: bool = False
    """The job ran on exactly this card. Otherwise the numbers are those of the cards of its kind."""
    performance: Performance | None = None
    """Time and utilization of a step, of the work that a run on this card or on one of its kind recorded; None: not
    asked for, not known, or it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    cards: tuple[CardFit, ...]
    """Least memory first."""
    estimate: Estimate
    """Of the run on the smallest card that fits; if there is none, on the largest."""
    num_runs: int
    notes: tuple[str, ...] = ()
    """What the reader should know about how the numbers were found."""

    @property
    def smallest(self) -> CardFit | None:
        """The card with the least memory that the job fits on; if it fits nowhere, the least on which it is tight."""
        return _smallest(self.cards)

    @property
    def fastest(self) -> CardFit | None:
        """The card on which a step takes least; None if no time is known."""
        timed = [card for card in self.cards if card.performance is not None]
        return min(timed, key=_step_ms, default=None)

    def to_json(self) -> str:
        return json.dumps(self.document(), indent=2)

    def document(self) -> dict[str, Any]:
        smallest, fastest = self.smallest, self.fastest
        return {
            "schema": SCHEMA,
            "smallest": smallest.gpu.name if smallest else None,
            "fastest": fastest.gpu.name if fastest else None,
            "cards": [_document(card) for card in self.cards],
            "num_runs": self.num_runs,
            "notes": list(self.notes),
            "estimate": json_report.document(self.estimate),
        }


def _step_ms(card: CardFit) -> float:
    assert card.performance is not None
    return card.performance.time.step_ms


def _smallest(cards: Sequence[CardFit]) -> CardFit | None:
    return next((card for verdict in ("fits", "tight") for card in cards if card.verdict == verdict), None)


def _document(card: CardFit) -> dict[str, Any]:
    gpu = card.gpu
    return {
        "gpu": gpu.name,
        "verdict": card.verdict,
        "total_bytes": gpu.total_bytes,
        "device_bytes": card.device_bytes,
        "request_bytes": card.request_bytes,
        "spare_bytes": card.spare_bytes,
        "copies": card.copies,
        "reason": card.reason,
        "gpu_class": gpu.gpu_class,
        "compute_capability": ".".join(map(str, gpu.compute_capability)),
        "num_sms": gpu.num_sms,
        "slices_per_card": gpus.slices_per_card(gpu),
        "is_run": card.is_run,
        **(performance_report.document(card.performance) if card.performance else {}),
    }


# --- which cards ------------------------------------------------------------------------------------------------------


def select(
    names: Iterable[str] | None = None,
    *,
    min_memory: str | int | None = None,
    max_memory: str | int | None = None,
    gpu_class: GpuClass | None = None,
    mig: bool = False,
) -> list[Gpu]:
    """The cards of the table, or those named; with `mig`, also their MIG slices. Memory is compared as it is sold."""
    chosen = list(gpus.all_gpus()) if names is None else [gpus.find(name) for name in names]
    if mig:
        parents = {gpu.name for gpu in chosen}
        chosen += [gpu for gpu in gpus.all_slices() if gpu.name.partition(":")[0] in parents]
    least, most = _memory(min_memory), _memory(max_memory)
    found = {
        gpu.name: gpu
        for gpu in chosen
        if (gpu_class is None or gpu.gpu_class == gpu_class)
        and (least is None or gpus.sold_bytes(gpu) >= least)
        and (most is None or gpus.sold_bytes(gpu) <= most)
    }
    if not found:
        wanted = {"--class": gpu_class, "--min-memory": min_memory, "--max-memory": max_memory}
        given = " ".join(f"{option} {value}" for option, value in wanted.items() if value is not None)
        among = f"none of the {len(chosen)} GPUs" if chosen else "no GPU"
        raise UsageError(f"{among} matches {given or 'an empty list'}. `foretell gpus` lists the known GPUs.")
    return list(found.values())


def _memory(size: str | int | None) -> int | None:
    """GPUs are sold in GB, which are GiB."""
    if size is None or isinstance(size, int):
        return size
    text = size.strip()
    return parse_bytes(text[:-1] + "iB" if text[-2:].lower() in ("gb", "mb", "tb") else text)


# --- the Python function ----------------------------------------------------------------------------------------------


def fit(
    job: Sequence[str] | Callable[..., object],
    *,
    gpus: Iterable[str] | None = None,
    min_memory: str | int | None = None,
    max_memory: str | int | None = None,
    gpu_class: GpuClass | None = None,
    mig: bool = False,
    exact: bool = False,
    workers: Workers | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cwd: str | Path | None = None,
    **options: Any,
) -> Fit:
    """Find the GPUs a job fits on: a command or a function, as for `foretell.estimate`, which describes `options`, too.

    `gpus` names the cards (default: all in the table); `mig` adds their MIG slices. With `exact` the job runs on every
    card. A script that fails on every card raises `ScriptError`.
    """
    cards = select(gpus, min_memory=min_memory, max_memory=max_memory, gpu_class=gpu_class, mig=mig)
    largest = max(cards, key=lambda gpu: gpu.total_bytes)
    made = api.make_job(job, gpu=largest, args=args, kwargs=kwargs, cwd=cwd, **options)
    return fit_job(made, cards, is_exact=exact, workers=workers)


def fit_job(
    job: Job,
    cards: Sequence[Gpu],
    *,
    is_exact: bool = False,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Fit:
    """`job.gpu` does not matter. With `is_exact` the job runs on every card."""
    assert cards
    ordered = sorted(cards, key=lambda gpu: gpu.total_bytes)
    with Variants(job, workers=workers, say=say, on_outcome=_progress(say)) as variants:
        return _Search(job, ordered, variants, say).find(is_exact=is_exact)


def _progress(say: Callable[[str], None]) -> Callable[[Job, Outcome], None]:
    """A line every ten seconds."""
    num_runs, last_said = 0, time.monotonic()

    def on_outcome(job: Job, outcome: Outcome) -> None:
        nonlocal num_runs, last_said
        num_runs += 1
        if time.monotonic() - last_said >= _PAUSE_SECONDS:
            last_said = time.monotonic()
            say(f"{num_runs} {'run' if num_runs == 1 else 'runs'} done, the last one on {job.gpu.name}")

    return on_outcome


# --- the search -------------------------------------------------------------------------------------------------------

_Kind = tuple[int, int]


class _Search:
    def __init__(self, job: Job, cards: Sequence[Gpu], variants: Variants, say: Callable[[str], None]) -> None:
        self._job = job
        self._cards = cards
        self._variants = variants
        self._say = say
        self._of_kind: dict[tuple[_Kind, int], tuple[Gpu, Outcome]] = {}
        """By compute capability and number of SMs: the run without a limit."""
        self._of_card: dict[str, Outcome] = {}
        """By name: the run on the card itself."""
        self._notes: list[str] = []
        self._arch_list: tuple[str, ...] = ()

    def find(self, *, is_exact: bool) -> Fit:
        self._run_kinds([self._first_card()])
        runnable = [gpu for gpu in self._cards if not self._lacks_kernels(gpu)]
        self._run_ends_of_kinds(runnable)
        if is_exact:
            self._run_cards(runnable, "each, because of --exact")
        else:
            self._explore(runnable)
        self._refuse_what_works_nowhere()
        guessed = [gpu.name for gpu in self._cards if gpus.is_guess(gpu)]
        if guessed:
            self._notes.append(f"memory and SMs of {', '.join(guessed)} are guesses")
        found = [self._judge(gpu) for gpu in self._cards]
        if self._job.options.time and any(card.verdict in ("fits", "tight") for card in found):
            self._note_times(found)
        fit = Fit(
            cards=tuple(found), estimate=self._any_estimate(), num_runs=len(self._of_kind) + len(self._of_card),
            notes=tuple(self._notes),
        )  # fmt: skip
        return replace(fit, estimate=self._estimate_of(fit.smallest))

    def _note_times(self, found: Sequence[CardFit]) -> None:
        """Say why there are no times, or what they assume."""
        timed = [card.performance for card in found if card.performance is not None]
        if not timed:
            works = [outcome.work for outcome in self._outcomes() if outcome.kind == "fits"]
            self._notes.append(f"no step times: {next(filter(None, map(why_work_unknown, works)), 'not known')}")
        self._notes += dict.fromkeys(caveat for each in timed for caveat in each.caveats if "power of" not in caveat)

    def _explore(self, cards: Sequence[Gpu]) -> None:
        """Run it on as few of the cards as tell about all."""
        queries = sorted({query for _, outcome in self._of_kind.values() for query in outcome.card_queries})
        if queries:
            self._run_cards(cards, f"the script asks for {queries[0]}, so it runs on every card")
            self._notes.append(f"the script asks for {'; '.join(queries[:3])}: it was run on every card")
            return
        near = [gpu for gpu in cards if self._is_near_the_limit(gpu)]
        self._run_cards(near, "near the limit")
        judged = [self._judge(gpu) for gpu in cards]
        smallest = [card for card in (_smallest(judged),) if card is not None]
        largest = [card for card in judged if card.verdict == "oom" and self._has_room_for_context(card.gpu)][-1:]
        ends = [card for card in (*smallest, *largest) if not card.is_run]
        self._run_cards([card.gpu for card in ends], "to make sure")
        if any(not self._is_as_expected(card) for card in ends):
            self._notes.append("the script behaves differently on cards with less memory: it was run on every card")
            self._run_cards(cards, "the script behaves differently on cards with less memory, so it runs on every card")

    def _first_card(self) -> Gpu:
        """One that stands for many: of the compute capability that most of the cards have."""
        kinds = [gpu.compute_capability for gpu in self._cards]
        most = max(kinds, key=kinds.count)
        return max((gpu for gpu in self._cards if gpu.compute_capability == most), key=lambda gpu: gpu.num_sms)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _run_ends_of_kinds(self, cards: Sequence[Gpu]) -> None:
        """Run each kind with the most SMs and, where SMs matter, with the fewest and in the middle of each range whose
        ends differ."""
        by_kind: dict[_Kind, dict[int, Gpu]] = {}
        for gpu in sorted(cards, key=lambda gpu: gpu.num_sms):
            by_kind.setdefault(gpu.compute_capability, {}).setdefault(gpu.num_sms, gpu)
        if not by_kind:
            return
        widest = max(by_kind, key=lambda kind: max(by_kind[kind]) / min(by_kind[kind]))
        fewest = {kind: of_sms[min(of_sms)] for kind, of_sms in by_kind.items()}
        self._run_kinds([*(of_sms[max(of_sms)] for of_sms in by_kind.values()), fewest[widest]])
        if self._agree(widest, min(by_kind[widest]), max(by_kind[widest])):
            return
        missing = list(fewest.values())
        while missing:
            self._run_kinds(missing)
            missing = [gpu for kind, of_sms in by_kind.items() for gpu in self._in_the_middle(kind, of_sms)]

    def _in_the_middle(self, kind: _Kind, of_sms: dict[int, Gpu]) -> list[Gpu]:
        """The middle of each range of SMs whose ends have run and differ."""
        known = [num_sms for num_sms in of_sms if (kind, num_sms) in self._of_kind]
        found = []
        for low, high in pairwise(known):
            between = [num_sms for num_sms in of_sms if low < num_sms < high]
            if between and not self._agree(kind, low, high):
                found.append(of_sms[between[len(between) // 2]])
        return found

    def _agree(self, kind: _Kind, low: int, high: int) -> bool:
        (first_gpu, first), (second_gpu, second) = self._of_kind[kind, low], self._of_kind[kind, high]
        return _apart_from_context(first, first_gpu) == _apart_from_context(second, second_gpu)

    def _run_kinds(self, cards: Sequence[Gpu]) -> None:
        """On cards like these, with much more memory."""
        places = {(gpu.compute_capability, gpu.num_sms): gpu for gpu in cards}
        new = {place: gpu for place, gpu in places.items() if place not in self._of_kind}
        if len(new) > 1:
            self._say(f"running it on {len(new)} kinds of cards")
        outcomes = self._variants.run([replace(self._job, gpu=api.with_much_memory(gpu)) for gpu in new.values()])
        for (place, gpu), outcome in zip(new.items(), outcomes, strict=True):
            self._of_kind[place] = gpu, outcome
            self._arch_list = self._arch_list or outcome.arch_list

    def _run_cards(self, cards: Sequence[Gpu], why: str) -> None:
        """On exactly these cards."""
        new = [gpu for gpu in cards if gpu.name not in self._of_card and self._has_room_for_context(gpu)]
        if not new:
            return
        named = new[0].name if len(new) == 1 else f"{len(new)} cards"
        self._say(f"running it on {named}: {why}")
        outcomes = self._variants.run([replace(self._job, gpu=gpu) for gpu in new])
        self._of_card |= {gpu.name: outcome for gpu, outcome in zip(new, outcomes, strict=True)}

    # --- conclusions --------------------------------------------------------------------------------------------------

    def _lacks_kernels(self, gpu: Gpu) -> bool:
        return bool(self._arch_list) and not has_kernels_for(gpu.compute_capability, self._arch_list)

    def _has_room_for_context(self, gpu: Gpu) -> bool:
        return self._available(gpu) > self._context(gpu)

    def _available(self, gpu: Gpu) -> int:
        return gpu.available_bytes(self._job.used_by_others_bytes)

    def _context(self, gpu: Gpu) -> int:
        return gpu.context_bytes if self._job.context_bytes is None else self._job.context_bytes

    def _expected(self, gpu: Gpu) -> Outcome | None:
        """The outcome without a limit, from the nearest number of SMs, with the context of this card."""
        of_kind = [(abs(sms - gpu.num_sms), sms) for kind, sms in self._of_kind if kind == gpu.compute_capability]
        if not of_kind:
            return None
        like, outcome = self._of_kind[gpu.compute_capability, min(of_kind)[1]]
        estimate = outcome.estimate
        if estimate is None or self._job.context_bytes is not None:
            return outcome
        return replace(outcome, estimate=with_context(estimate, gpu.context_bytes - like.context_bytes))

    def _is_near_the_limit(self, gpu: Gpu) -> bool:
        """Neither surely too small nor surely large enough."""
        outcome = self._expected(gpu)
        if outcome is None or outcome.estimate is None or outcome.kind != "fits":
            return False
        surely_needed = outcome.estimate.peak.allocated_bytes + self._context(gpu)
        return surely_needed <= self._available(gpu) < outcome.estimate.device_bytes

    def _is_as_expected(self, card: CardFit) -> bool:
        """Whether the run on the card itself does what the runs without a limit have shown."""
        own, expected = self._of_card.get(card.gpu.name), self._expected(card.gpu)
        assert own is not None
        assert expected is not None
        if card.verdict == "oom":
            return own.kind == "oom"
        return _apart_from_context(own, card.gpu) == _apart_from_context(expected, card.gpu)

    def _judge(self, gpu: Gpu) -> CardFit:
        if self._lacks_kernels(gpu):
            major, minor = gpu.compute_capability
            return CardFit(gpu=gpu, verdict="cannot_run", reason=f"torch has no kernels for sm_{major}{minor}")
        own, expected = self._of_card.get(gpu.name), self._expected(gpu)
        outcome = own or expected
        if outcome is None:  # too small even for an empty process
            return CardFit(gpu=gpu, verdict="oom", reason="its memory is less than an empty process needs")
        if outcome.problem is not None:
            verdict: CardVerdict = "cannot_run" if outcome.is_failure else "unknown"
            return CardFit(gpu=gpu, verdict=verdict, reason=outcome.problem, is_run=own is not None)
        is_oom, reason = outcome.kind == "oom", None
        if is_oom and outcome.estimate is not None and outcome.estimate.oom is not None:
            oom = outcome.estimate.oom
            reason = f"out of memory in step {oom.step}" + (f" at {oom.where}" if oom.where else "")
            outcome = expected if expected is not None and not expected.card_queries else None
        estimate = outcome.estimate if outcome is not None and outcome.kind == "fits" else None
        if estimate is None:
            return CardFit(gpu=gpu, verdict="oom", reason=reason, is_run=own is not None)
        return self._graded(gpu, estimate, is_oom=is_oom, reason=reason)

    def _graded(self, gpu: Gpu, estimate: Estimate, *, is_oom: bool, reason: str | None) -> CardFit:
        device_bytes = estimate.device_bytes
        request_bytes = estimate.request_bytes
        capacity = Capacity(
            total_bytes=gpu.total_bytes,
            context_bytes=estimate.peak.context_bytes,
            library_bytes=estimate.peak.library_bytes,
            used_by_others_bytes=self._job.used_by_others_bytes,
        )
        grade = "oom" if is_oom else capacity.grade_of(device_bytes=device_bytes, request_bytes=request_bytes)
        copies = {"fits": capacity.available_bytes // request_bytes, "tight": 1, "oom": 0}[grade]
        return CardFit(
            gpu=gpu,
            verdict=grade,
            device_bytes=device_bytes,
            request_bytes=request_bytes,
            spare_bytes=capacity.spare_bytes(request_bytes),
            copies=copies,
            reason=reason,
            is_run=gpu.name in self._of_card,
            performance=None if is_oom else self._performance(gpu),
        )

    def _performance(self, gpu: Gpu) -> Performance | None:
        """Of the work that the same kind of card is given, on this card."""
        outcome = self._of_card.get(gpu.name) or self._expected(gpu)
        work = outcome.work if outcome is not None else None
        return performance_where_known(work, gpu, host_factor=self._job.options.host_factor)

    def _outcomes(self) -> list[Outcome]:
        return [*self._of_card.values(), *(outcome for _, outcome in self._of_kind.values())]

    def _refuse_what_works_nowhere(self) -> None:
        """Raise if there is no estimate at all."""
        problems = [outcome for outcome in self._outcomes() if outcome.problem is not None]
        if len(problems) == len(self._outcomes()):
            worst = next((outcome for outcome in problems if outcome.is_failure), problems[0])
            assert worst.problem is not None
            raise (ScriptError if worst.is_failure else UnsupportedError)(worst.problem)

    def _any_estimate(self) -> Estimate:
        return next(outcome.estimate for outcome in self._outcomes() if outcome.estimate is not None)

    def _estimate_of(self, smallest: CardFit | None) -> Estimate:
        """Of the run on that card; None: on the largest card, with what the job needs."""
        if smallest is not None:
            of_smallest = self._of_card[smallest.gpu.name].estimate
            assert of_smallest is not None
            return of_smallest
        ran = [gpu for gpu in self._cards if gpu.name in self._of_card]
        of_largest = self._of_card[ran[-1].name].estimate if ran else None
        if of_largest is None:
            return self._any_estimate()
        expected = self._expected(ran[-1])
        without_limit = expected.estimate if expected is not None and expected.kind == "fits" else None
        if without_limit is None:
            return of_largest
        return replace(of_largest, need=replace(api.need_of(without_limit), smallest_gpus=()))  # the table has them


def _apart_from_context(outcome: Outcome, gpu: Gpu) -> object:
    """What must be equal for two cards to be of one kind."""
    estimate = outcome.estimate
    if estimate is None:
        return outcome.kind
    peak, context = estimate.peak, estimate.peak.context_bytes
    others = estimate.together.num_processes if estimate.together else 0
    return (
        outcome.kind,
        len(estimate.steps),
        peak.allocated_bytes,
        peak.reserved_bytes,
        peak.library_bytes,
        estimate.evidence and replace(estimate.evidence, context_bytes=0),
        others,
        estimate.device_bytes - max(1, others) * context,
    )


def with_context(estimate: Estimate, more_bytes: int) -> Estimate:
    """The same job on a card whose context is larger by so much."""
    peak, at_once, evidence = estimate.peak, estimate.together, estimate.evidence
    changed = replace(
        peak,
        context_bytes=peak.context_bytes + more_bytes,
        device_low_bytes=min(peak.device_low_bytes, peak.device_low_bytes + more_bytes),
        device_high_bytes=peak.device_high_bytes + more_bytes,
        request_bytes=peak.request_bytes + more_bytes,
    )
    if evidence is not None:  # a larger guess is a less certain one
        evidence = replace(evidence, context_bytes=evidence.context_bytes + more_bytes)
        estimate = replace(estimate, causes=causes_of(evidence), evidence=evidence)
        changed = widened(changed, estimate.causes)
    if at_once is not None:
        device_bytes = at_once.device_bytes + at_once.num_processes * more_bytes
        at_once = replace(at_once, device_bytes=device_bytes)
    return replace(estimate, peak=changed, together=at_once)
