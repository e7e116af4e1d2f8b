"""Trains on the largest batches of an epoch alone (`steps` is `worst`; docs/epoch.md).

The script gets the first batches of its DataLoader as they come, until two steps have been made: the optimizer has its
state then. The loader that feeds them is run to its end, without the script, and the batch with the most elements and
those with the largest size in each dimension are kept. The script gets these next, largest first. Before each of them
it gets the batch that comes before it in the epoch, because a loop still holds a part of the last batch while it works
on the next one; if gradients are accumulated, the large batch comes last in its step, when there are gradients.

The script gets copies, which it may change.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections import Counter
from collections.abc import Iterator
from functools import wraps
from itertools import islice
from typing import Any

from ..capture import Capture, in_main_thread
from ..watch.batches import Batches, Delivered, is_on_gpu, length_of
from ..watch.phases import Phases

ORDINARY_STEPS = 2
MOST_CHOSEN = 8
MOST_MEASURES = 64
MOST_WITHOUT_LENGTH = 10_000
LATEST_STEP = 10
"""A script that trained so often without coming back to its DataLoader cannot be given other batches."""
STEPS_TO_SPARE = 2
"""The last large batch may be for the step after the one in which it was delivered (accelerate)."""
_HINT = "Run all of the data with --steps all, or a number of steps with --steps N."

Measure = tuple[str, int]
"""A dimension of a tensor in the batch, or -1 for all elements of the batch; items of a list are one."""


class _Feed:
    """What one DataLoader iterator has given to the script."""

    def __init__(self) -> None:
        self.num_batches = 0
        self.by_step: Counter[int] = Counter()
        self.num_backwards = 0
        """At the last batch."""


class WorstBatches:
    def __init__(self, capture: Capture, batches: Batches, phases: Phases) -> None:
        self._capture = capture
        self._batches = batches
        self._phases = phases
        self._feeds: weakref.WeakKeyDictionary[Any, _Feed] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[Any] | None = None
        """The iterator that gave the last batch, whichever it is."""
        self._steered: weakref.ref[Any] | None = None
        """The iterator whose largest batches are trained on."""
        self._planned: Iterator[Delivered] = iter(())
        self._num_chosen = self._num_given = 0
        self._complete_at: int | None = None
        """The step in which the last large batch was delivered."""

    def install(self, torch: Any) -> None:
        iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
        self._capture.patches.wrap(iterator_class, "__next__", self._steering)
        self._capture.before_end.append(self._tell_what_is_missing)

    def have_been_trained(self) -> bool:
        """Ends the process if the script does not come back to its DataLoader."""
        if self._complete_at is not None:
            return self._capture.num_steps >= self._complete_at + STEPS_TO_SPARE
        if self._steered is None and self._capture.num_steps >= LATEST_STEP:
            seen = "its DataLoader is not read in a loop" if self._feeds or self._last else "it uses no DataLoader"
            self._capture.refuse(f"--data-only cannot choose the batches of this training, because {seen}", _HINT)
        return False

    def _steering(self, original: Any) -> Any:
        @wraps(original)
        def next_batch(iterator: Any) -> Any:
            if not in_main_thread():
                return original(iterator)
            if self._steered is not None and self._steered() is iterator:
                return self._next_planned()
            if self._steered is None and self._feeds_training(iterator):
                self._look(iterator, original)
                return self._next_planned()
            batch = original(iterator)
            self._note(iterator)
            return batch

        return next_batch

    def _note(self, iterator: Any) -> None:
        self._last = weakref.ref(iterator)
        feed = self._feeds.setdefault(iterator, _Feed())
        feed.num_batches += 1
        feed.by_step[self._capture.num_steps] += 1
        feed.num_backwards = self._phases.num_backwards

    def _feeds_training(self, iterator: Any) -> bool:
        """Whether enough has been trained, the last time on a batch of this iterator."""
        feed = self._feeds.get(iterator)
        if feed is None or self._last is None or self._last() is not iterator:
            return False
        return self._capture.num_steps >= ORDINARY_STEPS and self._phases.num_backwards > feed.num_backwards

    def _look(self, iterator: Any, original: Any) -> None:
        """Run the loader to its end, and plan what the script gets instead."""
        feed = self._feeds[iterator]
        self._steered = weakref.ref(iterator)
        largest = _Largest()
        self._batches.is_looking = True
        try:
            for number, each in enumerate(self._rest(iterator, original)):
                if number == 0 and is_on_gpu(each.batch):
                    self._capture.refuse(
                        "--data-only keeps the largest batches on the host, but this DataLoader makes its batches on "
                        "the GPU",
                        _HINT,
                    )
                largest.add(each)
                if number + 1 == MOST_WITHOUT_LENGTH and not _has_length(iterator):
                    self._capture.caveat(
                        f"the DataLoader has no length; of its batches, only the first {number + 1:,} were looked at"
                    )
                    break
        finally:
            self._batches.is_looking = False
            self._batches.last = None
        per_step = max(1, feed.by_step[self._capture.num_steps - 1])
        chosen = largest.chosen()
        self._num_chosen = len(chosen)
        self._planned = self._plan(chosen, per_step, feed.num_batches)
        if not chosen:  # the epoch was over
            self._complete_at = self._capture.num_steps

    def _rest(self, iterator: Any, original: Any) -> Iterator[Delivered]:
        while True:
            try:
                original(iterator)
            except StopIteration:
                return
            if self._batches.last is None:  # noting it has failed, with a caveat
                return
            yield self._batches.last

    def _plan(
        self, chosen: list[tuple[Delivered | None, Delivered]], per_step: int, num_batches: int
    ) -> Iterator[Delivered]:
        """Each large batch after the one before it, and then enough others to finish the step."""
        if not chosen:
            return
        filler = chosen[0][0] or chosen[0][1]
        for before, large in chosen:
            pair = [large] if before is None else [before, large]
            others = [filler] * (-(num_batches + len(pair)) % per_step)  # the large one is to be the last of its step
            num_batches += len(others) + len(pair)
            yield from [*others, *pair[:-1]]
            self._num_given += 1
            if self._num_given == self._num_chosen:
                self._complete_at = self._capture.num_steps
            yield large
        yield from [filler] * (STEPS_TO_SPARE + 1) * per_step

    def _next_planned(self) -> Any:
        following = next(self._planned, None)
        if following is None or (self._complete_at is not None and self.have_been_trained()):
            self._planned = iter(())
            raise StopIteration
        self._batches.tell(following)
        try:
            return copy.deepcopy(following.batch)
        except Exception:  # what cannot be copied is given as it is; the script may have changed it before
            return following.batch

    def _tell_what_is_missing(self) -> None:
        missing = self._num_chosen - self._num_given
        if missing:
            self._capture.caveat(
                f"the script ended its training before it got {missing} of the {self._num_chosen} largest batches"
            )


class _Largest:
    """The largest batches so far, by each measure, with the batch before each."""

    def __init__(self) -> None:
        self._best: dict[Measure, tuple[int, Delivered | None, Delivered]] = {}
        self._varying: set[Measure] = set()
        self._last: Delivered | None = None

    def add(self, delivered: Delivered) -> None:
        before, self._last = self._last, delivered
        for measure, size in islice(_measures(delivered).items(), MOST_MEASURES):
            best = self._best.get(measure)
            if best is not None and size != best[0]:
                self._varying.add(measure)
            if best is None or size > best[0]:
                self._best[measure] = size, before, delivered

    def chosen(self) -> list[tuple[Delivered | None, Delivered]]:
        """The batch before, if it was looked at, and the large one; the most elements first."""
        measures = [measure for measure in self._best if measure in self._varying] or list(self._best)[:1]
        pairs = {id(self._best[each][2]): self._best[each][1:] for each in measures}
        return sorted(pairs.values(), key=lambda pair: -pair[1].num_elements)[:MOST_CHOSEN]


def _measures(delivered: Delivered) -> dict[Measure, int]:
    found: dict[Measure, int] = {("", -1): delivered.num_elements}
    for name, _, shape in delivered.tensors:
        pattern = re.sub(r"\b\d+\b", "*", name)
        for dimension, size in enumerate(shape):
            found[pattern, dimension] = max(size, found.get((pattern, dimension), 0))
    return found


def _has_length(iterator: Any) -> bool:
    return length_of(iterator) is not None and iterator._dataset_kind == 0
