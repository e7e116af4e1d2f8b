"""Runs the script of an out-of-memory message on a virtual GPU: what differs from the prediction, and what helps.

One difference at a time: the card as it would be if it were empty, with the neighbours of the message, with its memory
outside PyTorch, for all steps of the script. The first that runs out of memory is the cause. Nothing is claimed that
was not tried.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from foretell import api
from foretell.advice import Alternative, Trials, advise, expandable_segments
from foretell.errors import ForetellError
from foretell.jobs import Job
from foretell.plan.loaders import observe
from foretell.postmortem.balance import Balance
from foretell.postmortem.diagnosis import Cause
from foretell.postmortem.message import OomMessage
from foretell.records import Advice, Estimate, Leak, OutOfMemory
from foretell.runs import Warm
from foretell.units import MIB, format_bytes

_LEAST_SECONDS = 120.0
_TIMES_THE_FIRST = 10
"""All steps of a script may take so many times as long as the first run."""
_MORE_OUTSIDE_BYTES = 128 * MIB
"""Context and libraries are estimated: less than this above the estimate is nothing to explain."""
_BENCHMARK = "cudnn-benchmark"
_COMBINED = "all combined"
_SMALLEST_BATCH = 8
"""The smallest that is tried is the batch divided by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A run on the virtual GPU."""

    what: str
    verdict: Literal["fits", "oom", "failed"]
    reserved_bytes: int | None
    """PyTorch's peak; up to where it ran out of memory, if it did."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A part of the card's memory, in the message and as predicted."""

    name: str
    message_bytes: int
    predicted_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A change that was tried."""

    how: str
    before: Tried
    after: Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Reenactment:
    estimate: Estimate
    """Of the first run: the script on that card, with nothing else on it."""
    compared: tuple[Compared, ...]
    tried: tuple[Tried, ...]
    """In order; the first is that of `estimate`."""
    cause: Cause | None
    """None: no run ran out of memory, so what differed on the real machine is not known."""
    why: str
    setting: Setting | None
    """What helps; None if nothing that was tried does, or nothing could be tried."""
    not_tried: tuple[str, ...] = ()


def reenact(
    message: OomMessage,
    balance: Balance | None,
    job: Job,
    *,
    say: Callable[[str], None] = lambda text: None,
    warm: Warm | None = None,
) -> Reenactment:
    """All runs are forks of `warm`, if given. Otherwise the first is a process of its own, and the others are forks if
    a fork reaches the same peak."""
    with contextlib.ExitStack() as stack:
        return _Reenacting(message, balance, job, say, warm, stack).result()


