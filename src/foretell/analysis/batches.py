"""Which batch each training step got, and which of them needed the most memory (docs/epoch.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median_low, mode

from foretell.records import Batch, Batches, BatchShape, OutOfMemory, OutsidePeak, StepPeak, TensorShape
from foretell.trace import BatchMark, Trace

_MOST_SHAPES = 20


def batches_of(
    trace: Trace, steps: Iterable[StepPeak], outside: Iterable[OutsidePeak], oom: OutOfMemory | None
) -> Batches | None:
    """None if the run did not train, or did not record batches."""
    if trace.loaders is None or not (trace.steps or oom):
        return None
    seen = training_batches(trace)
    if not seen:
        return Batches(num=0)
    by_step = _by_step([batch for batch in seen if batch.is_trained])
    peaks = {step.index: step.peak_allocated_bytes for step in steps}
    for each in outside:
        if each.kind == "unfinished":
            peaks[len(trace.steps)] = each.peak_allocated_bytes
    largest = {step: max(batches, key=lambda batch: batch.num_elements) for step, batches in by_step.items()}
    own = [peaks[step] for step in largest if step in peaks]
    possible = largest_possible(trace)
    return Batches(
        num=sum(batch.is_trained for batch in seen),
        num_in_epoch=(trace.loaders or ())[seen[0].loader].length,
        num_epochs=len({batch.loader for batch in seen}),
        num_looked_at=_num_looked_at(seen),
        num_shapes=len({batch.shape for batch in seen}),
        median_peak_allocated_bytes=median_low(own) if own else None,
        worst=_worst(trace, largest, peaks, oom),
        shapes=_shapes(trace, seen, largest, peaks),
        largest_possible=possible,
        is_largest_trained=bool(possible) and is_trained(trace, possible),
    )


def training_batches(trace: Trace) -> list[BatchMark]:
    """The batches of all passes that were followed by backward passes."""
    is_training = [loader.is_training for loader in trace.loaders or ()]
    return [batch for batch in trace.batches if is_training[batch.loader]]


def largest_possible(trace: Trace) -> tuple[TensorShape, ...]:
    """What no batch of any shuffle exceeds, if batches are padded to their longest sample; empty if that is not known,
    or the samples are not shuffled.

    In an epoch with all samples, each sample is in a batch that is padded to at least its size.
    """
    whole = [number for number, loader in enumerate(trace.loaders or ()) if loader.is_training]
    for number in whole:
        first = {batch.index: batch for batch in trace.batches if batch.loader == number}
        batches = [first[index] for index in sorted(first)]
        drawn = [sample for batch in batches for sample in batch.samples]
        if len(set(drawn)) == (trace.loaders or ())[number].num_samples and drawn != sorted(drawn):
            return _bound([trace.batch_shapes[batch.shape] for batch in batches])
    return ()


def is_trained(trace: Trace, tensors: tuple[TensorShape, ...]) -> bool:
    """Whether a batch of these shapes was."""
    wanted = [tensor.shape for tensor in tensors]
    shapes = {batch.shape for batch in training_batches(trace) if batch.is_trained}
    return any([tensor.shape for tensor in trace.batch_shapes[shape]] == wanted for shape in shapes)


def differ_in_number_only(trace: Trace) -> bool:
    """Whether batches differ only in how many samples they have, and some had as many as the loader puts together: the
    last one of a pass is smaller."""
    loaders = trace.loaders or ()
    seen = training_batches(trace)
    shapes = [[tensor.shape for tensor in trace.batch_shapes[batch.shape]] for batch in seen]
    most = max((shape[0] for tensors in shapes for shape in tensors if shape), default=0)
    is_full = any(loaders[batch.loader].batch_size == most for batch in seen)
    return is_full and len({tuple(shape[1:] for shape in tensors) for tensors in shapes}) == 1


def _bound(batches: Sequence[tuple[TensorShape, ...]]) -> tuple[TensorShape, ...]:
    """The largest size of each dimension; empty if the batches do not have the same tensors."""
    if len({tuple((tensor.name, len(tensor.shape)) for tensor in tensors) for tensors in batches}) != 1:
        return ()
    return tuple(
        replace(same[0], shape=tuple(map(max, zip(*(tensor.shape for tensor in same), strict=True))))
        for same in zip(*batches, strict=True)
    )


def _num_looked_at(batches: Sequence[BatchMark]) -> int:
    """Those of a pass that was looked at to its end, also the ones that had been trained on before."""
    passes = {batch.loader for batch in batches if not batch.is_trained}
    return len({(batch.loader, batch.index) for batch in batches if batch.loader in passes})


def _by_step(batches: Sequence[BatchMark]) -> dict[int, list[BatchMark]]:
    """The batches that each step was computed from.

    accelerate, and prefetchers like timm's, are a batch ahead: the first step then gets one more batch than the others,
    and each batch is for the step after the one in which it was delivered.
    """
    found: dict[int, list[BatchMark]] = {}
    for number in sorted({batch.loader for batch in batches}):
        of_pass = [batch for batch in batches if batch.loader == number]
        counts = list(Counter(batch.step for batch in of_pass).items())
        num_ahead = max(0, counts[0][1] - mode(count for _, count in counts[1:])) if len(counts) > 1 else 0
        at = 0
        for step, count in counts:
            count -= num_ahead if at == 0 else 0
            found.setdefault(step, []).extend(of_pass[at : at + count])
            at += count
        if at < len(of_pass):
            found.setdefault(counts[-1][0] + 1, []).extend(of_pass[at:])
    return {step: batches for step, batches in found.items() if batches}


def _worst(
    trace: Trace, largest: dict[int, BatchMark], peaks: dict[int, int], oom: OutOfMemory | None
) -> Batch | None:
    if oom is not None and oom.step in largest and not oom.is_together:
        step = oom.step
    else:
        step = max(largest, key=lambda step: peaks.get(step, 0))
    batch = largest[step]
    return Batch(
        index=batch.index,
        epoch=sum(loader.is_training for loader in (trace.loaders or ())[: batch.loader]),
        step=step,
        tensors=trace.batch_shapes[batch.shape],
        num_elements=batch.num_elements,
        samples=batch.samples,
        num_samples=batch.num_samples,
        peak_allocated_bytes=peaks.get(step),
    )


def _shapes(
    trace: Trace, seen: Sequence[BatchMark], largest: dict[int, BatchMark], peaks: dict[int, int]
) -> tuple[BatchShape, ...]:
    num_elements = {batch.shape: batch.num_elements for batch in seen}
    counts = Counter(batch.shape for batch in seen)
    highest: dict[int, int] = {}
    for step, batch in largest.items():
        if step in peaks:
            highest[batch.shape] = max(highest.get(batch.shape, 0), peaks[step])
    order = sorted(counts, key=lambda shape: (-num_elements[shape], shape))
    return tuple(
        BatchShape(
            tensors=trace.batch_shapes[shape],
            num_elements=num_elements[shape],
            num_batches=counts[shape],
            peak_allocated_bytes=highest.get(shape),
        )
        for shape in order[:_MOST_SHAPES]
    )
