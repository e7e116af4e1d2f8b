"""Counts backward passes as steps where no optimizer does the stepping: `p.data.add_(p.grad, alpha=-lr)`, `torch.func`.

Only until the script makes an optimizer of torch.optim: with one, several backward passes may belong to a step. It may
make one after its first backward pass (Pyro); what that one then does belongs to the step that was counted. A pass
that adds to gradients which nobody has touched since the last pass accumulates, and belongs to the step of that pass.
Gradients zeroed through `.data` look untouched, so after MOST_ACCUMULATED passes that is no longer believed. If an
iteration has several backward passes, the line of the first one counts; another line takes over when it comes twice
without that one.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..capture import Capture
from ..where import where_now
from .modules import tensors_of
from .steps import Steps

MOST_ACCUMULATED = 32


class BackwardSteps:
    def __init__(self, capture: Capture, steps: Steps) -> None:
        self._capture = capture
        self._steps = steps
        self._torch: Any = None
        self._is_new = False
        self._line: str | None = None
        self._other_lines: set[str | None] = set()
        self._parameter: weakref.ref[Any] | None = None
        """One of those that get gradients."""
        self._gradient: tuple[int, int] | None = None
        """Its gradient after the last pass: identity and version."""
        self._num_accumulated = 0
        self._has_told = False

    def install(self, torch: Any) -> None:
        self._torch = torch
        self._capture.first_before_backward = self._begins
        self._capture.last_after_backward = self._ends
        self._capture.before_end.append(self._tell)

    def _begins(self, roots: Any) -> None:
        self._steps.is_counted_already = False
        self._is_new = not self._steps.has_optimizer and self._begins_iteration(roots)
        if self._is_new and self._capture.num_backward_steps:
            self._tell()

    def _ends(self) -> None:
        if self._parameter is not None:
            self._gradient = _gradient_of(self._parameter())
        if self._is_new:
            self._capture.num_backward_steps += 1
            self._steps.is_counted_already = True
            self._steps.count()

    def _tell(self) -> None:
        """Once, when the first step is over: it may have made an optimizer after its backward pass."""
        if self._capture.num_backward_steps and not self._steps.has_optimizer and not self._has_told:
            self._has_told = True
            self._capture.caveat("steps are backward passes: the script updates its parameters without torch.optim")

    def _begins_iteration(self, roots: Any) -> bool:
        parameter = self._parameter_behind(roots)
        if parameter is None:
            return False
        before = self._parameter() if self._parameter is not None else None
        is_untouched = parameter is before and self._gradient is not None and _gradient_of(parameter) == self._gradient
        self._parameter = weakref.ref(parameter)
        self._num_accumulated = self._num_accumulated + 1 if is_untouched else 0
        return (not is_untouched or self._num_accumulated > MOST_ACCUMULATED) and self._counts(where_now())

    def _parameter_behind(self, roots: Any) -> Any:
        """The first leaf on the GPU that the pass reaches."""
        with self._torch._C.DisableTorchFunction():
            pending = [tensor.grad_fn for tensor in tensors_of(roots, self._torch.Tensor)]
            seen = set()
            while pending:
                node = pending.pop()
                if node is None or node in seen:
                    continue
                seen.add(node)
                leaf = getattr(node, "variable", None)  # of AccumulateGrad alone
                if leaf is not None and leaf.is_cuda:
                    return leaf
                pending += [before for before, _ in node.next_functions]
        return None

    def _counts(self, line: str | None) -> bool:
        if not self._capture.num_steps or line == self._line or line in self._other_lines:
            self._line = line
            self._other_lines.clear()
            return True
        self._other_lines.add(line)
        return False


def _gradient_of(parameter: Any) -> tuple[int, int] | None:
    gradient = None if parameter is None else parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