class _Reenacting:
    def __init__(
        self,
        message: OomMessage,
        balance: Balance | None,
        job: Job,
        say: Callable[[str], None],
        warm: Warm | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self._message = message
        self._balance = balance
        self._job = job
        self._say = say
        self._tried: list[Tried] = []
        self._not_tried: list[str] = []
        say(f"running the script on {job.gpu.name}")
        self._first = api.run(job, warm=warm)
        self._estimate = self._first.estimate
        self._warm = warm or self._new_warm(stack)
        self._alone = self._note(f"the script on {_card(job)}", self._estimate)

    def _new_warm(self, stack: contextlib.ExitStack) -> Warm | None:
        """A warm process, if a fork of it reaches the same peak as the first run."""
        warm = stack.enter_context(Warm())
        job = replace(self._job, options=replace(self._job.options, stdout="file", history=False, attribution=False))
        try:
            estimate = api.run(job, warm=warm).estimate
        except ForetellError:
            return None
        first = self._estimate
        return warm if (estimate.verdict, estimate.peak) == (first.verdict, first.peak) else None

    def result(self) -> Reenactment:
        found = self._job_itself() if self._estimate.oom is not None else self._surroundings() or self._later_steps()
        cause, why, setting = found
        return Reenactment(
            estimate=self._estimate,
            compared=tuple(self._compared()),
            tried=tuple(self._tried),
            cause=cause,
            why=why,
            setting=setting,
            not_tried=tuple(self._not_tried),
        )

    # --- the job does not fit, whatever else there is -----------------------------------------------------------------

    def _job_itself(self) -> tuple[Cause, str, Setting | None]:
        oom = self._estimate.oom
        assert oom is not None
        where = f" at {_name(oom.where)}" if oom.where else ""
        why = (
            f"The script runs out of memory on an otherwise empty {self._job.gpu.name} too, in step {oom.step} "
            f"({oom.phase}){where}, where it requests {_size(oom)}."
        )
        if " allowed;" in oom.message or "per_process_memory_fraction" in oom.message:
            self._not_tried.append("the limit: the script itself sets it")
            return "limit", why + " The script limits itself (set_per_process_memory_fraction).", None
        return self._of_oom(self._job, self._alone, self._estimate, why)

    def _of_oom(self, job: Job, before: Tried, estimate: Estimate, why: str) -> tuple[Cause, str, Setting | None]:
        """The cause of an OOM on the virtual GPU, found by removing one cause at a time."""
        oom = estimate.oom
        assert oom is not None
        setting = self._expandable(job, before)
        if setting is not None:
            return "fragmentation", why + " With expandable segments it fits.", setting
        setting = self._without_benchmark(job, before)
        if setting is not None:
            return "autotuning", why + " Without cudnn.benchmark it fits: its workspaces are what is too much.", setting
        if estimate.leaks:
            self._not_tried.append(
                "keeping loss.item() or loss.detach() instead of the tensor: it is a change of the script"
            )
            return "leak", f"{why} It {_grows(estimate.leaks[0])}.", None
        cause: Cause = "too_large"
        earlier = _largest_request(estimate, before_step=oom.step)
        if oom.step and earlier is not None and oom.requested_bytes > earlier:
            cause = "longer_batch"
            why += f" No earlier step requests more than {format_bytes(earlier)} at once: this batch is larger."
            self._not_tried.append("shortening or leaving out the longest samples: it is a change of the script")
        return cause, why, self._smaller_batch(job, before) or self._advised(job, before, estimate)

    # --- the job fits on an empty card --------------------------------------------------------------------------------

    def _surroundings(self) -> tuple[Cause, str, Setting | None] | None:
        """Of what the message says was on the card besides PyTorch's memory."""
        balance, job, peak = self._balance, self._job, self._estimate.peak
        if balance is None:
            return None
        total = job.gpu.total_bytes
        predicted = peak.context_bytes + peak.library_bytes
        neighbours, outside = balance.neighbour_bytes, balance.outside_bytes
        if not balance.is_outside_known:
            neighbours, outside = neighbours + max(0, outside - predicted - _MORE_OUTSIDE_BYTES), 0
        most = total - predicted - MIB
        worlds: list[tuple[Cause, str, Job]] = []
        limit = self._message.limit_bytes
        if limit is not None and limit < most:
            limited = replace(job, used_by_others_bytes=most - limit)
            worlds.append(("limit", f"the limit of {format_bytes(limit)}", limited))
        if neighbours > balance.rounding_bytes:
            crowded = replace(job, used_by_others_bytes=min(most, job.used_by_others_bytes + neighbours))
            worlds.append(("neighbour", f"{format_bytes(neighbours)} of other processes", crowded))
        if outside > predicted + _MORE_OUTSIDE_BYTES:
            heavy = replace(job, context_bytes=min(most, outside - peak.library_bytes))
            worlds.append(("libraries", f"{format_bytes(outside)} of this process outside PyTorch", heavy))
            if neighbours > balance.rounding_bytes:
                left = max(0, total - outside - MIB)
                both = replace(heavy, used_by_others_bytes=min(left, job.used_by_others_bytes + neighbours))
                larger: Cause = "neighbour" if neighbours > outside else "libraries"
                worlds.append((larger, "both of these", both))
        for cause, what, world in worlds:
            before, estimate = self._try(f"with {what}", world)
            if estimate is not None and estimate.oom is not None:
                why = (
                    f"On an otherwise empty {job.gpu.name} the script fits, with "
                    f"{format_bytes(self._estimate.spare_bytes)} to "
                    f"spare; with {what}, as in the message, it runs out of memory in step {estimate.oom.step}."
                )
                setting = self._expandable(world, before) if cause != "limit" else None
                how = {"neighbour": "no other processes on the GPU", "limit": "no limit"}
                free = Setting(how=how.get(cause, "no other memory in this process"), before=before, after=self._alone)
                return cause, why, setting or free
        return None

    def _later_steps(self) -> tuple[Cause | None, str, Setting | None]:
        """Of steps, batches and sizes that the first run has not seen."""
        first = self._estimate
        spare = format_bytes(first.spare_bytes)
        fits = f"On an otherwise empty {self._job.gpu.name} the script fits, with {spare} to spare"
        if first.ended_early:
            seconds = max(_LEAST_SECONDS, _TIMES_THE_FIRST * first.seconds.get("total", 0.0))
            if self._job.options.timeout_seconds is not None:
                seconds = min(seconds, self._job.options.timeout_seconds)
            options = replace(self._job.options, steps="all", timeout_seconds=seconds)
            job = replace(self._job, options=options)
            before, estimate = self._try("all steps of the script", job)
            if estimate is not None and estimate.oom is not None:
                oom = estimate.oom
                where = f" at {_name(oom.where)}" if oom.where else ""
                why = f"The first {len(first.steps)} steps fit, but step {oom.step} requests {_size(oom)}{where}."
                return self._of_oom(job, before, estimate, why)
        requested, largest = self._message.requested_bytes, _largest_request(first)
        if first.leaks:
            leak = first.leaks[0]
            steps = max(0, first.spare_bytes) // max(1, leak.bytes_per_step)
            why = f"{fits} after {len(first.steps)} steps, but {_grows(leak)}: enough for about {steps:,} steps more."
            return "leak", why, None
        if requested is not None and largest is not None and requested > 1.05 * max(largest, 20 * MIB):
            why = (
                f"{fits}. The message requests {format_bytes(requested)} at once, but nothing in the run is larger "
                "than "
                f"{format_bytes(largest)}: the real run had a longer or larger batch, or reached code that this run "
                "did not."
            )
            self._not_tried.append("the larger batch: the data of this run does not have it")
            return "longer_batch", why, None
        return (
            None,
            f"{fits}, and so it does with everything that the message says was on the card. {self._excess()}",
            None,
        )

    def _excess(self) -> str:
        rows = [row for row in self._compared() if row.name != "largest request"]
        worst = max(rows, key=lambda row: row.message_bytes - row.predicted_bytes, default=None)
        if worst is None or worst.message_bytes <= worst.predicted_bytes:
            return "What was different on the real machine is not in the message."
        more = format_bytes(worst.message_bytes - worst.predicted_bytes)
        return (
            f"The largest difference: {worst.name}, {more} more than predicted. Did the real run have other arguments, "
            "other "
            "data, or more steps?"
        )

    # --- settings -----------------------------------------------------------------------------------------------------

    def _expandable(self, job: Job, before: Tried) -> Setting | None:
        settings = self._first.trace.allocator_settings or ""
        if re.search(r"expandable_segments\s*:\s*true", settings, re.IGNORECASE):
            return None
        change = expandable_segments(self._estimate.torch_version, settings)
        return self._changed(job, change, before)

    def _without_benchmark(self, job: Job, before: Tried) -> Setting | None:
        if not len(self._first.trace.convolutions.time_us):
            return None
        change = Alternative(
            concerns="activations",
            title="without cudnn.benchmark",
            how="torch.backends.cudnn.benchmark = False",
            price="slower convolutions",
            words=(f"{_BENCHMARK}=off",),
        )
        return self._changed(job, change, before)

    def _changed(self, job: Job, change: Alternative, before: Tried) -> Setting | None:
        """The setting, if it makes the job fit."""
        self._say(f"trying {change.title}")
        try:
            with Trials(job, warm=self._warm) as trials:
                trial = trials.run(job.gpu, words=change.words, variables=change.variables)
        except ForetellError as error:
            self._not_tried.append(f"{change.title}: {_first_line(error)}")
            return None
        if {word.partition("=")[0] for word in change.words} - trial.changes.keys():
            return None  # there was nothing to change
        after = self._note(change.title, trial.estimate)
        return Setting(how=change.how, before=before, after=after) if after.verdict == "fits" else None

    def _smaller_batch(self, job: Job, before: Tried) -> Setting | None:
        """Half the batch size of the DataLoader, or half of that, until it fits."""
        try:
            knob, _ = observe(job, warm=self._warm)
        except ForetellError:
            knob = None
        whole = None if knob is None else knob.batch_size
        if knob is None or whole is None:
            self._not_tried.append("a smaller batch: the training uses no DataLoader with one batch size to change")
            return None
        size = whole
        while size > 1 and size > whole // _SMALLEST_BATCH:
            size //= 2
            after, _ = self._try(f"batch size {size} instead of {whole}", knob.set(job, str(size)))
            if after.verdict == "fits":
                how = (
                    f"DataLoader(..., batch_size={size}), with gradients accumulated over {round(whole / size)} batches"
                )
                return Setting(how=how, before=before, after=after)
        return None

    def _advised(self, job: Job, before: Tried, estimate: Estimate) -> Setting | None:
        """The change that costs least of those that make it fit, by `foretell run --advise`."""
        try:
            findings = advise(job, estimate, say=self._say)
        except ForetellError as error:
            self._not_tried.append(_first_line(error))
            return None
        self._not_tried += findings.not_tried
        known = {each.what for each in self._tried}
        rows = [
            (each, _tried_advice(each))
            for each in findings.advice
            if each.basis == "measured" and each.title not in known
        ]
        self._tried += [row for _, row in rows]
        fitting = [(each, row) for each, row in rows if row.verdict == "fits"]
        if not fitting:
            return None
        best, after = min(
            fitting,
            key=lambda pair: (
                pair[0].title.startswith(_COMBINED),
                not pair[0].price.startswith(("none", "little")),
                -pair[0].saved_bytes,
            ),
        )
        return Setting(how=best.how, before=before, after=after)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _try(self, what: str, job: Job) -> tuple[Tried, Estimate | None]:
        self._say(f"trying {what}")
        options = replace(job.options, stdout="file")
        try:
            estimate = api.run(replace(job, options=options), warm=self._warm).estimate
        except ForetellError as error:
            self._not_tried.append(f"{what}: {_first_line(error)}")
            tried = Tried(what=what, verdict="failed", reserved_bytes=None, detail=_first_line(error))
            return tried, None
        return self._note(what, estimate), estimate

    def _note(self, what: str, estimate: Estimate) -> Tried:
        oom = estimate.oom
        if oom is not None:
            detail = f"step {oom.step}, {oom.phase}, requests {_size(oom)}"
        else:
            ended = ", stopped at its time limit" if estimate.ended_by is not None else ""
            detail = f"{format_bytes(estimate.spare_bytes)} to spare after {len(estimate.steps)} steps{ended}"
        tried = Tried(what=what, verdict=estimate.verdict, reserved_bytes=estimate.peak.reserved_bytes, detail=detail)
        self._tried.append(tried)
        return tried

    def _compared(self) -> list[Compared]:
        balance, peak = self._balance, self._estimate.peak
        rows: list[Compared] = []
        if balance is not None:
            predicted_gaps = peak.reserved_bytes - peak.allocated_bytes
            outside = peak.context_bytes + peak.library_bytes
            rows = [
                Compared(
                    name="allocated by PyTorch",
                    message_bytes=balance.allocated_bytes,
                    predicted_bytes=peak.allocated_bytes,
                ),
                Compared(name="not allocated", message_bytes=balance.unallocated_bytes, predicted_bytes=predicted_gaps),
            ]
            if balance.is_outside_known:
                rows.append(
                    Compared(name="outside PyTorch", message_bytes=balance.outside_bytes, predicted_bytes=outside)
                )
                others = self._job.used_by_others_bytes
                rows.append(
                    Compared(name="other processes", message_bytes=balance.neighbour_bytes, predicted_bytes=others)
                )
            else:
                others = outside + self._job.used_by_others_bytes
                both = balance.outside_bytes + balance.neighbour_bytes
                rows.append(
                    Compared(name="outside PyTorch, other processes", message_bytes=both, predicted_bytes=others)
                )
        largest = _largest_request(self._estimate)
        if self._message.requested_bytes is not None and largest is not None:
            requested = self._message.requested_bytes
            rows.append(Compared(name="largest request", message_bytes=requested, predicted_bytes=largest))
        return rows


def _tried_advice(advice: Advice) -> Tried:
    return Tried(
        what=_COMBINED if advice.title.startswith(_COMBINED) else advice.title,
        verdict=advice.verdict,
        reserved_bytes=advice.peak_reserved_bytes,
        detail=f"saves {format_bytes(advice.saved_bytes)}; cost: {advice.price}",
    )


def _largest_request(estimate: Estimate, *, before_step: int | None = None) -> int | None:
    """The largest block, or the request that failed; None if the history is not known."""
    if estimate.attribution is None:
        return None
    blocks = estimate.attribution.blocks
    sizes = [block.requested_bytes for block in blocks if before_step is None or block.step < before_step]
    if before_step is None and estimate.oom is not None:
        sizes.append(estimate.oom.requested_bytes)
    return max(sizes, default=None)


def _grows(leak: Leak) -> str:
    place = f", allocated at {_name(leak.where)}" if leak.where else ""
    held = f", kept alive by {re.sub(r'[^ ]*/', '', leak.held_by[0])}" if leak.held_by else ""
    return f"keeps {format_bytes(leak.bytes_per_step)} more after every step{place}{held}"


def _card(job: Job) -> str:
    others = job.used_by_others_bytes
    return f"{job.gpu.name}" + (f" with {format_bytes(others)} used by others" if others else ", otherwise empty")


def _size(oom: OutOfMemory) -> str:
    return format_bytes(oom.requested_bytes)


def _name(where: str) -> str:
    """Without the folder."""
    return where.rpartition("/")[2]


def _first_line(error: ForetellError) -> str:
    return str(error).splitlines()[0]
