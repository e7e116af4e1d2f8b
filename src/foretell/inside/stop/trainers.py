"""Asks a training framework to stop, in its own way.

Hugging Face Trainer: `control.should_training_stop` at the end of the step, after an evaluation and a checkpoint if the
arguments ask for any: the full run would have reached them. Lightning: `trainer.should_stop`, after which it validates
and ends. Ignite: `engine.terminate_epoch`, after which the handlers of the epoch's end run (it would start the loader
of an ended loop again).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..capture import Capture


class Trainers:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._is_transformers_training = False
        self._lightning: weakref.ref[Any] | None = None
        self._must_stop = False
        self._engines: list[Any] = []
        """Ignite's running engines; an evaluator runs inside its trainer."""

    def install(self) -> None:
        watch = self._capture.imports.when_imported
        watch("transformers.trainer_callback", self._watch_transformers)
        watch("lightning.pytorch.trainer.trainer", self._watch_lightning)
        watch("pytorch_lightning.trainer.trainer", self._watch_lightning)
        watch("ignite.engine.engine", self._watch_ignite)

    def end_training(self) -> bool:
        """Ask the active trainer to stop; False if there is none."""
        if self._is_transformers_training:
            self._must_stop = True
            return True
        trainer = self._lightning() if self._lightning is not None else None
        if trainer is not None:
            trainer.should_stop = True
            self._report("lightning", "Lightning's Trainer.fit")
            return True
        if self._engines:
            self._engines[-1].terminate_epoch()
            self._report("ignite", "an epoch of Ignite's Engine.run")
            return True
        return False

    def _report(self, how: str, what: str) -> None:
        self._capture.ends_early(what, how=how)

    def _watch_transformers(self, module: Any) -> None:
        def setting(is_training: bool) -> Callable[[Any], Any]:
            def wrapper(original: Any) -> Any:
                @wraps(original)
                def begin_or_end(handler: Any, *args: Any, **kwargs: Any) -> Any:
                    self._is_transformers_training = is_training
                    return original(handler, *args, **kwargs)

                return begin_or_end

            return wrapper

        def stopping(original: Any) -> Any:
            @wraps(original)
            def step_end(handler: Any, args: Any, state: Any, control: Any, *more: Any, **kwargs: Any) -> Any:
                control = original(handler, args, state, control, *more, **kwargs)
                if self._must_stop:
                    self._must_stop = False
                    self._stop(args, control)
                return control

            return step_end

        patches, handler = self._capture.patches, module.CallbackHandler
        patches.wrap(handler, "on_train_begin", setting(True))
        patches.wrap(handler, "on_step_end", stopping)
        patches.wrap(handler, "on_train_end", setting(False))

    def _stop(self, args: Any, control: Any) -> None:
        control.should_training_stop = True
        # Strategies are string enums: "no", "steps", "epoch", "best". Those per epoch come at its end anyway.
        control.should_evaluate = control.should_evaluate or _word(args, "eval_strategy") == "steps"
        control.should_save = control.should_save or _word(args, "save_strategy") == "steps"
        self._report("trainer", "the Hugging Face Trainer's training loop")

    def _watch_lightning(self, module: Any) -> None:
        def watching(fit: Any) -> Any:
            @wraps(fit)
            def watched_fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self._lightning = weakref.ref(trainer)
                try:
                    return fit(trainer, *args, **kwargs)
                finally:
                    self._lightning = None

            return watched_fit

        self._capture.patches.wrap(module.Trainer, "fit", watching)

    def _watch_ignite(self, module: Any) -> None:
        def watching(run: Any) -> Any:
            @wraps(run)
            def watched_run(engine: Any, *args: Any, **kwargs: Any) -> Any:
                self._engines.append(engine)
                try:
                    return run(engine, *args, **kwargs)
                finally:
                    self._engines.pop()

            return watched_run

        self._capture.patches.wrap(module.Engine, "run", watching)


def _word(args: Any, name: str) -> str:
    strategy = getattr(args, name, "no")
    return str(getattr(strategy, "value", strategy))
