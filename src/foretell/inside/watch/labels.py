"""Labels memory of models and optimizers: which address is which parameter, buffer, gradient or optimizer state.

Gradients are labelled before an optimizer step, its state after it, parameters and buffers when a model is first
called; everything known is labelled again on running out of memory and at the end.

An optimizer that is not one of torch.optim (fastai's, or `velocity[p]` of the script) calls no hooks. What it keeps is
found as the values of a dict whose keys are parameters. To find that dict, Python looks at all its objects, which takes
0.2 s with fastai imported; so it is done after steps 2, 4, 8, ... and at the end.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from typing import Any

from ..capture import Capture
from .owners import Owners


class Labels:
    def __init__(self, capture: Capture, owners: Owners) -> None:
        self._capture = capture
        self._owners = owners
        self._models: list[tuple[str, weakref.ref[Any]]] = []
        self._names: dict[int, str] = {}
        """Names of parameters, by id; they live as long as their model."""
        self._has_optimizer_stepped = False

    def install(self, torch: Any) -> None:
        """Call while CUDA is being initialised."""
        self._torch = torch
        optimizer_module = sys.modules["torch.optim.optimizer"]
        for handle in (
            optimizer_module.register_optimizer_step_pre_hook(self._before_step),
            optimizer_module.register_optimizer_step_post_hook(self._after_step),
        ):
            self._capture.patches.added("a hook around optimizer steps", handle.remove)
        torch._C._cuda_attach_out_of_memory_observer(lambda *event: self._capture.guarded("labels", self._all_models))
        self._capture.after_step.append(self._after_backward_step)
        self._capture.before_end.insert(0, self._all_models)

    def model(self, name: str, module: Any) -> None:
        """Label a root module at its first call."""
        self._models.append((name, weakref.ref(module)))
        self._of_model(name, module)

    def _all_models(self) -> None:
        for name, reference in self._models:
            module = reference()
            if module is not None:
                self._of_model(name, module)
        self._states_by_parameter()

    def _of_model(self, model: str, module: Any) -> None:
        labels = []
        for name, parameter in module.named_parameters():
            full = self._names[id(parameter)] = _full_name(model, name)
            labels.append(("parameter", parameter, full))
            if parameter.grad is not None:
                labels.append(("gradient", parameter.grad, full))
        labels += [("buffer", buffer, _full_name(model, name)) for name, buffer in module.named_buffers()]
        self._owners.label(labels)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._has_optimizer_stepped = True
        labels = []
        for parameter in self._parameters(optimizer):
            name = self._names.get(id(parameter))
            labels.append(("parameter", parameter, name))
            if parameter.grad is not None:
                labels.append(("gradient", parameter.grad, name))
        self._owners.label(labels)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._of_states(list(optimizer.state.items()))

    def _of_states(self, states: Iterable[tuple[Any, Any]]) -> None:
        """Each parameter with a dict of its state."""
        is_tensor = self._torch.is_tensor
        labels = []
        for parameter, state in states:
            if not isinstance(state, dict):
                continue
            owner = self._names.get(id(parameter))
            for key, value in state.items():
                values = value if isinstance(value, list | tuple) else (value,)
                name = f"{owner} ({key})" if owner else str(key)
                labels += [("optimizer_state", each, name) for each in values if is_tensor(each)]
        self._owners.label(labels)

    def _after_backward_step(self) -> None:
        number = self._capture.num_backward_steps
        if number >= 2 and number & (number - 1) == 0:
            self._states_by_parameter()

    def _states_by_parameter(self) -> None:
        if self._has_optimizer_stepped or not self._capture.num_backward_steps:
            return
        parameter = self._with_gradient()
        if parameter is None:
            return
        is_tensor = self._torch.is_tensor
        for found in gc.get_referrers(parameter):
            if isinstance(found, dict) and parameter in found:
                self._of_states([(key, _as_dict(state, key.grad)) for key, state in found.items() if is_tensor(key)])

    def _with_gradient(self) -> Any:
        """A parameter that is trained, on the GPU."""
        for _, reference in self._models:
            module = reference()
            for parameter in module.parameters() if module is not None else ():
                if parameter.grad is not None and parameter.is_cuda:
                    return parameter
        return None

    @staticmethod
    def _parameters(optimizer: Any) -> list[Any]:
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _as_dict(state: Any, gradient: Any) -> dict[Any, Any]:
    """State is a dict, or one tensor or several. Gradients by parameter are none."""
    if not isinstance(state, dict):
        state = {"state": state}
    return {key: value for key, value in state.items() if value is not gradient}


def _full_name(model: str, name: str) -> str:
    """A compiled module holds the module itself as `_orig_mod`."""
    return f"{model}.{name}".replace("._orig_mod.", ".")
