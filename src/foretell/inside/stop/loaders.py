"""Ends a loop over a `torch.utils.data.DataLoader` in the ordinary way.

Every DataLoader iterator, also under accelerate, Trainer and Lightning, passes `_BaseDataLoaderIter.__next__`.
Raising StopIteration there lets the code after the loop run: evaluation, saving, the next epoch.

- A training loop ends when `end_training_loops` was called for it.
- An evaluation loop (forwards on the GPU with gradients disabled, neither backward nor optimizer step) may end in auto
  mode after at least 3 batches, once neither the peak nor the bytes held have grown for two (a few scalars aside). It
  does if its length is unknown, or if the rest would take more than PATIENCE_SECONDS. A shorter loop runs to its end,
  because scripts compare what they have evaluated with `len(dataset)`. So do a loop that collects its outputs on the
  GPU, which grows, and one that never uses the GPU.

The end is only raised into code that expects one: a `for`, or a function that mentions StopIteration.

A script that fails afterwards may have counted what it got, and is run again with the option `whole_loops`
(`foretell.api`): its evaluation loops, or all of them, run to their natural ends then.
"""

from __future__ import annotations

import opcode
import sys
import time
import weakref
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any

from ..capture import Capture, in_main_thread
from ..watch.batches import length_of
from ..watch.peaks import NEGLIGIBLE_BYTES, Peaks, Summary, are_steady
from ..watch.phases import Phases

_FOR_ITER = opcode.opmap["FOR_ITER"]
ENOUGH_EVALUATIONS = 3
PATIENCE_SECONDS = 5.0


@dataclass
class LoaderUse:
    """One pass over a DataLoader."""

    first_step: int
    first_backward: int
    first_evaluation: int
    length: int | None
    last_step: int = -1
    num_batches: int = 0
    must_end: bool = False
    last_request: float = field(default_factory=time.monotonic)
    fastest_seconds: float = float("inf")
    """The shortest time between two requests for a batch."""
    settled_since: float | None = None
    samples: list[tuple[int, Summary, int]] = field(default_factory=list)
    """At the last three requests for a batch: evaluation forwards so far, peaks, bytes held."""

    @property
    def remaining_seconds(self) -> float | None:
        """At its best pace; None: its length is unknown."""
        if self.length is None or self.fastest_seconds == float("inf"):
            return None
        return (self.length - self.num_batches) * self.fastest_seconds

    def note_request(self) -> None:
        now = time.monotonic()
        if self.num_batches:
            self.fastest_seconds = min(self.fastest_seconds, now - self.last_request)
        self.last_request = now


@dataclass
class EndedTraining:
    """What there was when a training loop ended."""

    num_started: int
    """Passes over a DataLoader."""
    num_steps: int


