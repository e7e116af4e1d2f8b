"""What the operators of a forward pass compute and move, summed up by kind and size: the time of a step follows from it
(`foretell.formulas.speed`). Out come the fields of `foretell.features.Work`."""

from __future__ import annotations

from math import prod
from typing import Any

_TILE = 128
_KINDS = {
    "convolution": ("convolution", "conv_depthwise2d", "_conv_depthwise2d", "_slow_conv2d_forward"),
    "product": ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation", "_cudnn_rnn", "lstm", "gru"),
    "norm": (
        "native_layer_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_group_norm",
        "_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm", "_fused_rms_norm",
    ),
    "softmax": ("_softmax", "_log_softmax", "_safe_softmax"),
    "pool": (
        "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "mean", "sum", "amax",
        "upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d",
    ),
    "copy": ("clone", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd", "roll", "_unsafe_view", "repeat"),
    "lookup": ("embedding", "index", "gather", "index_select", "scatter", "nll_loss_forward", "index_add"),
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


class Sums:
    """Adds up operators. Products and convolutions of one kind are kept apart by what they compute for each byte, and
    by how many tiles they fill: both decide how fast a card is."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], list[int]] = {}

    def add(self, name: str, inputs: list[Any], outputs: list[Any], weight_bytes: int, *, is_view: bool) -> None:
        """`inputs` and `outputs`: tensors. `weight_bytes`: of those inputs that are parameters or buffers."""
        if is_view:
            self._count(("view", 0), 0, 0, 0, 0)
            return
        kind = "attention" if name.startswith("_scaled_dot_product") else _KIND_OF.get(name, "elementwise")
        moved = sum(each.numel() * each.element_size() for each in (*inputs, *outputs))
        element_bytes = outputs[0].element_size() if outputs else 4
        flops, tiles = 0, 0
        if kind in ("product", "convolution", "attention") and outputs:
            try:
                kind, flops, tiles = _computed(kind, inputs, outputs[0])
            except IndexError:  # fewer dimensions than any that is known
                kind = "elementwise"
        size = (_half_bits(flops / max(1, moved)), _half_bits(tiles)) if flops else ()
        self._count((kind, element_bytes, *size), flops, max(0, moved - weight_bytes), weight_bytes, tiles)

    def _count(self, key: tuple[Any, ...], *numbers: int) -> None:
        sums = self._found.setdefault(key, [0] * 5)
        sums[0] += 1
        for at, number in enumerate(numbers, start=1):
            sums[at] += number

    def plain(self) -> list[dict[str, Any]]:
        names = ("calls", "flops", "bytes", "weight_bytes", "tiles")
        return [
            {"kind": key[0], "element_bytes": key[1], **dict(zip(names, sums, strict=True))}
            for key, sums in sorted(self._found.items())
        ]


def _computed(kind: str, inputs: list[Any], output: Any) -> tuple[str, int, int]:
    """The kind, more exactly; FLOPs; and blocks of 128 x 128 results."""
    if kind == "attention":
        query, key = inputs[0], inputs[1]
        rows = prod(query.shape[:-1])
        return kind, 4 * rows * key.shape[-2] * query.shape[-1], _parts(rows)
    if kind == "product":
        inner = inputs[-2].shape[-1]
        batch = prod(output.shape[:-2])
        tiles = batch * _parts(output.shape[-2] if output.dim() > 1 else 1) * _parts(output.shape[-1])
        return kind, 2 * output.numel() * inner, tiles
    given, weight = inputs[0], inputs[1]
    is_transposed = output.dim() > 1 and weight.shape[0] == given.shape[1] != output.shape[1]
    positions = given if is_transposed else output
    channels = max(1, weight.shape[0])
    is_grouped = not is_transposed and weight.shape[1] != given.shape[1]
    flops = 2 * positions.numel() * prod(weight.shape[1:])
    groups = given.shape[1] // max(1, weight.shape[1]) if is_grouped else 1
    tiles = groups * _parts(positions.numel() // channels) * _parts(channels // max(1, groups))
    name = "grouped_convolution" if is_grouped else "convolution"
    is_last = given.dim() == 4 and given.stride(1) == 1 and given.shape[1] > 1 and not given.is_contiguous()
    return f"{name}_nhwc" if is_last else name, flops, tiles


def _parts(size: int) -> int:
    return max(1, -(-int(size) // _TILE))


def _half_bits(value: float) -> int:
    """The power of four below it."""
    return max(0, int(value).bit_length() - 1) // 2
