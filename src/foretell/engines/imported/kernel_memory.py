"""Extra memory of kernels on a card, by operator: one small function each, in dicts.

Sizes were measured on the virtual GPU, which runs PyTorch's own host code: torch 2.6.0 and 2.15.0.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from foretell.engines.imported import attention_calls, recurrent_calls
from foretell.engines.imported.analysis import PRODUCTS, JobBlock, RecordedJob
from foretell.engines.imported.card import Card
from foretell.engines.imported.cpu_profile import Operator, Tensor
from foretell.engines.imported.moments import NEVER, AtEnd, before
from foretell.rules import cublas, kernels
from foretell.versions import GROUP_NORM_SUMS_IN_FLOAT

Rule = Callable[[Operator, Card], tuple[int, ...]]


# --- while a kernel runs ----------------------------------------------------------------------------------------------


def embedding_backward(operator: Operator, card: Card) -> tuple[int, ...]:
    """Allocated after the result; the sort's buffers are already freed."""
    gradient, indices = operator.tensors[:2]
    num = indices.num_elements
    if num <= kernels.FEW_INDICES:
        return ()
    num_rows = int(operator.values[2]) if len(operator.values) > 2 and operator.values[2].isdecimal() else num
    taken = kernels.embedding_gradient(num, gradient.num_elements // num, num_rows, indices.element_bytes)
    return (*taken.indices, *taken.sums)


def layer_norm_backward(operator: Operator, card: Card) -> tuple[int, ...]:
    """layer_norm_kernel.cu: with many rows the gradients of weight and bias are summed in parts."""
    tensor = operator.tensors[0]
    width = operator.tensors[-1].num_elements
    rows = tensor.num_elements // max(width, 1)
    parts = kernels.layer_norm_parts(rows, width, card.gpu.num_sms)
    return (parts * width * tensor.element_bytes,) * 2 if parts else ()


def group_norm(operator: Operator, card: Card) -> tuple[int, ...]:
    tensor, values = operator.tensors[0], operator.values
    if len(values) < 7 or not values[6].isdecimal() or not tensor.num_elements:
        return ()
    sums = kernels.group_norm_sums(
        *_rows_channels_groups_area(tensor, values[6]),
        has_weight=len(operator.tensors) > 1,
        is_half=tensor.element_bytes == 2 and GROUP_NORM_SUMS_IN_FLOAT.holds_in(card.torch),
        is_channels_last=not tensor.is_contiguous,
    )
    return tuple(max(4, tensor.element_bytes) * size for size in sums)


def group_norm_backward(operator: Operator, card: Card) -> tuple[int, ...]:
    """Its arguments: gradient, input, mean, deviation, weight, four numbers, and which gradients are wanted."""
    values = operator.values
    if len(values) < 10 or not values[8].isdecimal() or not operator.tensors[0].num_elements:
        return ()
    tensor = operator.tensors[1]
    sums = kernels.group_norm_gradient_sums(
        *_rows_channels_groups_area(tensor, values[8]),
        has_weight=len(operator.tensors) > 4,
        needs_input=values[9].startswith("[True"),
        is_channels_last=not tensor.is_contiguous,
    )
    return tuple(max(4, tensor.element_bytes) * size for size in sums)


def _rows_channels_groups_area(tensor: Tensor, groups: str) -> tuple[int, int, int, int]:
    rows, channels, *area = tensor.shape
    return rows, channels, int(groups), math.prod(area)


def sum_of_rows(operator: Operator, card: Card) -> tuple[int, ...]:
    """The buffer for the gradient of a bias."""
    tensor = operator.tensors[0]
    if len(tensor.shape) != 2 or len(operator.values) < 2 or operator.values[1] != "[0]":
        return ()
    taken = kernels.reduction_buffer(
        tensor.shape, (tensor.shape[1], 1), [0], 4, card.gpu.num_sms, card.gpu.threads_per_sm
    )
    return taken or ()


def sort(operator: Operator, card: Card) -> tuple[int, ...]:
    """For the overload (tensor, stable, dimension, descending), which the one without `stable` calls."""
    tensor = operator.tensors[0]
    if len(operator.values) != _NUM_SORT_ARGUMENTS or not tensor.num_elements or not tensor.shape:
        return ()
    dimension = int(operator.values[2] or -1)
    length = tensor.shape[dimension]
    is_in_rows = not tensor.strides or tensor.strides[dimension] == 1
    num_segments = tensor.num_elements // length
    return tuple(kernels.sort_bytes(num_segments, length, tensor.element_bytes, is_in_rows=is_in_rows))


def median(operator: Operator, card: Card) -> tuple[int, ...]:
    """The sort of all elements; along a dimension only a copy, if the operand is not contiguous."""
    tensor = operator.tensors[0]
    if len(operator.values) > 1:
        return () if tensor.is_contiguous else (tensor.num_bytes,)
    return tuple(kernels.median_bytes(tensor.num_elements, tensor.element_bytes)) if tensor.num_elements else ()


def multinomial(operator: Operator, card: Card) -> tuple[int, ...]:
    """Of several draws with replacement; otherwise the operators that it calls are recorded."""
    _, count, replacement = operator.values[:3]
    copies = kernels.multinomial_copies(int(count), with_replacement=replacement == "True") if count.isdecimal() else 1
    return (operator.tensors[0].num_bytes,) * copies if copies > 1 else ()


_NUM_SORT_ARGUMENTS = 4
TEMPORARIES: dict[str, Rule] = {
    "aten::sort": sort,
    "aten::median": median,
    "aten::multinomial": multinomial,
    "aten::embedding_dense_backward": embedding_backward,
    "aten::sum": sum_of_rows,
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::native_group_norm": group_norm,
    "aten::native_group_norm_backward": group_norm_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention_calls.backward_temporaries,
}


# --- workspaces of libraries ------------------------------------------------------------------------------------------


def product(operator: Operator, card: Card) -> tuple[int, ...]:
    return () if card.cublas.is_kept else (card.cublas.num_bytes,)


def product_with_bias(operator: Operator, card: Card) -> tuple[int, ...]:
    bias, a, b = operator.tensors[:3]
    is_by_cublaslt = cublas.is_bias_added_by_cublaslt(
        card.torch,
        bias=bias.shape,
        is_contiguous=bias.is_contiguous,
        beta=float(operator.values[3] or 1) if len(operator.values) > 3 else 1,
        rows=a.shape[0],
        columns=b.shape[-1],
        depth=a.shape[-1],
        dtype=a.dtype,
    )
    return (cublas.CUBLASLT_BYTES,) if is_by_cublaslt and not card.cublas.is_shared else product(operator, card)


WORKSPACES: dict[str, Rule] = {
    "aten::mm": product,
    "aten::bmm": product,
    "aten::baddbmm": product,
    "aten::addmm": product_with_bias,
}


def kept_workspaces(job: RecordedJob, card: Card) -> Iterator[JobBlock]:
    """Before torch 2.15: one workspace for the script's thread and one for autograd's, from the first matrix product
    on."""
    if not card.cublas.is_kept:
        return
    seen = set()
    replaced = recurrent_calls.replaced_operators(job, card)
    for number, operator in enumerate(job.operators):
        is_backward = job.phases[number] == "backward"
        is_product = operator.name in PRODUCTS - {"aten::convolution"} and number not in replaced
        if is_product and is_backward not in seen:
            seen.add(is_backward)
            yield JobBlock(
                num_bytes=card.cublas.num_bytes,
                born=before(operator.end, AtEnd.THREAD_WORKSPACE),
                died=NEVER,
                operator=number,
                category="workspace",
            )


# --- buffers of modules -----------------------------------------------------------------------------------------------


def buffers(job: RecordedJob) -> Iterator[int]:
    """Buffers of batch normalization: running mean and variance, and a count, for each layer of one forward pass."""
    most: Counter[Tensor] = Counter()
    current: Counter[Tensor] = Counter()
    for operator, phase in zip(job.operators, job.phases, strict=True):
        if phase == "backward":
            most |= current
            current = Counter()
        elif operator.name == "aten::native_batch_norm" and len(operator.tensors) > 4:
            current[operator.tensors[3]] += 1
    for tensor in (most | current).elements():
        yield from (tensor.num_bytes, tensor.num_bytes, 8)


# --- operators without a rule -----------------------------------------------------------------------------------------

_UNLIKE = re.compile(
    r"aten::(topk|cumsum|cumprod|unique\w*|_unique2|nonzero|masked_select|index_put_?|_index_put_impl_|"
    r"lstm|gru|rnn_tanh|rnn_relu|lstm_cell|gru_cell|_thnn\w*|_?ctc_loss|_?fft\w*|stft|"
    r"linalg_(?!vector_norm)\w+|_linalg\w*|cholesky\w*|svd|qr|"
    r"grid_sampler\w*|upsample_bicubic2d\w*|_embedding_bag\w*|kthvalue|histc|bincount)$"
)
"""Operators whose CUDA kernels are known to take extra memory, of unknown size."""


def unknown_operators(job: RecordedJob, card: Card) -> Counter[str]:
    replaced = recurrent_calls.replaced_operators(job, card)
    return Counter(o.name for number, o in enumerate(job.operators) if _UNLIKE.match(o.name) and number not in replaced)
