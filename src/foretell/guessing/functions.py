"""`foretell.guess`, and how each kind of target is described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell import api, gpus
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.features import JobFeatures, features_from
from foretell.guessing.answer import GuessedJob, answer
from foretell.guessing.summary import read_summary
from foretell.jobs import Job
from foretell.learn.processes import Worker
from foretell.plain import parse_json
from foretell.protocol.journal import lines_of
from foretell.records import Gpu
from foretell.runs import OUTPUT, Warm, launch
from foretell.units import parse_bytes

_SUMMARY_SUFFIXES = (".txt", ".log", ".md")
_LARGEST_FILE = 64 << 20


def guess(
    target: Any,
    *inputs: Any,
    gpu: str | Gpu = api.DEFAULT_GPU,
    batch_size: int | None = None,
    input_shape: Sequence[int] | None = None,
    length: int | None = None,
    optimizer: str | None = None,
    context: str | int | None = None,
) -> GuessedJob:
    """An instant estimate of the memory a training job needs on a GPU.

    `target` is a torch.nn.Module, with `inputs` for one forward pass (tensors on any device); a command that trains,
    `["train.py", "--batch-size", "64"]`; a `JobFeatures`; or text: a model by name (`torchvision:resnet50`,
    `timm:vit_base_patch16_224`, `package.module:function`), the path of a Hugging Face config or of a summary.
    """
    for name, number in (("batch_size", batch_size), ("length", length)):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number}: must be 1 or more.")
    card = gpus.find(gpu) if isinstance(gpu, str) else gpu
    if isinstance(target, JobFeatures):
        features = target
    elif isinstance(target, str):
        features = describe_text(
            target, card, batch_size=batch_size, input_shape=input_shape, length=length, optimizer=optimizer
        )
    elif isinstance(target, (list, tuple)):
        features = describe_script(api.make_job(target, gpu=card))
    else:
        features = _describe_object(target, inputs, optimizer or "Adam", card)
    if batch_size is not None and features.batch_size not in (None, batch_size):
        features = features.with_batch(batch_size)
    context_bytes = parse_bytes(context) if isinstance(context, str) else context
    return answer(features, card, context_bytes=context_bytes)


def describe_script(job: Job, *, warm: Warm | None = None) -> JobFeatures:
    """Run the script on the virtual GPU up to its first backward pass, and describe what it trains. No step is taken,
    and the card is so large that nothing runs out of memory."""
    options = replace(
        job.options, describe=True, history=False, attribution=False, steps="all", engine="virtual", stdout="file"
    )
    described = replace(job, gpu=api.with_much_memory(job.gpu), options=options)
    with api.scratch() as folder:
        result = launch(described, folder, warm=warm)
        lines = lines_of(folder, "features")
        output = (folder / OUTPUT).read_text(errors="replace") if (folder / OUTPUT).exists() else ""
        problems = lines_of(folder, "unsupported")
    if lines:
        return _checked(lines[0]["features"], "script", " ".join(job.command))
    if problems:
        raise UnsupportedError(f"{problems[0]['what']}. {problems[0]['hint']}")
    last = "\n".join(output.splitlines()[-8:])
    if result.exit_status:
        raise ScriptError(f"the script failed before its first backward pass (exit code {result.exit_status}):\n{last}")
    raise UnsupportedError(
        "the script ended without a backward pass of a model, so there is nothing to guess. Give the script that "
        "trains, or a model by name."
    )


def describe_text(
    target: str,
    gpu: Gpu,
    *,
    batch_size: int | None = None,
    input_shape: Sequence[int] | None = None,
    length: int | None = None,
    optimizer: str | None = None,
) -> JobFeatures:
    """A model by name, or a file: a config, a summary, or a description."""
    path = Path(target)
    if path.suffix == ".json" or path.suffix in _SUMMARY_SUFFIXES:
        text = _read(path)
        if path.suffix in _SUMMARY_SUFFIXES:
            return read_summary(text, name=target, batch_size=batch_size)
        return _describe_json(text, path, gpu, batch_size=batch_size, length=length, optimizer=optimizer)
    if ":" not in target:
        raise UsageError(
            f"{target}: not a script (.py), a model by name (torchvision:resnet50, timm:NAME, package.module:function)"
            ", a Hugging Face config or a description (.json), or a summary (.txt)."
        )
    question = {
        "model": target,
        "batch_size": batch_size or 1,
        "input_shape": list(input_shape) if input_shape else None,
        "optimizer": optimizer or "Adam",
    }
    return _asked(question, gpu, target, "model")


def _describe_json(
    text: str, path: Path, gpu: Gpu, *, batch_size: int | None, length: int | None, optimizer: str | None
) -> JobFeatures:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}.") from None
    if isinstance(values, dict) and "model_type" in values:
        question = {
            "config": values,
            "batch_size": batch_size or 1,
            "length": length or 128,
            "optimizer": optimizer or "AdamW",
        }
        return _asked(question, gpu, str(path), "config")
    if isinstance(values, dict) and "layers" in values:
        return read_description(values, where=str(path))
    raise UsageError(
        f"{path}: neither a Hugging Face config (it has no model_type) nor a description of a job (it has no layers)."
    )


def read_description(values: Any, *, where: str) -> JobFeatures:
    """The fields of a `JobFeatures`, as somebody has typed or saved them."""
    try:
        return features_from({"source": "typed", **values} if isinstance(values, dict) else values)
    except ValueError as error:
        raise UsageError(f"{where}: not a description of a job: {error}.") from None


def _asked(question: dict[str, Any], gpu: Gpu, name: str, source: str) -> JobFeatures:
    with Worker(api.with_much_memory(gpu)) as worker:
        found = worker.ask(question)
    if found.get("features") is None:
        raise UsageError(f"{name}: the model cannot be described: {found.get('problem')}")
    return _checked(found["features"], source, name)


def _checked(description: Any, source: str, name: str) -> JobFeatures:
    try:
        return features_from({"source": source, "name": name, **description})
    except ValueError as error:
        raise UnsupportedError(f"{name}: cannot guess from what was seen of the job: {error}.") from None


def _describe_object(model: Any, inputs: Sequence[Any], optimizer: str, gpu: Gpu) -> JobFeatures:
    if not hasattr(model, "named_parameters"):
        raise UsageError(f"cannot guess from {type(model).__name__}: give a torch.nn.Module, a command, or a name.")
    if not inputs:
        raise UsageError("a model object needs the inputs of one forward pass: foretell.guess(model, batch).")
    from foretell.learn.meta import describe_model

    described = describe_model(model, *inputs, optimizer=optimizer, compute_capability=gpu.compute_capability)
    return _checked(described, "model", type(model).__name__)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UsageError(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: not a config or a summary.")
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from None


__all__ = ["describe_script", "describe_text", "guess", "read_description"]
