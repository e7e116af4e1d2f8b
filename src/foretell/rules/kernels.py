"""What CUDA's kernels take beside their results, from shapes alone: for estimates that run no CUDA code, a recording
(engines/imported) or a device in Python (engines/python_cuda). Standard library only."""

from __future__ import annotations

from typing import Any, NamedTuple

# --- sorting ----------------------------------------------------------------------------------------------------------

_DIGIT_BITS = 8


def radix_sort_bytes(num: int, key_bytes: int, value_bytes: int, num_bits: int | None = None) -> int:
    """The scratch of CUB's radix sort (read off torch 2.15): a histogram and counters for each digit, a row of both for
    each tile, and a second copy of keys and values, where there is more than one digit."""
    num_digits = -(-(num_bits or 8 * key_bytes) // _DIGIT_BITS)
    tile = 3072 if key_bytes + value_bytes <= 12 else 3456
    fixed = 511 + 2048 * num_digits + 1024 * -(-num // tile)
    return fixed if num_digits == 1 else fixed + _up(num * key_bytes, 256) + _up(num * value_bytes, 256)


FEW_INDICES = 3072


class EmbeddingGradient(NamedTuple):
    """In bytes; each group is given back before the next is taken, `indices` at the end."""

    indices: tuple[int, ...]
    """Sorted, and the order they were in."""
    sorting: tuple[int, ...]
    sums: tuple[int, ...]
    """Taken when the result is there."""


def embedding_gradient(num: int, width: int, num_rows: int, index_bytes: int) -> EmbeddingGradient:
    """embedding_dense_backward_cuda and EmbeddingBackwardKernel.cu: indices are sorted by as many bits as the rows
    need, and sums of parts are kept in single precision. Up to FEW_INDICES a kernel that needs nothing adds them up,
    unless gradients are scaled by how often an index occurs."""
    segments = min(num, num_rows)
    partial = num // 10 + segments
    scratch = sorted_indices_bytes(num, num_rows, index_bytes)
    places = (num, segments, segments, partial)
    return EmbeddingGradient(
        indices=(index_bytes * num, index_bytes * num),
        sorting=(index_bytes * num, scratch),
        sums=(*(index_bytes * count for count in places), 4 * partial * width),
    )


def sorted_indices_bytes(num: int, num_rows: int, index_bytes: int) -> int:
    """The scratch of a sort of indices with their places, by as many bits as the rows need."""
    return radix_sort_bytes(num, index_bytes, index_bytes, max(1, (num_rows - 1).bit_length()))


SMALL_SORT = 4096
_FEW_SEGMENTS = 128
_LARGE_SEGMENT = 1_000_000


def sort_bytes(num_segments: int, length: int, key_bytes: int, *, is_in_rows: bool = True) -> list[int]:
    """Sort.cpp and SortStable.cu, beside values and indices: what is held at the same time. What does not lie in rows
    is sorted in rows and copied back."""
    num = num_segments * length
    if not is_in_rows and length > SMALL_SORT:
        return [key_bytes * num, key_bytes * num, 8 * num, *sort_bytes(num_segments, length, key_bytes)]
    if length <= SMALL_SORT:
        return [8 * length]
    if num_segments == 1 or length >= _LARGE_SEGMENT:
        return [8 * length, radix_sort_bytes(length, key_bytes, 8)]
    if num_segments < _FEW_SEGMENTS:
        return [8 * num, 8 * num, key_bytes * num, radix_sort_bytes(num, key_bytes, 8)]
    return [8 * num, 255 + _up(key_bytes * num, 256) + _up(8 * num, 256)]


# --- norms ------------------------------------------------------------------------------------------------------------


def layer_norm_parts(rows: int, width: int, num_sms: int) -> int:
    """layer_norm_kernel.cu: in how many parts the gradients of weight and bias are summed where short rows are many;
    0: at once."""
    if rows <= 65536 or width // 32 >= num_sms // 2:
        return 0
    return min(32768 // -(-width // 32), -(-rows // 32))


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# --- reductions -------------------------------------------------------------------------------------------------------

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256
"""Of one thread."""
_VECTOR = 4


def reduction_buffer(
    size: Any, stride: Any, dims: Any, element: int, num_sms: int, threads_per_sm: int
) -> tuple[int, int] | None:
    """Reduce.cuh, setReduceConfig: where few results are made of many numbers, blocks of threads share a result. What
    they write into, and their semaphores; None: every result is made by one block."""
    rank = len(size)
    wanted = [dims] if isinstance(dims, int) else dims
    reduced = {dim % rank for dim in wanted} if wanted else set(range(rank))
    inner, outer = (
        _merged(sorted((stride[n], size[n]) for n in range(rank) if size[n] > 1 and (n in reduced) == is_reduced))
        for is_reduced in (True, False)
    )
    inputs, outputs = 1, 1
    for _, extent in inner:
        inputs *= extent
    for _, extent in outer:
        outputs *= extent
    is_along_rows = not outer or (bool(inner) and inner[0][0] < outer[0][0])
    fastest, slowest = (inputs, outputs) if is_along_rows else (outputs, inputs)
    first_stride = (inner[0][0] if inner else 1) if is_along_rows else outer[0][0]
    vector = 1
    if first_stride == 1:
        if is_along_rows:
            if fastest > 128 and len(inner) == 1:
                fastest //= _VECTOR
        else:
            vector = _VECTOR
            for number in (outer[0][1], *(step for step, _ in (*inner, *outer[1:]))):
                while number % vector:
                    vector //= 2
            fastest //= vector
    most = _MAX_THREADS // vector
    wide, high = (min(_power_of_two(max(each, 1)), most) for each in (fastest, slowest))
    height = min(high, most // min(wide, _WARP))
    width = min(wide, most // height)
    shared = width if is_along_rows else 1
    spread = 1 if is_along_rows else width
    values = -(-inputs // shared)
    is_split = values >= min(height * _MIN_VALUES, _MAX_VALUES)
    if not is_split:
        return None
    values = -(-inputs // (shared * height))
    grid = -(-(outputs // vector) // spread)
    target = num_sms * (threads_per_sm // (width * height))
    if values < _MAX_VALUES or grid > target:
        return None
    shares = max(min(-(-target // grid), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))
    if shares <= 1:
        return None
    per_share = 1 if is_along_rows else width * vector
    return element * outputs * shares * per_share, 4 * grid


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stride, extent), the smallest stride first; what lies behind each other is one dimension."""
    merged: list[tuple[int, int]] = []
    for stride, extent in dims:
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * extent)
        else:
            merged.append((stride, extent))
    return merged


def _power_of_two(number: int) -> int:
    return 1 << number.bit_length() - 1
