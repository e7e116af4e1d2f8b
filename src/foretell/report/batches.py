"""The batches of the training in words, for every report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from foretell.records import Batch, Batches, Estimate, Orders, TensorShape
from foretell.units import format_bytes

_MOST_TENSORS = 4
_MOST_SAMPLES = 8


def batch_rows(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """A title and a text each: how many batches there were and, if they differ, the worst of them."""
    batches = estimate.batches
    if batches is None or (batches.num == 0 and estimate.ended_early):
        return
    if batches.num == 0:
        yield "batches", "no DataLoader seen"
        return
    yield "batches", _count(batches)
    if batches.worst is not None and batches.num_shapes > 1:
        yield "worst batch", _worst(estimate, batches, batches.worst)
        yield "", shape_words(batches.worst.tensors)
        if batches.worst.samples:
            yield "", _samples(batches.worst)
    if batches.is_largest_trained and batches.num_shapes > 1:
        yield "", "no other shuffle makes a larger batch, if batches are padded to their longest sample"


def order_words(orders: Orders) -> str:
    """`2 of 200 random orders of 996 steps run out of memory (0.1 to 3.6 %); the others reserve ...`."""
    low, high = (f"{100 * share:.1f}" for share in (orders.oom_low, orders.oom_high))
    count = "none" if orders.num_oom == 0 else f"{orders.num_oom:,}"
    steps = f"{orders.num_steps_moved:,} steps"
    text = f"{count} of {orders.num:,} random orders of {steps} run out of memory ({low} to {high} %)"
    if orders.least_reserved_bytes is None or orders.most_reserved_bytes is None:
        return text
    least, most = format_bytes(orders.least_reserved_bytes), format_bytes(orders.most_reserved_bytes)
    who = "the others" if orders.num_oom else "they"
    return f"{text}; {who} reserve {least}" + (f" to {most}" if least != most else "")


def _count(batches: Batches) -> str:
    if batches.num_looked_at:
        of = f" trained on, {batches.num_looked_at:,} looked at"
    elif batches.num_in_epoch is None:
        of = ""
    else:
        of = f" of {batches.num_in_epoch:,}" if batches.num_epochs == 1 else f" ({batches.num_in_epoch:,} an epoch)"
    shapes = "all of one shape" if batches.num_shapes == 1 else f"of {batches.num_shapes:,} shapes"
    return f"{batches.num:,}{of}, {shapes}"


def _worst(estimate: Estimate, batches: Batches, worst: Batch) -> str:
    of = f" of {batches.num_in_epoch:,}" if batches.num_in_epoch is not None else ""
    epoch = f" in epoch {worst.epoch}" if batches.num_epochs > 1 else ""
    text = f"index {worst.index}{of}{epoch}, step {worst.step}"
    if estimate.oom is not None and estimate.oom.step == worst.step:
        return f"{text}, which ran out of memory"
    if worst.peak_allocated_bytes is None or batches.median_peak_allocated_bytes is None:
        return text
    peak, median = (format_bytes(size) for size in (worst.peak_allocated_bytes, batches.median_peak_allocated_bytes))
    return f"{text}: {peak} allocated; the median step has {median}"


def shape_words(tensors: Sequence[TensorShape]) -> str:
    """`input_ids, labels 8x512 int64; pixels 8x3x224x224 float32`."""
    groups = [
        (f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}", [each.name for each in group if each.name])
        for (shape, dtype), group in groupby(tensors, key=lambda tensor: (tensor.shape, tensor.dtype))
    ]
    words = [f"{', '.join(_shortened(names))} {what}".strip() for what, names in groups[:_MOST_TENSORS]]
    return "; ".join(words) + ("; ..." if len(groups) > _MOST_TENSORS else "")


def _shortened(names: Sequence[str]) -> list[str]:
    return [*names[:_MOST_TENSORS], "..."] if len(names) > _MOST_TENSORS else list(names)


def _samples(worst: Batch) -> str:
    more = ", ..." if worst.num_samples > _MOST_SAMPLES else ""
    count = f" ({worst.num_samples})" if more else ""
    return f"samples {', '.join(map(str, worst.samples[:_MOST_SAMPLES]))}{more}{count}"
