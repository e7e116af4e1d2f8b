"""Surveys a training run for possible changes, in one `survey` line.

Which modules are repeated and what their forward keeps for the backward; the precision; the optimizers, their
implementation and state; when gradients are set to zero. Hooks on modules may briefly change what is held, so a survey
is a separate run, never the reported one.
"""

from __future__ import annotations

import importlib.util
import sys
import weakref
from functools import wraps
from typing import Any

from ..capture import Capture
from .modules import tensors_of
from .peaks import Peaks

LARGE_STATE = 4096
"""Elements. Optimizers with 8-bit states do not quantize the state of smaller parameters."""


class Survey:
    def __init__(self, capture: Capture, torch: Any, peaks: Peaks) -> None:
        self._capture = capture
        self._torch = torch
        self._modules = RepeatedModules(torch, peaks)
        self._optimizers: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._found: list[dict[str, Any]] = []
        self._num_steps_at_forward = -1
        self._held_gradient_bytes = 0
        self._late_gradient_bytes = 0
        self._keeps_gradients = False
        self._uneven_epochs: list[int] = []
        """Batches per epoch of each loader whose last batch is smaller."""

    def install(self) -> None:
        optimizer_module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes the name after importing it
        handle = optimizer_module.register_optimizer_step_post_hook(self._after_optimizer)
        patches = self._capture.patches
        patches.added("a hook around optimizer steps", handle.remove)
        for owner in (self._torch.optim.Optimizer, self._torch.nn.Module):
            patches.wrap(owner, "zero_grad", self._noting)
        patches.wrap(self._torch.utils.data.DataLoader, "__init__", self._noting_loader)
        patches.added("hooks around the forward of modules", self._modules.stop)
        self._capture.on_phase.append(self._phase_begins)
        self._capture.before_end.append(self._write)

    def _phase_begins(self, phase: str) -> None:
        self._modules.stop()
        if phase == "backward":
            self._held_gradient_bytes = 0
        if phase == "forward" and self._num_steps_at_forward < self._capture.num_steps:
            # The first forward of this step: later ones, with accumulation, hold gradients on purpose.
            self._num_steps_at_forward = self._capture.num_steps
            self._held_gradient_bytes = sum(_bytes(p.grad) for o in self._optimizers for p in _parameters(o))
            if self._capture.num_steps <= 1:  # in step 0 libraries allocate their workspaces; in step 1 they have them
                self._modules.start()

    def _noting(self, original: Any) -> Any:
        @wraps(original)
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            self._keeps_gradients |= not set_to_none
            if self._capture.phase == "forward":
                self._late_gradient_bytes = max(self._late_gradient_bytes, self._held_gradient_bytes)
            return original(owner, set_to_none)

        return zero_grad

    def _noting_loader(self, original: Any) -> Any:
        @wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if samples_left_over(loader):
                self._uneven_epochs.append(len(loader))

        return init

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer in self._optimizers:
            return
        group = optimizer.param_groups[0]
        tensors = [t for s in optimizer.state.values() for t in s.values() if self._torch.is_tensor(t) and t.is_cuda]
        large = [t for t in tensors if t.numel() >= LARGE_STATE and t.is_floating_point()]
        found = {
            "class": class_name(type(optimizer)),
            "implementation": _implementation(group),
            "has_fused": "fused" in group,
            "state_bytes": sum(map(_bytes, tensors)),
            "large_state_bytes": sum(map(_bytes, large)),
            "large_state_elements": sum(t.numel() for t in large),
        }
        self._optimizers[optimizer] = found
        self._found.append(found)

    def _write(self) -> None:
        self._capture.journal.write(
            "survey",
            **self._modules.results(),
            optimizers=self._found,
            keeps_gradients=self._keeps_gradients,
            late_gradient_bytes=self._late_gradient_bytes,
            has_smaller_batch=any(batches <= self._capture.num_steps for batches in self._uneven_epochs),
            has_bitsandbytes=importlib.util.find_spec("bitsandbytes") is not None,
        )


class RepeatedModules:
    """Measures what the forward of each module keeps, during one forward of the whole model."""

    def __init__(self, torch: Any, peaks: Peaks) -> None:
        self._torch = torch
        self._peaks = peaks
        self._hooks: list[Any] = []
        self._running: list[tuple[Any, int, bool]] = []
        self._kept: dict[str, list[int]] = {}
        self._instances: dict[str, set[int]] = {}
        self._is_autocast = False
        self._parameter_bytes: dict[str, int] = {}

    def start(self) -> None:
        self._running.clear()
        self._kept.clear()
        self._instances.clear()
        self._parameter_bytes.clear()
        module = self._torch.nn.modules.module
        self._hooks = [
            module.register_module_forward_pre_hook(self._before),
            module.register_module_forward_hook(self._after),
        ]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def results(self) -> dict[str, Any]:
        """What checkpointing a class would save: all that its instances keep, minus what one needs while recomputed.
        This finds the heaviest class of fine enough granularity, not the stages that contain it."""
        worth = {name: sum(kept) - max(kept) for name, kept in self._kept.items() if len(self._instances[name]) > 1}
        best = max(worth, key=worth.__getitem__, default=None)
        return {
            "repeated_class": best,
            "repeated_count": len(self._instances[best]) if best else 0,
            "repeated_bytes": worth[best] if best else 0,
            "is_autocast": self._is_autocast,
            "parameter_bytes": self._parameter_bytes,
        }

    def _before(self, module: Any, args: Any) -> None:
        self._is_autocast |= self._torch.is_autocast_enabled("cuda")
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_cuda:
                kind = str(parameter.dtype).removeprefix("torch.")
                self._parameter_bytes[kind] = self._parameter_bytes.get(kind, 0) + _bytes(parameter)
        is_nested = any(type(each) is type(module) for each, _, _ in self._running)
        self._running.append((module, self._peaks.allocated_now(), is_nested))

    def _after(self, module: Any, args: Any, output: Any) -> None:
        while self._running:  # a module that raised never got here
            each, before, is_nested = self._running.pop()
            if each is module:
                break
        else:  # the root: it began before the hooks were installed
            return
        # A single layer keeps its input, which checkpointing keeps too.
        if is_nested or not module.training or not module._modules:
            return
        name = class_name(type(module))
        # The output is kept in any case, as the input of the next module.
        kept = self._peaks.allocated_now() - before - sum(map(_bytes, tensors_of(output, self._torch.Tensor)))
        if self._torch.is_autocast_enabled("cuda"):  # its weight copies live until it ends, checkpointed or not
            width = self._torch.get_autocast_dtype("cuda").itemsize
            kept -= sum(p.numel() * width for p in module.parameters() if p.dim() > 1 and p.element_size() > width)
        self._kept.setdefault(name, []).append(max(0, kept))
        self._instances.setdefault(name, set()).add(id(module))


def samples_left_over(loader: Any) -> int:
    """Samples in the last batch of an epoch if it is incomplete; 0 also if unknown."""
    if loader.batch_size is None or loader.drop_last or not hasattr(loader.dataset, "__len__"):
        return 0
    return int(len(loader.sampler) % loader.batch_size)


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _implementation(group: dict[str, Any]) -> str | None:
    """None if the optimizer has no such option."""
    if group.get("fused"):
        return "fused"
    if "foreach" not in group:
        return None
    return "for-loop" if group["foreach"] is False else "foreach"


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _bytes(tensor: Any) -> int:
    return 0 if tensor is None or not tensor.is_cuda else tensor.numel() * tensor.element_size()
