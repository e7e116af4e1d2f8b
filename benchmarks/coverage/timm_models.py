"""Architectures of timm: the smallest of every file of timm.models, then round by round the next smallest of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import timm
import torch
from benchmarks.coverage.training import Task, classes, generator
from torch import Tensor, nn
from torch.nn import functional

WANTED = 420
MOST_PARAMETERS = 30_000_000
"""The CPU really computes them; only the smallest of a file may be larger."""
CLASSES = 10
# Not 32: it leaves stages of stride 32 a single token, whose odd strides torch's own attention refuses on a GPU.
SIZES = (64, 96, 128, 160, 192, 224, 256, 288, 384)


def names(cache: Path, *, wanted: int = WANTED) -> list[str]:
    families: dict[str, list[str]] = {}
    for name, family, parameters in sorted(sized(cache), key=lambda row: (row[2], row[0])):
        if family not in families or parameters <= MOST_PARAMETERS:
            families.setdefault(family, []).append(name)
    chosen: list[str] = []
    for rank in range(max(map(len, families.values()))):
        chosen += [members[rank] for _, members in sorted(families.items()) if rank < len(members)]
        if len(chosen) >= wanted:
            break
    return sorted(chosen)


def sized(cache: Path) -> list[tuple[str, str, int]]:
    """(architecture, file, number of parameters), counted on the meta device once per version of timm."""
    path = cache / f"timm-{timm.__version__}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(2) as pool:
            path.write_text(json.dumps(list(pool.map(size_of, timm.list_models(), chunksize=16))))
    return [tuple(row) for row in json.loads(path.read_text())]


def size_of(name: str) -> tuple[str, str, int]:
    model = on_meta(name)
    return name, timm.models.model_entrypoint(name).__module__.rpartition(".")[2], num_parameters(model)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(name: str, size: int | None = None) -> nn.Module:
    with torch.device("meta"):
        return created(name, size)


def created(name: str, size: int | None) -> nn.Module:
    """Those whose positions or windows are tied to the image's size take it as an option, the others refuse it."""
    options: dict[str, Any] = {"pretrained": False, "num_classes": CLASSES}
    if size is not None:
        try:
            return timm.create_model(name, img_size=size, **options)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
    return timm.create_model(name, **options)


def sizes(name: str) -> Iterator[int]:
    """Those at which the model can be made and called on the meta device, smallest first; then its own."""
    config = timm.models.get_pretrained_cfg(name)
    own, smallest = config.input_size[-1], (config.min_input_size or (SIZES[0],))[-1]
    yield from (size for size in sorted({*SIZES, smallest}) if smallest <= size < own and accepts(name, size))
    yield own


def accepts(name: str, size: int) -> bool:
    try:
        on_meta(name, size).train()(torch.empty(2, channels(name), size, size, device="meta"))
    except Exception:  # whatever it says, this size is not for it
        return False
    return True


def channels(name: str) -> int:
    return timm.models.get_pretrained_cfg(name).input_size[0]


def build(name: str, size: int) -> Task:
    model = created(name, size)
    pictures = torch.rand(2, channels(name), size, size, generator=generator())

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        heads = list(tensors_of(model(batch["images"])))
        return torch.stack([functional.cross_entropy(head, batch["labels"]) for head in heads]).sum()

    return Task(model=model, batch={"images": pictures, "labels": classes(CLASSES, 2)}, loss=loss)


def tensors_of(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    else:
        for each in output:
            yield from tensors_of(each)


def version() -> str:
    return timm.__version__
