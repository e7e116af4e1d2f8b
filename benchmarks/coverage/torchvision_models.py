"""Every model of torchvision: classification, detection, segmentation, video, optical flow.

The quantized ones are left out: they are for inference on a CPU.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torchvision
from benchmarks.coverage.training import Task, classes, generator, images
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

CLASSES = 10
SIZES = (32, 64, 96, 128, 224, 299)
"""Sides of an image, smallest first; the first at which the model trains on the CPU is taken."""


def names() -> list[str]:
    quantized = set(models.list_models(module=models.quantization))
    return [name for name in models.list_models() if name not in quantized]


def sizes(name: str) -> tuple[int, ...]:
    return SIZES


def build(name: str, size: int) -> Task:
    kinds = (
        (models.detection, detection),
        (models.segmentation, segmentation),
        (models.video, video),
        (models.optical_flow, optical_flow),
    )
    for module, make in kinds:
        if name in models.list_models(module=module):
            return make(name, size)
    return classification(name, size)


def created(name: str, size: int, **options: Any) -> nn.Module:
    """The model without weights; one whose shape depends on the image is made for this size."""
    accepted = inspect.signature(models.get_model_builder(name)).parameters
    if "weights_backbone" in accepted:
        options["weights_backbone"] = None
    if name.startswith("vit_"):
        options["image_size"] = size // int(name.rpartition("_")[2]) * int(name.rpartition("_")[2])
    if name.startswith("maxvit"):
        options["input_size"] = (size, size)
    if name in ("inception_v3", "googlenet"):
        options["init_weights"] = False  # scipy's truncated normal takes minutes
    return models.get_model(name, weights=None, **options)


def classification(name: str, size: int) -> Task:
    model = created(name, size, num_classes=CLASSES)
    side = getattr(model, "image_size", size)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        output = model(batch["images"])
        heads = output if isinstance(output, tuple) else (output,)  # GoogLeNet and Inception have auxiliary heads
        return torch.stack([functional.cross_entropy(head, batch["labels"]) for head in heads]).sum()

    return Task(model=model, batch={"images": images(side), "labels": classes(CLASSES, 2)}, loss=loss)


def segmentation(name: str, size: int) -> Task:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        output = model(batch["images"])
        return torch.stack([functional.cross_entropy(each, batch["labels"]) for each in output.values()]).sum()

    batch = {"images": images(size), "labels": classes(CLASSES, 2, size, size)}
    options = {} if name.startswith("lraspp") else {"aux_loss": True}  # LR-ASPP has one head
    return Task(model=created(name, size, num_classes=CLASSES, **options), batch=batch, loss=loss)


def video(name: str, size: int) -> Task:
    frames = 16 if "mvit" in name or name == "s3d" else 4
    size = 224 if "mvit" in name or name == "s3d" else size
    clips = torch.rand(2, 3, frames, size, size, generator=generator())

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["clips"]), batch["labels"])

    model = created(name, size, num_classes=CLASSES)
    return Task(model=model, batch={"clips": clips, "labels": classes(CLASSES, 2)}, loss=loss)


def optical_flow(name: str, size: int) -> Task:
    first = torch.rand(1, 3, 128, 128, generator=generator())

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        flows = model(batch["first"], batch["second"], num_flow_updates=2)
        return torch.stack([flow.abs().mean() for flow in flows]).sum()

    return Task(model=created(name, size), batch={"first": first, "second": first.flip(-1)}, loss=loss)


def detection(name: str, size: int) -> Task:
    side = 128
    options: dict[str, Any] = {"num_classes": CLASSES}
    if "ssd" not in name:
        options |= {"min_size": side, "max_size": side}
    if "keypoint" in name:
        options |= {"num_classes": 2, "num_keypoints": 5}
    pictures = list(images(side))
    targets = [target(side, has_keypoints="keypoint" in name) for _ in pictures]

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return torch.stack([*model(batch["images"], batch["targets"]).values()]).sum()

    return Task(
        model=created(name, side, **options),
        batch={"images": pictures, "targets": targets},
        loss=loss,
        evaluate=lambda model, batch: model(batch["images"]),
    )


def target(side: int, *, has_keypoints: bool) -> dict[str, Tensor]:
    boxes = torch.tensor([[10.0, 12.0, 62.0, 70.0], [30.0, 20.0, 100.0, 90.0]])
    found = {"boxes": boxes, "labels": torch.ones(2, dtype=torch.int64) if has_keypoints else torch.tensor([1, 2])}
    found["masks"] = torch.zeros(2, side, side, dtype=torch.uint8)
    found["masks"][:, 20:60, 30:60] = 1
    if has_keypoints:
        corners = boxes[:, None, :2] + torch.arange(5.0)[None, :, None] * 4
        found["keypoints"] = torch.cat([corners, torch.ones(2, 5, 1)], dim=2)
    return found


def version() -> str:
    return torchvision.__version__
