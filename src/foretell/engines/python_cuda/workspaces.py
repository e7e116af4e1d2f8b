"""Workspace sizes of a convolution's plans: from an installed cuDNN, else by foretell's rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from ...rules.convolution_workspaces import largest_workspace, next_workspace, workspace_by_rule
from ...versions import Version
from .cudnn import Cudnn, CudnnError, Layer, library_of


class Workspaces:
    def __init__(self, capture: Any, torch: Any, card: dict[str, Any], torch_version: Version) -> None:
        self._capture = capture
        self._torch = torch
        self._card = card
        self._capability = (int(card["major"]), int(card["minor"]))
        self._torch_version = torch_version

    @cached_property
    def cudnn(self) -> Cudnn | None:
        """Loaded for the first convolution: it takes a moment, and some hundred MiB."""
        path = library_of(self._torch)
        if path is None:
            return None
        try:
            found = Cudnn(path, self._card)
        except (OSError, AttributeError, CudnnError):
            return None
        self._capture.journal.write("cudnn", version=found.version)
        return found

    def plans(self, layer: Layer, *, is_benchmarked: bool) -> Iterable[int]:
        """Workspace of each plan, in the order torch tries them."""
        if self.cudnn is not None:
            return self.cudnn.plans(layer, is_benchmarked=is_benchmarked)
        # As the virtual GPU offers by rule (native/libraries/cudnn.c); only cudnn.benchmark tries the last.
        asked = layer.convolution
        ruled = workspace_by_rule(asked, self._capability, self._torch_version)
        largest = largest_workspace(asked, ruled)
        wanted = self._card.get("workspaces", "asked")
        first = {"none": 0, "next": next_workspace(asked, ruled)}.get(wanted, ruled)
        return first, 0, largest
