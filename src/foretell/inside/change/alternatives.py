"""Changes a training run from outside, as if its author had made the change.

Each change is a word, some with a value after `=`. It is made once, at the place it applies to, and reported in an
`alternative` line: a run without that line ran unchanged.
"""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from ..capture import Capture
from ..watch.survey import class_name, samples_left_over
from .loader_batches import LoaderBatches


def install(capture: Capture, torch: Any) -> None:
    changes: dict[str, Callable[[Capture, Any, str], None]] = {
        "checkpoint": _checkpoint,
        "autocast": _autocast,
        "optimizer-implementation": _optimizer_implementation,
        "optimizer": _other_optimizer,
        "zero-grad-to-none": _zero_grad_to_none,
        "zero-grad-after-step": _zero_grad_after_step,
        "drop-last": _drop_last,
        "dataloader-batch-size": lambda capture, torch, value: LoaderBatches(capture, value).install(torch),
        "cudnn-benchmark": _no_benchmark,
        "shuffle": _shuffle,
    }
    for word in capture.options.alternatives:
        name, _, value = word.partition("=")
        changes[name](capture, torch, value)


class Noted:
    """Writes the line at the first call."""

    def __init__(self, capture: Capture, name: str) -> None:
        self._capture = capture
        self._name = name
        self._is_written = False

    def __call__(self, **values: Any) -> None:
        if not self._is_written:
            self._is_written = True
            self._capture.journal.write("alternative", name=self._name, **values)


# --- activations ------------------------------------------------------------------------------------------------------


def _checkpoint(capture: Capture, torch: Any, wanted: str) -> None:
    """Checkpoint modules of this class, in the first forward of a model that has them; by the model's own method, if
    any."""
    done = Noted(capture, "checkpoint")

    def look(root: Any, args: Any) -> None:
        found = [module for module in root.modules() if class_name(type(module)) == wanted]
        if not found or not torch.is_grad_enabled():
            return
        hook.remove()
        model = next((m for m in root.modules() if getattr(m, "supports_gradient_checkpointing", False)), None)
        if model is not None:
            if getattr(model.config, "use_cache", False):
                model.config.use_cache = False  # recomputed values would be cached twice
            model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            capture.patches.wrap(type(found[0]), "forward", partial(_checkpointing, torch))
        done(by="class" if model is None else "model")

    hook = torch.nn.modules.module.register_module_forward_pre_hook(look)
    capture.patches.added("a hook before the first forward", hook.remove)


def _checkpointing(torch: Any, original: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    inside = threading.local()  # autograd recomputes in its own threads

    def once(module: Any, *args: Any, **kwargs: Any) -> Any:
        inside.is_running = True
        try:
            return original(module, *args, **kwargs)
        finally:
            inside.is_running = False

    @wraps(original)
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        is_nested = getattr(inside, "is_running", False)
        if is_nested or not module.training or not torch.is_grad_enabled():
            return original(module, *args, **kwargs)
        return checkpoint(once, module, *args, use_reentrant=False, **kwargs)

    return forward


def _autocast(capture: Capture, torch: Any, dtype: str) -> None:
    """Enable autocast from the model's forward to the backward: around model and loss, as PyTorch's documentation has
    it."""
    done = Noted(capture, "autocast")
    entered: list[Any] = []

    def phase_begins(phase: str) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)
        if phase in ("forward", "evaluation"):
            entered.append(torch.autocast("cuda", dtype=getattr(torch, dtype)))
            entered[0].__enter__()
            done()

    capture.on_phase.append(phase_begins)


# --- optimizers -------------------------------------------------------------------------------------------------------


def _optimizer_implementation(capture: Capture, torch: Any, wanted: str) -> None:
    done = Noted(capture, "optimizer-implementation")

    def choosing(original: Any) -> Any:
        @wraps(original)
        def init(optimizer: Any, params: Any, defaults: dict[str, Any]) -> None:
            has_it = ("fused" if wanted == "fused" else "foreach") in defaults
            if has_it:
                choice = {"foreach": False, "fused": wanted == "fused"}
                defaults = {**defaults, **{name: value for name, value in choice.items() if name in defaults}}
            original(optimizer, params, defaults)
            if has_it:
                if wanted == "fused":  # as the constructor does for fused=True
                    optimizer._step_supports_amp_scaling = True
                done()

        return init

    capture.patches.wrap(torch.optim.Optimizer, "__init__", choosing)


