"""Reads the text that torchsummary and torchinfo print of a model. What autograd saves is not in it."""

from __future__ import annotations

import re
from math import prod

from foretell.errors import UsageError
from foretell.features import JobFeatures, Layer

_ROW = re.compile(
    r"^[\s│├└─|]*(?P<kind>[A-Z][A-Za-z0-9]*)(?:-[0-9]+|\s*\([^)]*\)[:\s]*[0-9-]*|:\s*[0-9-]+)*\s+"
    r"(?P<shapes>\[[^\]]*\](?:\s+\[[^\]]*\])*)\s+(?P<parameters>[0-9][0-9,]*|--|\(recursive\))"
)
_WITHOUT_PARAMETERS = re.compile(
    "(Leaky|C|S|R|P)?E?(ReLU|ELU)|GELU|GLU|SiLU|Mish|Hard|Sigmoid|LogSigmoid|Tanh|Soft|LogSoft|Threshold|.*Dropout|"
    "(Adaptive)?(Max|Avg)Pool|.*Norm|Flatten|Unflatten|Identity|Upsample|.*Pad[123]d|PixelShuffle"
)
_BATCH = re.compile(r"batch[ _-]?size\s*[:=]\s*([0-9]+)", re.IGNORECASE)
_TOTAL = re.compile(r"total params:\s*([0-9][0-9,]*)", re.IGNORECASE)
_TRAINABLE = re.compile(r"^\s*trainable params:\s*([0-9][0-9,]*)", re.IGNORECASE | re.MULTILINE)
_LARGEST_TEXT = 4 << 20
_MOST_DIGITS = 15
_LONG_NUMBER = re.compile(rf"[0-9](?:,?[0-9]){{{_MOST_DIGITS}}}")
_LARGEST_OUTPUT = 10**_MOST_DIGITS


def read_summary(text: str, *, name: str = "summary", batch_size: int | None = None) -> JobFeatures:
    """Each layer's class, output shape and parameters. A batch dimension of -1 is replaced by `batch_size`."""
    if len(text) > _LARGEST_TEXT:
        raise UsageError(f"{name}: a summary of {len(text)} characters is too long; at most {_LARGEST_TEXT} are read.")
    if _LONG_NUMBER.search(text):
        raise UsageError(f"{name}: not a summary of a model: it has a number of more than {_MOST_DIGITS} digits.")
    found = _BATCH.search(text)
    written = int(found[1]) if found else None
    rows = [match for match in map(_ROW.match, text.splitlines()) if match is not None]
    total = _TOTAL.search(text)
    if not rows or total is None:
        raise UsageError(
            f"{name}: not a summary of a model. Known formats: torchsummary and torchinfo, with a row for each layer "
            "(class, [output shape], parameters) and a line `Total params: N`."
        )
    layers, batch = [], batch_size or written
    is_tree = any(each in text for each in "├└")
    for match, following in zip(rows, [*rows[1:], None], strict=True):
        shape = [int(each) for each in re.findall(r"-?[0-9]+", match["shapes"].rpartition("[")[2])]
        if shape and shape[0] == -1:
            if batch is None:
                raise UsageError(f"{name}: the summary has no batch size. Give one: --batch-size N.")
            shape[0] = batch
        elif shape and batch_size is not None:
            written = written or shape[0]
            shape[0] = batch_size
        elif shape:
            batch = batch or shape[0]
        count = match["parameters"].replace(",", "")
        parameters = int(count) if count.isdecimal() else 0
        if is_tree:
            is_leaf = following is None or _indent(following.string) <= _indent(match.string)
        else:  # torchsummary prints blocks like layers, without parameters
            is_leaf = parameters > 0 or _WITHOUT_PARAMETERS.match(match["kind"]) is not None
        if prod(shape) > _LARGEST_OUTPUT:
            raise UsageError(f"{name}: {match['kind']} has an output of {prod(shape):.1e} elements.")
        if is_leaf and shape and min(shape) > 0:
            layers.append(Layer(kind=match["kind"], activations=prod(shape), parameters=parameters))
    parameters = int(total[1].replace(",", ""))
    trainable = _TRAINABLE.search(text)
    return JobFeatures(
        source="summary",
        name=name,
        layers=tuple(layers),
        batch_size=batch,
        parameters=parameters,
        parameter_bytes=4 * parameters,
        trainable_bytes=4 * int(trainable[1].replace(",", "")) if trainable else None,
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" │├└─|"))
