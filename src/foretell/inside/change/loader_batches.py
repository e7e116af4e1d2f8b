"""Observes which DataLoaders feed the training, and changes the batch size of those.

`dataloader-batch-size` observes only; `dataloader-batch-size=64@MARK,MARK` changes the loaders with these marks when
they are made. A mark is the same in every run: it stands for the lines of code that make the loader, its sampler and
the batch size it is given.

A loader feeds the training if steps are made between two of its batches. accelerate makes a new loader of a given one,
with the same batch sampler: both count as one.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from ..capture import Capture
from ..where import OWN_FOLDERS, where_now

_NOT_THE_SCRIPTS = (*OWN_FOLDERS, "<frozen", "<string>", runpy.__file__)
"""Also `runpy`, which starts the script in a fork."""


class LoaderBatches:
    def __init__(self, capture: Capture, wanted: str) -> None:
        size, _, marks = wanted.partition("@")
        self._capture = capture
        self._size = int(size) if size else None
        self._marks = frozenset(marks.split(",")) if marks else frozenset()
        self._made: dict[int, _Made] = {}
        """By the number of the object that makes the batches of indices, which iterators and derived loaders share."""
        self._begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """By iterator: the steps before its first batch."""
        self._noted: set[str] = set()
        self._is_changed = False

    def install(self, torch: Any) -> None:
        module = torch.utils.data.dataloader
        self._capture.patches.wrap(torch.utils.data.DataLoader, "__init__", self._making)
        # Not `__next__`: `stop/loaders.py` looks at its caller.
        for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
            self._capture.patches.wrap(kind, "_next_data", self._requesting)

    def _making(self, original: Any) -> Any:
        @wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if self._made_with(loader._index_sampler) is not None:  # made of another loader
                return
            made = _Made(loader)
            if made.mark in self._marks and loader.batch_size is not None:
                loader._DataLoader__initialized = False  # or it refuses to be initialised again
                if len(args) > 1:
                    args = (args[0], self._size, *args[2:])
                else:
                    kwargs = {**kwargs, "batch_size": self._size}
                original(loader, *args, **kwargs)
                made.is_changed = True
                self._report_change()
            made.sampler = _weakly(loader._index_sampler)
            self._made[id(loader._index_sampler)] = made

        return init

    def _made_with(self, sampler: Any) -> _Made | None:
        made = self._made.get(id(sampler))
        return made if made is not None and made.sampler() is sampler else None

    def _report_change(self) -> None:
        if not self._is_changed:
            self._is_changed = True
            self._capture.journal.write("alternative", name="dataloader-batch-size")

    def _requesting(self, original: Any) -> Any:
        @wraps(original)
        def next_data(iterator: Any) -> Any:
            num_steps = self._capture.num_steps
            if iterator._num_yielded == 0 or iterator not in self._begun:
                self._begun[iterator] = num_steps
            elif num_steps > self._begun[iterator]:
                self._note(iterator._index_sampler)
            return original(iterator)

        return next_data

    def _note(self, sampler: Any) -> None:
        made = self._made_with(sampler)
        if made is None or made.mark in self._noted:
            return
        self._noted.add(made.mark)
        if self._size is None:
            self._capture.journal.write(
                "loader", mark=made.mark, where=made.where, batch_size=made.batch_size, num_samples=made.num_samples
            )
        elif not made.is_changed:
            loader = f"the DataLoader at {made.where}"
            self._capture.caveat(f"{loader} feeds the training too, and kept its batch size of {made.batch_size}")


class _Made:
    """A DataLoader as the script has made it."""

    def __init__(self, loader: Any) -> None:
        self.where = where_now()
        self.batch_size: int | None = loader.batch_size
        self.num_samples = _length(loader.dataset)
        self.sampler: Callable[[], Any] = lambda: None
        self.is_changed = False
        about = (*_callers(), type(loader.sampler).__qualname__, str(loader.batch_size), str(loader.drop_last))
        self.mark = hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]


def _callers() -> list[str]:
    """The lines that have led here: of the script and of libraries, but neither foretell's nor those that start it."""
    places = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_SCRIPTS):
            places.append(f"{os.path.abspath(file)}:{frame.f_lineno}")  # of a script in a fork: as it was given
        frame = frame.f_back
    return places


def _weakly(sampler: Any) -> Callable[[], Any]:
    """Its data set may have tensors on the GPU, which must not live longer than without foretell."""
    try:
        return weakref.ref(sampler)
    except TypeError:  # a list of batches
        return lambda: sampler


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # an iterable dataset has no length, or one that raises
        return None
