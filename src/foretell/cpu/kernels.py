"""What kernels take on a card beside their outputs, by operator: small functions in dicts, one for each.

Sizes were read off the virtual GPU, which runs PyTorch's own host code: torch 2.6.0 and 2.15.0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf

from foretell.cpu import recurrent
from foretell.cpu.analysis import PRODUCTS, Block, Job
from foretell.cpu.card import Card
from foretell.cpu.profile import Operator, Tensor
from foretell.overhead import kernels

Rule = Callable[[Operator, Card], tuple[int, ...]]


# --- while a kernel runs ----------------------------------------------------------------------------------------------

_FEW_INDICES = 3072


def embedding_backward(operator: Operator, card: Card) -> tuple[int, ...]:
    """EmbeddingBackwardKernel.cu: indices are sorted, and partial sums kept in fp32, when there are many of them."""
    gradient, indices = operator.tensors[:2]
    n = indices.num_elements
    if n <= _FEW_INDICES:
        return ()
    num_rows = int(operator.values[2]) if len(operator.values) > 2 and operator.values[2].isdigit() else n
    segments = min(n, num_rows)
    partial = n // 10 + segments
    width = gradient.num_elements // n
    return (8 * n, 8 * n, 8 * n, 8 * n, 8 * segments, 8 * segments, 8 * partial, 4 * partial * width)


def layer_norm_backward(operator: Operator, card: Card) -> tuple[int, ...]:
    """layer_norm_kernel.cu: with many rows the gradients of weight and bias are summed in parts."""
    tensor = operator.tensors[0]
    width = operator.tensors[-1].num_elements
    rows = tensor.num_elements // max(width, 1)
    parts = kernels.layer_norm_parts(rows, width, card.gpu.num_sms)
    return (parts * width * tensor.element_bytes,) * 2 if parts else ()


def sum_of_rows(operator: Operator, card: Card) -> tuple[int, ...]:
    """The gradient of a bias."""
    tensor = operator.tensors[0]
    if len(tensor.shape) != 2 or len(operator.values) < 2 or operator.values[1] != "[0]":
        return ()
    taken = kernels.reduction_buffer(
        tensor.shape, (tensor.shape[1], 1), [0], 4, card.gpu.num_sms, card.gpu.threads_per_sm
    )
    return taken or ()


def attention_backward(operator: Operator, card: Card) -> tuple[int, ...]:
    """Of (gradient, query, key, value, ...)."""
    _, query, key, value = operator.tensors[:4]
    return attention_temporaries(query, key, value, card)


def attention_temporaries(query: Tensor, key: Tensor, value: Tensor, card: Card) -> tuple[int, ...]:
    """In the backward pass of what the card chooses for these types: the fused kernels of flash_api.cpp and
    attention_backward.cu. With `math` there is none: its parts are operators of their own."""
    batch, heads, length, width = query.shape
    if query.element_bytes == 2:
        rows, padded = kernels.flash_sums(length, width)
        return (batch * heads * rows * 4, batch * heads * rows * padded * 4)
    delta, product = batch * heads * length * 4, batch * heads * length * value.shape[-1] * 4
    workspace = kernels.efficient_workspace(False, batch * heads, length, width, value.shape[-1])
    return (delta, max(workspace, product))


TEMPORARIES: dict[str, Rule] = {
    "aten::embedding_dense_backward": embedding_backward,
    "aten::sum": sum_of_rows,
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
}


# --- workspaces of libraries ------------------------------------------------------------------------------------------


def product(operator: Operator, card: Card) -> tuple[int, ...]:
    return (card.cublas_bytes,) if card.torch >= kernels.EAGER_WORKSPACES else ()


def product_with_bias(operator: Operator, card: Card) -> tuple[int, ...]:
    """cuBLASLt adds a bias by itself; one that is a matrix is copied, and goes to cuBLAS."""
    is_vector = len(operator.tensors[0].shape) == 1
    is_shared = kernels.SHARED_WORKSPACES <= card.torch < kernels.EAGER_WORKSPACES
    return (kernels.CUBLASLT_BYTES,) if is_vector and not is_shared else product(operator, card)


WORKSPACES: dict[str, Rule] = {
    "aten::mm": product,
    "aten::bmm": product,
    "aten::baddbmm": product,
    "aten::addmm": product_with_bias,
}


def kept_workspaces(job: Job, card: Card) -> Iterator[Block]:
    """Before torch 2.15: one for the script's thread and one for autograd's, from the first product on."""
    if card.torch >= kernels.EAGER_WORKSPACES:
        return
    seen = set()
    replaced = recurrent.replaced_operators(job, card)
    for number, operator in enumerate(job.operators):
        is_backward = job.phases[number] == "backward"
        is_product = operator.name in PRODUCTS - {"aten::convolution"} and number not in replaced
        if is_product and is_backward not in seen:
            seen.add(is_backward)
            yield Block(
                num_bytes=card.cublas_bytes,
                born=operator.end - 0.6,
                died=inf,
                operator=number,
                category="workspace",
            )


# --- buffers of modules -----------------------------------------------------------------------------------------------


def buffers(job: Job) -> Iterator[int]:
    """Of batch normalization: running mean and variance, and a count, for each layer of one forward pass."""
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


# --- what no rule is known for ----------------------------------------------------------------------------------------

_UNLIKE = re.compile(
    r"aten::(sort|topk|cumsum|cumprod|unique\w*|_unique2|multinomial|nonzero|masked_select|index_put_?|_index_put_impl_|"
    r"lstm|gru|rnn_tanh|rnn_relu|lstm_cell|gru_cell|_thnn\w*|_?ctc_loss|_?fft\w*|stft|"
    r"linalg_(?!vector_norm)\w+|_linalg\w*|cholesky\w*|svd|qr|"
    r"native_group_norm\w*|grid_sampler\w*|upsample_bicubic2d\w*|_embedding_bag\w*|median|kthvalue|histc|bincount)$"
)
"""Their kernels on a card are known to take memory for themselves, and how much is not known here."""


def unknown_operators(job: Job, card: Card) -> Counter[str]:
    replaced = recurrent.replaced_operators(job, card)
    return Counter(o.name for number, o in enumerate(job.operators) if _UNLIKE.match(o.name) and number not in replaced)