def _other_optimizer(capture: Capture, torch: Any, wanted: str) -> None:
    """Replace the step of Adam and AdamW. The script still makes, schedules and saves them; only the step and the state
    are those of another optimizer, on the same parameters and gradients."""
    done = Noted(capture, "optimizer")
    adam, adamw = torch.optim.Adam, torch.optim.AdamW
    replacements: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()

    def instead_of(original: Any) -> Any:
        def step(optimizer: Any, closure: Any = None) -> Any:
            if type(optimizer) not in (adam, adamw):
                return original(optimizer, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if optimizer not in replacements:
                replacements[optimizer] = _step_of(torch, wanted, optimizer)
                done()
            replacements[optimizer]()
            return loss

        return step

    for kind in (adam, adamw):
        if "step" in kind.__dict__:
            capture.patches.wrap(kind, "step", instead_of)


def _step_of(torch: Any, wanted: str, replaced: Any) -> Callable[[], None]:
    if wanted == "8bit":
        kind = importlib.import_module("bitsandbytes").optim.AdamW8bit
    else:
        kind = torch.optim.Adafactor
    plain_step = kind.step  # its first instance wraps it in the hooks that count steps
    if getattr(plain_step, "hooked", False):
        plain_step = plain_step.__wrapped__
    groups = [{"params": g["params"], "weight_decay": g["weight_decay"]} for g in replaced.param_groups]
    other = kind(groups, lr=1e-3)
    replaced.state = other.state
    return lambda: plain_step(other)


# --- gradients --------------------------------------------------------------------------------------------------------


def _zero_grad_to_none(capture: Capture, torch: Any, _: str) -> None:
    done = Noted(capture, "zero-grad-to-none")

    def forced(original: Any) -> Any:
        @wraps(original)
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            if not set_to_none:
                done()
            return original(owner, True)

        return zero_grad

    for owner in (torch.optim.Optimizer, torch.nn.Module):
        capture.patches.wrap(owner, "zero_grad", forced)


def _zero_grad_after_step(capture: Capture, torch: Any, _: str) -> None:
    done = Noted(capture, "zero-grad-after-step")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        done()
        optimizer.zero_grad(set_to_none=True)

    handle = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after)
    capture.patches.added("a hook around optimizer steps", handle.remove)


# --- batches ----------------------------------------------------------------------------------------------------------


def _drop_last(capture: Capture, torch: Any, _: str) -> None:
    """Drop the last batch of loaders that make their own batches and have more than one."""
    done = Noted(capture, "drop-last")

    def dropping(original: Any) -> Any:
        @wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if samples_left_over(loader) and len(loader) > 1:
                loader._DataLoader__initialized = False  # or it refuses to be initialised again
                original(loader, *args, **{**kwargs, "drop_last": True})
                done()

        return init

    capture.patches.wrap(torch.utils.data.DataLoader, "__init__", dropping)


# --- autotuning -------------------------------------------------------------------------------------------------------


def _no_benchmark(capture: Capture, torch: Any, _: str) -> None:
    """Switch `torch.backends.cudnn.benchmark` off before each module that runs, wherever the script switches it on."""
    done = Noted(capture, "cudnn-benchmark")

    def switch_off(module: Any, args: Any) -> None:
        if torch._C._get_cudnn_benchmark():
            torch._C._set_cudnn_benchmark(False)
            done()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(switch_off)
    capture.patches.added("a hook before each forward", hook.remove)


def _shuffle(capture: Capture, torch: Any, seed: str) -> None:
    """Samples are drawn in another order where the script has them shuffled."""
    done = Noted(capture, "shuffle")

    def randomly(original: Any) -> Any:
        @wraps(original)
        def iterate(sampler: Any) -> Any:
            own = sampler.generator
            sampler.generator = torch.Generator()
            sampler.generator.manual_seed(int(seed))
            done()
            try:
                yield from original(sampler)
            finally:
                sampler.generator = own

        return iterate

    def by_rank(original: Any) -> Any:
        @wraps(original)
        def iterate(sampler: Any) -> Any:
            own = sampler.seed
            sampler.seed = own + int(seed)
            done()
            try:
                return original(sampler)  # the order is drawn in the call
            finally:
                sampler.seed = own

        return iterate

    capture.patches.wrap(torch.utils.data.RandomSampler, "__iter__", randomly)
    capture.patches.wrap(torch.utils.data.distributed.DistributedSampler, "__iter__", by_rank)
