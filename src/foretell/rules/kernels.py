"""Extra memory of CUDA kernels, from shapes alone: for estimates that run no CUDA code, from a recording
(engines/imported) or a device in Python (engines/python_cuda). Standard library only."""

from __future__ import annotations

from typing import Any, NamedTuple

# --- sorting ----------------------------------------------------------------------------------------------------------

_DIGIT_BITS = 8


def radix_sort_bytes(num: int, key_bytes: int, value_bytes: int, num_bits: int | None = None) -> int:
    """Temporary storage of CUB's radix sort (observed in torch 2.15): a histogram and counters per digit, a row of both
    per tile and, with more than one digit, a second copy of keys and values."""
    num_digits = -(-(num_bits or 8 * key_bytes) // _DIGIT_BITS)
    tile = 3072 if key_bytes + value_bytes <= 12 else 3456
    fixed = 511 + 2048 * num_digits + 1024 * -(-num // tile)
    return fixed if num_digits == 1 else fixed + _up(num * key_bytes, 256) + _up(num * value_bytes, 256)


FEW_INDICES = 3072


class EmbeddingGradient(NamedTuple):
    """In bytes. Each group is freed before the next is allocated; `indices` are freed at the end."""

    indices: tuple[int, ...]
    """The sorted indices and their original positions."""
    sorting: tuple[int, ...]
    sums: tuple[int, ...]
    """Allocated after the result."""


def embedding_gradient(num: int, width: int, num_rows: int, index_bytes: int) -> EmbeddingGradient:
    """embedding_dense_backward_cuda and EmbeddingBackwardKernel.cu: indices are sorted by as many bits as the number of
    rows needs, and partial sums are kept in single precision. Up to FEW_INDICES, a kernel without extra memory computes
    the sums, unless gradients are scaled by index frequency."""
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
    """Temporary storage for sorting indices with their positions, by as many bits as the number of rows needs."""
    return radix_sort_bytes(num, index_bytes, index_bytes, max(1, (num_rows - 1).bit_length()))


SMALL_SORT = 4096
_FEW_SEGMENTS = 128
_LARGE_SEGMENT = 1_000_000


def sort_bytes(num_segments: int, length: int, key_bytes: int, *, is_in_rows: bool = True) -> list[int]:
    """Sort.cpp and SortStable.cu: allocations held at the same time, in addition to values and indices. A dimension
    that is not contiguous is copied into rows, sorted and copied back."""
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


def median_bytes(num: int, key_bytes: int) -> list[int]:
    """Sorting.cpp, median_impl sorts all elements: values and indices, and the extra memory of the sort."""
    return [key_bytes * num, 8 * num, *sort_bytes(1, num, key_bytes)]


# --- random numbers ---------------------------------------------------------------------------------------------------


def multinomial_copies(num_draws: int, *, with_replacement: bool) -> int:
    """Distributions.cpp: random numbers for all weights. MultinomialKernel.cu, for several draws with replacement: the
    weights as a distribution, and its sums."""
    return 2 if with_replacement and num_draws > 1 else 1


# --- norms ------------------------------------------------------------------------------------------------------------


def layer_norm_parts(rows: int, width: int, num_sms: int) -> int:
    """layer_norm_kernel.cu: number of partial sums for the gradients of weight and bias, if there are many short rows;
    0: no partial sums."""
    if rows <= 65536 or width // 32 >= num_sms // 2:
        return 0
    return min(32768 // -(-width // 32), -(-rows // 32))


def group_norm_sums(
    rows: int, channels: int, groups: int, area: int, *, has_weight: bool, is_half: bool, is_channels_last: bool
) -> tuple[int, ...]:
    """group_norm_kernel.cu, forward: how many numbers of the type of its sums each buffer has. In half precision these
    are mean and deviation of each group; then a factor and a summand of each channel."""
    of_groups = (rows * groups, rows * groups) if is_half else ()
    of_channels = (rows * channels, rows * channels) if area > 1 and (has_weight or is_channels_last) else ()
    return (*of_groups, *of_channels)


def group_norm_gradient_sums(
    rows: int, channels: int, groups: int, area: int, *, has_weight: bool, needs_input: bool, is_channels_last: bool
) -> tuple[int, ...]:
    """The same, backward: two sums of each channel; for the gradient of the input two numbers of each group and a
    factor of each channel, which channels last do without."""
    of_channels = (rows * channels, rows * channels) if area > 1 else ()
    of_input = (rows * groups, rows * groups) if needs_input else ()
    factor = (rows * channels,) if needs_input and has_weight and area > 1 and not is_channels_last else ()
    return (*of_channels, *of_input, *factor)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# --- reductions -------------------------------------------------------------------------------------------------------

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256
"""Per thread."""
_VECTOR = 4


def reduction_buffer(
    size: Any, stride: Any, dims: Any, element: int, num_sms: int, threads_per_sm: int
) -> tuple[int, int] | None:
    """Reduce.cuh, setReduceConfig: if few results reduce many numbers, several thread blocks share a result. Returns
    the bytes of their buffer and semaphores; None: one block computes each result."""
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
    """Sorted (stride, extent) pairs, with contiguous dimensions merged into one."""
    merged: list[tuple[int, int]] = []
    for stride, extent in dims:
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0], merged[-1][1] * extent)
        else:
            merged.append((stride, extent))
    return merged


def _power_of_two(number: int) -> int:
    return 1 << number.bit_length() - 1
