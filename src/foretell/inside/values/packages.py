"""Decisions of packages that branches.py cannot read off the code: the longest run is the one to estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..capture import Capture
from .unknown import UnknownReads


def install(capture: Capture, unknown: UnknownReads, is_known: Callable[[Any], bool]) -> None:
    """`is_known` says whether the value of a tensor on the GPU is known."""
    wrap, when_imported = capture.patches.wrap, capture.imports.when_imported

    def ignoring_early_stopping(note: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        def wrapper(original: Any) -> Any:
            @wraps(original)
            def check(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self, *args, **kwargs)
                unknown.caveat_once("early stopping waits for a metric that is not known; here it never sets in")
                return note(self, result)

            return check

        return wrapper

    def has_unfinished_beams(original: Any) -> Any:
        @wraps(original)
        def has_unfinished(*args: Any, **kwargs: Any) -> Any:
            """Its caller asks for `not result`, and hands that to the loop."""
            result = original(*args, **kwargs)
            if not hasattr(result, "is_cuda") or not result.is_cuda or is_known(result):
                return result
            unknown.note(original, result, "decides a branch")
            return True

        return staticmethod(has_unfinished)

    def watch_generation(utils: Any) -> None:
        if hasattr(utils.GenerationMixin, "_beam_search_has_unfinished_sequences"):
            wrap(utils.GenerationMixin, "_beam_search_has_unfinished_sequences", has_unfinished_beams)

    def watch_transformers(callbacks: Any) -> None:
        def be_patient(callback: Any, result: Any) -> Any:
            callback.early_stopping_patience_counter = 0
            return result

        wrap(callbacks.EarlyStoppingCallback, "check_metric_value", ignoring_early_stopping(be_patient))

    def watch_lightning(module: Any) -> None:
        goes_on = ignoring_early_stopping(lambda callback, result: (False, None))
        wrap(module.EarlyStopping, "_evaluate_stopping_criteria", goes_on)

    when_imported("transformers.generation.utils", watch_generation)
    when_imported("transformers.trainer_callback", watch_transformers)
    when_imported("lightning.pytorch.callbacks.early_stopping", watch_lightning)
    when_imported("pytorch_lightning.callbacks.early_stopping", watch_lightning)