class Loaders:
    def __init__(self, capture: Capture, peaks: Peaks, phases: Phases) -> None:
        self._capture = capture
        self._peaks = peaks
        self._phases = phases
        self._uses: weakref.WeakKeyDictionary[Any, LoaderUse] = weakref.WeakKeyDictionary()
        self.num_started = 0
        """Passes over a DataLoader started so far."""
        self.num_batches = 0
        """Batches requested so far."""
        self.ended_training: EndedTraining | None = None
        """The last loop that `end_training_loops` was about."""

    def install(self, torch: Any) -> None:
        iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
        self._capture.patches.wrap(iterator_class, "__next__", self._ending)

    def _ending(self, original: Any) -> Any:
        @wraps(original)
        def next_batch(iterator: Any) -> Any:
            if in_main_thread() and self._ends(iterator, sys._getframe(1)):
                _shut_down(iterator)
                raise StopIteration
            try:
                return original(iterator)
            except StopIteration:
                self._note_end(iterator)
                raise

        return next_batch

    def end_training_loops(self) -> bool:
        """Make the loops that fed the last step end at their next batch, or let them be the last ones; False if there
        is none."""
        in_use = [use for use in self._uses.values() if use.last_step == self._capture.num_steps - 1]
        for use in in_use:
            use.must_end = True
        return bool(in_use)

    def _ends(self, iterator: Any, caller: FrameType) -> bool:
        use = self._use_of(iterator)
        use.note_request()
        self.num_batches += 1
        self._phases.look_for_forward()
        whole = self._capture.options.whole_loops
        is_training = use.must_end
        is_at_its_end = use.num_batches == use.length
        if is_training and is_at_its_end:
            self._note_end(iterator)
            return False
        is_enough = whole != "all" if is_training else whole == "none" and self._has_evaluated_enough(use)
        if is_enough and not is_at_its_end and _expects_an_end(caller):
            self._note_end(iterator)
            self._report(use, is_training)
            return True
        use.last_step = self._capture.num_steps
        use.num_batches += 1
        return False

    def _note_end(self, iterator: Any) -> None:
        use = self._uses.pop(iterator, None)
        if use is not None and use.must_end:
            self.ended_training = EndedTraining(num_started=self.num_started, num_steps=self._capture.num_steps)

    def _use_of(self, iterator: Any) -> LoaderUse:
        use = self._uses.get(iterator)
        # With persistent workers one iterator serves every epoch; its count restarts.
        if use is None or iterator._num_yielded == 0:
            self.num_started += 1
            use = LoaderUse(
                first_step=self._capture.num_steps,
                first_backward=self._phases.num_backwards,
                first_evaluation=self._phases.num_evaluation_forwards,
                length=length_of(iterator),
            )
            self._uses[iterator] = use
        return use

    def _has_evaluated_enough(self, use: LoaderUse) -> bool:
        """Whether this is an evaluation, on all ranks, that is settled and would still take long."""
        is_training = self._capture.num_steps > use.first_step or self._phases.num_backwards > use.first_backward
        num_forwards = self._phases.num_evaluation_forwards
        if self._capture.options.steps != "auto" or is_training or num_forwards == use.first_evaluation:
            use.samples.clear()
            return False
        use.samples.append((num_forwards, self._peaks.summary(), self._peaks.allocated_now()))
        del use.samples[:-3]
        is_long = num_forwards - use.first_evaluation >= ENOUGH_EVALUATIONS
        return self._capture.agree("evaluation", is_long and self._is_settled(use) and _takes_long(use))

    def _is_settled(self, use: LoaderUse) -> bool:
        if len(use.samples) < 3:
            return False
        (forwards_0, peak_0, held_0), (forwards_1, peak_1, held_1), (forwards_2, peak_2, held_2) = use.samples
        is_holding_more = held_1 > held_0 + NEGLIGIBLE_BYTES or held_2 > held_1 + NEGLIGIBLE_BYTES
        return forwards_0 < forwards_1 < forwards_2 and are_steady([peak_0, peak_1, peak_2]) and not is_holding_more

    def _report(self, use: LoaderUse, is_training: bool) -> None:
        kind = "training" if is_training else "evaluation"
        of = f" of {use.length}" if use.length is not None else ""
        what = f"{kind} loop over a DataLoader, after {use.num_batches}{of} batches"
        self._capture.ends_early(what, how="loader", loop=kind, remaining_seconds=use.remaining_seconds)


def _takes_long(evaluation: LoaderUse) -> bool:
    """Whether a settled evaluation would go on for long, at its best pace, or already has."""
    now = time.monotonic()
    if evaluation.settled_since is None:
        evaluation.settled_since = now
    remaining_seconds = evaluation.remaining_seconds
    return remaining_seconds is None or max(remaining_seconds, now - evaluation.settled_since) > PATIENCE_SECONDS


def _expects_an_end(caller: FrameType) -> bool:
    """Whether StopIteration ends the loop there, rather than being an uncaught error."""
    code = caller.f_code
    return code.co_code[caller.f_lasti] == _FOR_ITER or "StopIteration" in code.co_names


def _shut_down(iterator: Any) -> None:
    """Do what the iterator does at its natural end; persistent workers keep waiting for the next epoch."""
    if hasattr(iterator, "_shutdown_workers") and not iterator._persistent_workers:
        iterator._shutdown_workers()
