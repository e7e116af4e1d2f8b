"""Builds and trains the jobs of the data set, in a process that sees the virtual GPU. Torch is imported here.

A job is trained for a few steps, as in the scripts of `evaluation/workloads`, whose nets it uses.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foretell.learn.draws import Draw

_INITIALIZERS = (
    "uniform_", "normal_", "trunc_normal_", "constant_", "ones_", "zeros_", "eye_", "dirac_", "xavier_uniform_",
    "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_",
)  # fmt: skip
STEPS = 3
_SKIPS_NOTHING = 0.999


@dataclass(frozen=True, slots=True)
class Built:
    model: nn.Module
    batch: Callable[..., tuple[Any, torch.Tensor | None]]
    """From a batch size (and, of texts, a length) to what the model is called with and its labels, on the CPU."""


def build(draw: Draw) -> Built:
    """Weights are not initialized: values play no part."""
    return _BUILDERS[draw.kind](draw)


def train(draw: Draw, *, loads: bool = True) -> None:
    """On the current card, from the model's construction to its third step. Without `loads`, each batch is made once
    and stays on the card, so that time is that of training alone."""
    built = build(draw)
    dtype = torch.bfloat16 if draw.precision == "bfloat16" else torch.float32
    layout = torch.channels_last if draw.is_channels_last else torch.preserve_format
    model = built.model.to("cuda", dtype, memory_format=layout).train()

    def on_card(*sizes: int) -> tuple[Any, Any]:
        inputs, labels = built.batch(*sizes)
        return _moved(inputs, dtype, layout), _moved(labels)

    on_card = on_card if loads else functools.cache(on_card)
    if draw.has_summary:  # what tools that print a summary do first
        _outputs(model, _moved(built.batch(2)[0], dtype))
    if draw.has_rehearsal:
        rehearsed = _moved(built.batch(draw.batch_size)[0], dtype)  # stays
        _outputs(model, rehearsed)
        _outputs(model, rehearsed)
    optimizer = make_optimizer(draw.optimizer, model)
    criterion = nn.CrossEntropyLoss()
    for length in draw.lengths or (None,) * STEPS:
        inputs = labels = None
        if draw.zero_grad == "before_forward":
            optimizer.zero_grad(set_to_none=not draw.keeps_gradients)
        inputs, labels = on_card(draw.batch_size) if length is None else on_card(draw.batch_size, length)
        with torch.autocast("cuda", torch.bfloat16, enabled=draw.precision == "amp"):
            outputs = _outputs(model, inputs)
            loss = criterion(outputs, labels) if labels is not None else outputs
        if draw.zero_grad == "before_backward":
            optimizer.zero_grad(set_to_none=not draw.keeps_gradients)
        loss.backward()
        optimizer.step()
        if draw.zero_grad == "later":
            optimizer.zero_grad(set_to_none=not draw.keeps_gradients)


def train_named(question: dict[str, Any]) -> None:
    """One backward pass of a model that a user names (`timm:NAME`, `torchvision:NAME`, `package.module:function`), or
    of a Hugging Face config."""
    if "config" in question:
        built = _of_config(dict(question["config"]), int(question["length"]))
    else:
        built = _named(str(question["model"]), question["input_shape"])
    model = built.model.cuda().train()
    make_optimizer(question["optimizer"], model)
    inputs, labels = built.batch(int(question["batch_size"]))
    outputs = _outputs(model, _moved(inputs))
    loss = nn.functional.cross_entropy(outputs, _moved(labels)) if labels is not None else outputs.float().mean()
    loss.backward()


def _named(name: str, input_shape: list[int] | None) -> Built:
    package, _, function = name.partition(":")
    shape = input_shape or [3, 224, 224]
    if package in ("timm", "torchvision"):
        size: dict[str, Any] = {"model": function, "image_size": shape[-1]}
        if package == "timm" and input_shape is None:
            return _timm(Draw(kind="timm", options=size, batch_size=1))
        if package == "torchvision":
            built = _torchvision(Draw(kind="torchvision", options=size, batch_size=1))
            return built if len(shape) == 3 else Built(built.model, lambda batch: (torch.randn(batch, *shape), None))
        import timm

        return Built(timm.create_model(function), lambda batch: (torch.randn(batch, *shape), None))
    if input_shape is None:
        raise ValueError(f"the shape of one sample is needed for {name}: --input-shape 3,224,224")
    sys.path.insert(0, os.getcwd())
    model = getattr(importlib.import_module(package), function)()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name}() gives {type(model).__name__}, not a torch.nn.Module")
    return Built(model, lambda batch: (torch.randn(batch, *shape), None))


def _of_config(values: dict[str, Any], length: int) -> Built:
    import transformers

    architecture = next(iter(values.get("architectures") or ()), None)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    kind = getattr(transformers, architecture or "", None)
    model = kind(config) if kind is not None else transformers.AutoModelForCausalLM.from_config(config)

    def batch(size: int) -> tuple[Any, None]:
        tokens = torch.randint(0, config.vocab_size, (size, length))
        return {"input_ids": tokens, "labels": tokens} if "LM" in type(model).__name__ else {"input_ids": tokens}, None

    return Built(model, batch)


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """By its class in torch.optim; `SGD-momentum` has one, and `Adam-for` works tensor by tensor. Adafactor is that of
    transformers."""
    kind, _, option = name.partition("-")
    if kind == "Adafactor":
        import transformers

        return transformers.Adafactor(model.parameters(), lr=1e-3, relative_step=False)
    given: dict[str, dict[str, Any]] = {"momentum": {"momentum": 0.9}, "for": {"foreach": False}, "": {}}
    optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **given[option])
    return optimizer


@contextlib.contextmanager
def without_initialization() -> Iterator[None]:
    """Random numbers and initial weights are left out: on the virtual GPU they decide nothing. A single random number
    on the CPU does: models skip a layer if it is small."""

    def leave(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor

    def zeros(*args: Any, size: Any = None, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(args[-1] if size is None else size, dtype=dtype or torch.int64)

    def uniform(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = torch.empty(*args, **kwargs)
        return made.fill_(_SKIPS_NOTHING) if made.numel() == 1 else made

    replaced: list[tuple[Any, str, Any]] = [(nn.init, name, leave) for name in _INITIALIZERS]
    replaced += [(torch, "randn", torch.empty), (torch, "rand", uniform), (torch, "randint", zeros)]
    replaced += [(torch.Tensor, name, leave) for name in ("normal_", "uniform_", "trunc_normal_", "erfinv_")]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced if hasattr(owner, name)]
    for owner, name, replacement in replaced:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _outputs(model: nn.Module, inputs: Any) -> torch.Tensor:
    outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    if getattr(outputs, "loss", None) is not None:
        outputs = outputs.loss
    outputs = getattr(outputs, "logits", outputs)
    if isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    assert isinstance(outputs, torch.Tensor)
    return outputs


def _moved(
    value: Any, dtype: torch.dtype = torch.float32, layout: torch.memory_format = torch.preserve_format
) -> Any:
    """On the card; floating-point numbers as the model has them."""
    if isinstance(value, dict):
        return {name: _moved(each, dtype, layout) for name, each in value.items()}
    if value is None:
        return None
    value = value.cuda()
    return value.to(dtype, memory_format=layout) if value.is_floating_point() else value


# --- kinds of jobs ----------------------------------------------------------------------------------------------------


def _mlp(draw: Draw) -> Built:
    from foretell.evaluation.workloads import mlp

    options = argparse.Namespace(**draw.options)
    classes = options.output_size

    def batch(size: int) -> tuple[Any, torch.Tensor]:
        return torch.randn(size, options.input_size), torch.randint(0, max(2, classes), (size,))

    return Built(mlp.build(options), batch)


def _cnn(draw: Draw) -> Built:
    from foretell.evaluation.workloads import synthetic_cnn

    options = argparse.Namespace(**draw.options)
    return Built(
        synthetic_cnn.Net(options), _images(options.input_channels, options.image_size, options.num_classes)
    )


def _encoder(draw: Draw) -> Built:
    from foretell.evaluation.workloads import transformer_encoder

    options = argparse.Namespace(**draw.options)

    def batch(size: int) -> tuple[Any, torch.Tensor]:
        tokens = torch.randint(0, options.vocab_size, (size, options.seq_length))
        return tokens, torch.randint(0, options.num_classes, (size,))

    return Built(transformer_encoder.Classifier(options), batch)


def _torchvision(draw: Draw) -> Built:
    import torchvision

    name = str(draw.options["model"])
    given = {"init_weights": False, "aux_logits": False} if name in ("inception_v3", "googlenet") else {}
    return Built(torchvision.models.get_model(name, **given), _images(3, int(draw.options["image_size"] or 224), 1000))


def _timm(draw: Draw) -> Built:
    import timm

    model = timm.create_model(str(draw.options["model"]))
    size = timm.data.resolve_model_data_config(model)["input_size"]
    return Built(model, _images(size[0], size[-1], 1000))


def _language_model(draw: Draw) -> Built:
    import transformers

    options: dict[str, Any] = dict(draw.options)
    length = options.pop("length")
    if "attention_types" in options:
        options["attention_types"] = json.loads(options["attention_types"])
    config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)

    def batch(size: int, length: int = length) -> tuple[Any, None]:
        tokens = torch.randint(0, config.vocab_size, (size, length))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}, None

    return Built(transformers.AutoModelForCausalLM.from_config(config), batch)


def _images(channels: int, size: int, classes: int) -> Callable[[int], tuple[Any, torch.Tensor]]:
    return lambda batch: (torch.randn(batch, channels, size, size), torch.randint(0, classes, (batch,)))


_BUILDERS: dict[str, Callable[[Draw], Built]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "encoder": _encoder,
    "torchvision": _torchvision,
    "timm": _timm,
    "language_model": _language_model,
}


def main() -> None:
    """`python -m foretell.learn.jobs DRAW`: a drawn job as a training script that loads nothing."""
    from foretell.plain import from_plain, parse_json

    train(from_plain(Draw, parse_json(sys.argv[1])), loads=False)


if __name__ == "__main__":
    main()
