"""What memory the plans of a convolution ask for: an installed cuDNN's own answers, else foretell's rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import Any

from .cudnn import Cudnn, CudnnError, Layer, library_of
from .recording import foretell_module

_ELEMENT_BYTES = {"float64": 8, "float32": 4}


class Workspaces:
    def __init__(self, run: Any, torch: Any, card: dict[str, Any], torch_version: tuple[int, ...]) -> None:
        self._run = run
        self._torch = torch
        self._card = card
        self._capability = (int(card["major"]), int(card["minor"]))
        self._torch_version = torch_version
        self._rule = foretell_module("overhead.convolutions").convolution_workspace

    @cached_property
    def cudnn(self) -> Cudnn | None:
        """Looked for with the first convolution: loading it takes a moment, and some hundred MiB."""
        path = library_of(self._torch)
        if path is None:
            return None
        try:
            found = Cudnn(path, self._card)
        except (OSError, AttributeError, CudnnError):
            return None
        self._run.journal.write("cudnn", version=found.version)
        return found

    def plans(self, layer: Layer) -> Iterable[int]:
        """In the order in which torch tries them."""
        if self.cudnn is not None:
            return self.cudnn.plans(layer)
        # What the virtual GPU offers by rule (virtual/native/cudnn.c): the last is only tried by cudnn.benchmark.
        sizes = [prod(each.sizes) for each in (layer.x, layer.y, layer.w)]
        return self._ruled(layer), 0, 2 * sum(sizes) * _ELEMENT_BYTES.get(layer.dtype, 2)

    def _ruled(self, layer: Layer) -> int:
        return int(
            self._rule(
                self._torch_version,
                compute_capability=self._capability,
                direction=layer.direction,
                x=layer.x.sizes,
                y=layer.y.sizes,
                w=layer.w.sizes,
                stride=layer.stride,
                padding=layer.padding,
                dilation=layer.dilation,
                groups=layer.groups,
                element_bytes=_ELEMENT_BYTES.get(layer.dtype, 2),
                is_channels_last=layer.is_channels_last,
            )
        )
