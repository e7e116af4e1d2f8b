"""Ends the run early, and cleanly, once enough steps have been seen.

`worst`: once the largest batches have been trained on (worst_batches.py).
`auto`: at least 3 steps, and no peak has grown for the last two. Backward passes counted as steps must be more, because
an optimizer may still come (a script may first try which batch fits). Steps on another stream than the default one
usually warm up for a CUDA graph, which has memory of its own: they end nothing, nor does the step that is captured, and
of the graph's launches as many are needed as of steps. First the active trainer is asked to stop, then
the DataLoader loop that feeds the training is ended, so that the code after the training runs too. If there is neither
(a loop over a range), if the script trains on in the next epoch, or if the request had no effect, the script is left
at the end of the step (leaving.py).

Sampling after the training (a thousand denoising steps in a plain loop) ends the same way: once the training has been
asked to end, a hundred passes without gradients, for PATIENCE_SECONDS, that neither raise the peak nor hold more than
those before them. What follows the loop is lost then, so a shorter one runs to its end. Sampling before the training
has to run to its end; its memory history is small (watch/repetitions.py).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from ..capture import Capture, in_main_thread
from ..watch.peaks import NEGLIGIBLE_BYTES, Peaks, Summary, are_steady
from .leaving import Leaving
from .loaders import Loaders
from .trainers import Trainers
from .worst_batches import WorstBatches

FEWEST_STEPS = 3
FEWEST_BACKWARDS = 10
MOST_WARM_UP_STEPS = 12
"""Before a capture; DistributedDataParallel needs 11."""
STEPS_TO_SPARE = 1
"""accelerate and prefetchers fetch one batch ahead, so one more step may follow the end of the loader."""
ENOUGH_PASSES = 100
PATIENCE_SECONDS = 10.0


@dataclass
class _Sampling:
    """Passes without gradients that neither raise the peak nor hold more than those before them."""

    since: float
    num_batches: int
    peaks: Summary = ()
    most_held: int = 0
    num_passes: int = 0

    def goes_on(self, peaks: Summary, held: int, num_batches: int) -> bool:
        is_steady = are_steady([self.peaks, peaks]) and held <= self.most_held + NEGLIGIBLE_BYTES
        return is_steady and num_batches == self.num_batches


class Stopping:
    def __init__(
        self, capture: Capture, peaks: Peaks, loaders: Loaders, trainers: Trainers, worst: WorstBatches
    ) -> None:
        self._capture = capture
        self._peaks = peaks
        self._loaders = loaders
        self._trainers = trainers
        self._worst = worst
        self._summaries: list[Summary] = []
        self._asked_at: int | None = None
        self._leaving = Leaving(capture)
        self._sampling: _Sampling | None = None

    def install(self) -> None:
        self._capture.last_after_step = self._after_step
        if self._capture.options.steps == "auto":
            self._capture.before_evaluation.append(self._before_evaluation)

    def _after_step(self) -> None:
        if self._asked_at is None:
            if self._capture.agree("steps", self._has_seen_enough()):
                self._asked_at = self._capture.num_steps
                if not self._trainers.end_training() and not self._loaders.end_training_loops():
                    self._leaving.leave("the script, in its training loop")
        elif self._is_overdue(self._asked_at):
            self._leaving.leave("the script, as it went on training beyond its first loop")

    def _before_evaluation(self) -> None:
        if self._asked_at is None or not in_main_thread():
            return
        peaks, held, num_batches = self._peaks.summary(), self._peaks.allocated_now(), self._loaders.num_batches
        sampling = self._sampling
        if sampling is None or not sampling.goes_on(peaks, held, num_batches):
            sampling = self._sampling = _Sampling(time.monotonic(), num_batches)
        sampling.peaks, sampling.most_held = peaks, max(held, sampling.most_held)
        sampling.num_passes += 1
        if sampling.num_passes >= ENOUGH_PASSES and time.monotonic() - sampling.since > PATIENCE_SECONDS:
            self._leaving.leave(f"a loop without gradients, after {sampling.num_passes} passes with the same peak")

    def _has_seen_enough(self) -> bool:
        wanted = self._capture.options.steps
        if wanted == "worst":
            return self._worst.have_been_trained()
        if wanted != "auto":
            return isinstance(wanted, int) and self._capture.num_steps >= wanted
        self._summaries.append(self._peaks.summary())
        del self._summaries[:-3]
        if self._is_before_graph():
            return False
        num_backwards = self._capture.num_backward_steps
        num_optimizer_steps = self._capture.num_steps - num_backwards
        is_long_enough = num_optimizer_steps >= FEWEST_STEPS or (
            num_optimizer_steps == 0 and num_backwards >= FEWEST_BACKWARDS
        )
        return is_long_enough and len(self._summaries) == 3 and are_steady(self._summaries)

    def _is_before_graph(self) -> bool:
        capture = self._capture
        if capture.has_step_in_graph or capture.is_capturing_graph:
            return capture.num_graph_steps < FEWEST_STEPS
        cuda = sys.modules["torch"].cuda
        is_aside = cuda.is_initialized() and cuda.current_stream() != cuda.default_stream()
        return is_aside and capture.num_steps <= MOST_WARM_UP_STEPS

    def _is_overdue(self, asked_at: int) -> bool:
        ended = self._loaders.ended_training
        if ended is not None and self._loaders.num_started > ended.num_started:
            return True
        if self._capture.options.whole_loops != "all":
            return self._capture.num_steps - asked_at > STEPS_TO_SPARE
        return ended is not None and self._capture.num_steps - ended.num_steps > STEPS_TO_SPARE
