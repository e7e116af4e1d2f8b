"""What an operator moves and computes, by the types and shapes of its inputs: one rule for a family of operators.

A rule says how many bytes pass between the chip and its memory: each input once, at its own size even if it is
broadcast, and each output. Products and convolutions are not here: the calls of cuBLAS and cuDNN have their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from foretell.protocol.operators import COMPILED, LIST

ELEMENT_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

_SECTOR_BYTES = 32
"""What is read from memory for a value that stands alone."""
_ROWS_OF_A_LOSS_THREAD, _MOST_LOSS_THREADS = 16, 1024
"""`nll_loss_threads` of PyTorch: the only block of the loss grows with its rows up to 1,024 threads. Older versions
always have 32."""

_ELEMENTWISE = frozenset(
    {
        "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "asin", "asinh", "atan", "atan2", "atanh",
        "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
        "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clip", "copysign", "cos", "cosh", "deg2rad", "digamma",
        "div", "elu", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "float_power", "floor", "floor_divide",
        "fmax", "fmin", "fmod", "frac", "ge", "gelu", "glu", "gt", "hardshrink", "hardsigmoid", "hardswish",
        "hardtanh", "heaviside", "huber_loss", "hypot", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
        "l1_loss", "ldexp", "le", "leaky_relu", "lerp", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid",
        "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "lt",
        "masked_fill", "maximum", "minimum", "mish", "mse_loss", "mul", "nan_to_num", "native_dropout", "ne", "neg",
        "nextafter", "polygamma", "positive", "pow", "prelu_kernel", "rad2deg", "reciprocal", "relu", "relu6",
        "remainder", "round", "rrelu_with_noise", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sign", "signbit",
        "silu", "sin", "sinc", "sinh", "smooth_l1_loss", "softplus", "softshrink", "sqrt", "square", "sub", "tan",
        "tanh", "threshold", "tril", "triu", "trunc", "where", "xlogy",
    }
)  # fmt: skip
"""Operators of PyTorch whose kernels read and write each element once; their gradients end in `_backward`."""

COMPILED_NAMES = frozenset(name.rpartition("::")[2] for name in COMPILED.values())


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    sizes: tuple[int, ...]
    layout: str
    is_on_gpu: bool

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def bytes(self) -> int:
        return self.elements * ELEMENT_BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its inputs."""

    name: str
    """Without its namespace: `mm`."""
    inputs: tuple[Any, ...]
    """Tensors, tuples of tensors, numbers, booleans and None; of lists of numbers, PyTorch's profiler tells none."""

    @property
    def tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        for value in self.inputs:
            found += [value] if isinstance(value, Tensor) else value if isinstance(value, tuple) else []
        return found

    @property
    def on_gpu(self) -> list[Tensor]:
        return [each for each in self.tensors if each.is_on_gpu]

    @property
    def integers(self) -> list[int]:
        return [value for value in self.inputs if type(value) is int]

    @property
    def flags(self) -> list[bool]:
        return [value for value in self.inputs if type(value) is bool]

    @property
    def largest(self) -> Tensor | None:
        return max(self.on_gpu, key=lambda each: each.elements, default=None)


@dataclass(frozen=True, slots=True)
class Load:
    """The work of an operator's own kernels."""

    kernel_class: str
    bytes: float
    flops: float = 0.0
    is_known: bool = True
    rounds: int = 0
    """Accesses to memory that each thread makes one after the other, where the kernel's grid does not grow with the
    work."""


def parse(signature: str) -> Call:
    """The text of protocol/operators.py."""
    name, inputs = json.loads(signature)
    return Call(str(name).rpartition("::")[2], tuple(map(_value, inputs)))


def _value(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if value and value[0] == LIST:
        return tuple(each for each in map(_value, value[1:]) if isinstance(each, Tensor))
    dtype, sizes, layout, is_on_gpu = value
    return Tensor(str(dtype), tuple(sizes), str(layout), bool(is_on_gpu))


def load_of(call: Call, kernels: Sequence[str]) -> Load:
    """The work of a call whose kernels have these names."""
    rule = _RULES.get(call.name) or (None if kernels else _OUTER_RULES.get(call.name))
    if rule is not None:
        try:
            return rule(call)
        except (IndexError, StopIteration, ValueError):  # fewer tensors on the GPU than the rule is about
            return Load("other", _elementwise(call).bytes, is_known=False)
    if call.name.startswith(("_foreach_", "_fused_", "_amp_")):
        return _lists(call)
    is_elementwise = all("elementwise" in name or "_vec" in name for name in kernels)
    if not kernels:
        is_elementwise = call.name.strip("_").removesuffix("_backward") in _ELEMENTWISE
    load = _elementwise(call)
    if is_elementwise:
        return load
    if kernels and all("reduce" in name for name in kernels):
        return Load("reduction", _inputs(call))
    return Load("other", load.bytes, is_known=False)


# --- sums -------------------------------------------------------------------------------------------------------------


def _inputs(call: Call) -> int:
    return sum(each.bytes if each.layout != "broadcast" else 0 for each in call.on_gpu)


def _broadcast_elements(tensors: Sequence[Tensor]) -> int:
    """Of the shape to which these are broadcast; of the largest, if they cannot be."""
    width = max((len(each.sizes) for each in tensors), default=0)
    shape = [1] * width
    for each in tensors:
        for at, size in enumerate(each.sizes, start=width - len(each.sizes)):
            if size != shape[at] and 1 not in (size, shape[at]):
                return max(tensor.elements for tensor in tensors)
            shape[at] = size if shape[at] == 1 else shape[at]
    return prod(shape)


def _largest_bytes(call: Call) -> int:
    return call.largest.bytes if call.largest else 0


# --- rules ------------------------------------------------------------------------------------------------------------

_ANSWERS_BOOLEANS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "isnan", "isinf")


def _elementwise(call: Call) -> Load:
    tensors = call.on_gpu
    if not tensors:
        return Load("elementwise", 0.0)
    if call.name.endswith("_"):
        out = tensors[0].bytes
    else:
        width = 1 if call.name in _ANSWERS_BOOLEANS else max(ELEMENT_BYTES.get(each.dtype, 4) for each in tensors)
        if call.name.endswith("_backward"):
            width = ELEMENT_BYTES.get(tensors[0].dtype, 4)
        out = _broadcast_elements(tensors) * width
    shuffled = any(each.layout == "strided" for each in tensors)
    return Load("strided" if shuffled else "elementwise", _inputs(call) + out)


def _copy(call: Call) -> Load:
    """copy_(to, from)."""
    tensors = call.on_gpu
    if not tensors:
        return Load("elementwise", 0.0)
    to, source = tensors[0], tensors[-1]
    is_plain = to.layout == source.layout or source.layout == "broadcast"
    read = source.bytes if source.layout != "broadcast" else 0
    return Load("elementwise" if is_plain and to.layout != "strided" else "strided", to.bytes + read)


def _clone(call: Call) -> Load:
    first = call.on_gpu[0] if call.on_gpu else None
    return Load("strided" if first and first.layout == "strided" else "elementwise", 2 * (first.bytes if first else 0))


def _write_only(call: Call) -> Load:
    return Load("elementwise", call.on_gpu[0].bytes if call.on_gpu else 0.0)


def _lists(call: Call) -> Load:
    """foreach, fused optimizers, the gradient scaler: all is read; what is changed, or made, is written."""
    lists = [value for value in call.inputs if isinstance(value, tuple) and value and value[0].is_on_gpu]
    sizes = [sum(each.bytes for each in one) for one in lists] or [_inputs(call)]
    written = sizes[0]
    if call.name.startswith("_fused_"):
        written = sum(sizes) - (sizes[1] if len(sizes) > 1 else 0)  # all but the gradients
    if call.name in ("_foreach_norm", "_foreach_max"):
        written = 0
    return Load("foreach", sum(sizes) + written)


def _times_largest(kernel_class: str, passes: float) -> Callable[[Call], Load]:
    return lambda call: Load(kernel_class, passes * _largest_bytes(call))


def _reduction(call: Call) -> Load:
    return Load("reduction", _inputs(call))


def _inputs_and(kernel_class: str, passes: float) -> Callable[[Call], Load]:
    """The inputs, and the largest so many times for what is written."""
    return lambda call: Load(kernel_class, _inputs(call) + passes * _largest_bytes(call))


def _joined(call: Call) -> Load:
    return Load("strided", 2 * _inputs(call))


def _batch_norm(call: Call) -> Load:
    """Statistics and normalisation each read the input; without training it is read once."""
    first = call.on_gpu[0]
    is_training = call.flags[0] if call.flags else True
    if not is_training:
        return Load("batch_norm_inference", 2 * first.bytes)
    return Load("batch_norm_nhwc" if first.layout == "channels_last" else "batch_norm", 3 * first.bytes)


def _batch_norm_backward(call: Call) -> Load:
    first = call.on_gpu[0]
    kernel_class = "batch_norm_nhwc" if first.layout == "channels_last" else "batch_norm"
    return Load(kernel_class, 5 * first.bytes)


def _pool(call: Call) -> Load:
    """The output of a pooling layer is not among its inputs; most halve both sides."""
    first = call.on_gpu[0]
    index = 8 if "max" in call.name else 0
    return Load("pool", first.bytes * 1.25 + first.elements / 4 * index)


def _upsample(rounds: int) -> Callable[[Call], Load]:
    """The output is written; what is read for each of its elements comes from caches, but for the input itself. Where
    PyTorch's kernel interpolates in contiguous tensors, it has one thread for each position of an image, which goes
    through all images and channels one by one, however few positions there are."""

    def rule(call: Call) -> Load:
        first = call.on_gpu[0]
        scales = [value for value in call.inputs if type(value) is float]
        larger = prod(scales) if scales else 4.0  # most double both sides
        is_by_position = first.layout != "channels_last"
        return Load(
            "upsample", first.bytes * (1 + larger), rounds=rounds * prod(first.sizes[:2]) if is_by_position else 0
        )

    return rule


def _one_score_each(is_row: bool) -> Callable[[Call], Load]:
    """Of the scores of all classes, the loss touches one for each target. The zeros of its gradient are an operator of
    their own. Where a row of scores has a target (not each pixel of an image), one block goes through all targets, and
    reads each before its score."""

    def rule(call: Call) -> Load:
        target = next(each for each in call.on_gpu if each.dtype in ("int64", "uint8"))
        rounds = 2 * ceil(max(_ROWS_OF_A_LOSS_THREAD, target.elements / _MOST_LOSS_THREADS)) if is_row else 0
        return Load("reduction", target.bytes + target.elements * (_SECTOR_BYTES if is_row else 4), rounds=rounds)

    return rule


def _pool_backward(call: Call) -> Load:
    tensors = call.on_gpu
    return Load("pool", tensors[0].bytes + sum(each.bytes for each in tensors[2:]) + 2 * tensors[1].bytes)


def _adaptive_pool_backward(call: Call) -> Load:
    return Load("pool", call.on_gpu[0].bytes + call.on_gpu[-1].bytes)


def _indexed(call: Call) -> Load:
    """As many elements as there are indices, each with a row of the table where it has rows."""
    tensors = call.on_gpu
    if not tensors:
        return Load("indexing", 0.0)
    table = tensors[0]
    indices = [each for each in tensors[1:] if each.dtype in ("int64", "int32")]
    if not indices:
        return Load("indexing", 2 * _largest_bytes(call))
    most = max(indices, key=lambda each: each.elements)
    is_by_row = call.name in ("embedding", "index_select") or len(most.sizes) < len(table.sizes)
    row = prod(table.sizes[1:]) if is_by_row and len(table.sizes) > 1 else 1
    width = ELEMENT_BYTES.get(table.dtype, 4)
    read = most.bytes if most.layout != "broadcast" else 0
    return Load("indexing", read + 2 * width * row * most.elements)


def _embedding_backward(call: Call) -> Load:
    gradient = call.on_gpu[0]
    table = call.integers[0] * gradient.sizes[-1] * 4 if call.integers and gradient.sizes else 0
    return Load("indexing", 3 * gradient.bytes + table)


def _depthwise(call: Call) -> Load:
    x, w = call.on_gpu[0], call.on_gpu[1]
    return Load("depthwise", 2 * x.bytes + w.bytes, 2.0 * x.elements * prod(w.sizes[2:]))


def _depthwise_backward(call: Call) -> Load:
    """PyTorch's own kernels: two passes, for the gradients of the input and of the weights."""
    gradient, x, w = call.on_gpu[:3]
    flops = 4.0 * gradient.elements * prod(w.sizes[2:])
    return Load("depthwise_backward", 2 * gradient.bytes + 2 * x.bytes + w.bytes, flops)


def _compiled(kernel_class: str) -> Callable[[Call], Load]:
    """A kernel of Inductor reads and writes each argument once, and no more elements than it is about: of the table of
    an embedding, only the rows that are asked for."""

    def rule(call: Call) -> Load:
        most = prod(call.integers) if call.integers else None
        sizes = ((each.elements, ELEMENT_BYTES.get(each.dtype, 4)) for each in call.on_gpu)
        return Load(kernel_class, sum(width * (count if most is None else min(count, most)) for count, width in sizes))

    return rule


def _compiled_template(call: Call) -> Load:
    """A matrix product or attention that Inductor wrote itself: m x k and k x n, and the result, of m x n, last."""
    tensors = [each for each in call.on_gpu if len(each.sizes) >= 2]
    if len(tensors) < 3:
        return Load("other", _inputs(call), is_known=False)
    first, second, result = tensors[0], tensors[1], tensors[-1]
    if len(first.sizes) == 4:
        flops = 4.0 * first.elements * second.sizes[-2]
        return Load("attention", _inputs(call), flops, is_known=False)  # what its mask leaves out is not known
    batch = prod(result.sizes[:-2])
    inner = (first.elements * second.elements / max(1, result.elements * batch)) ** 0.5
    return Load("gemm", _inputs(call), 2.0 * result.elements * inner)


def _attention(passes: float, *, is_inner: bool) -> Callable[[Call], Load]:
    """Fused kernels. Inner functions have the sequence before the heads."""

    def rule(call: Call) -> Load:
        tensors = [each for each in call.on_gpu if len(each.sizes) == 4]
        if len(tensors) < 3:
            return Load("other", _inputs(call), is_known=False)
        q, k = (tensors[1], tensors[2]) if passes > 1 else (tensors[0], tensors[1])
        rows, heads = (q.sizes[1], q.sizes[2]) if is_inner else (q.sizes[2], q.sizes[1])
        columns = k.sizes[1] if is_inner else k.sizes[2]
        flops = passes * 4.0 * q.sizes[0] * heads * rows * columns * q.sizes[3]
        is_causal = any(call.flags)
        return Load("attention", _inputs(call) + passes * q.bytes, flops * (0.5 if is_causal and rows > 1 else 1.0))

    return rule


_RULES: dict[str, Callable[[Call], Load]] = {
    "copy_": _copy, "_to_copy": _clone, "clone": _clone, "contiguous": _clone,
    "fill_": _write_only, "zero_": _write_only, "random_": _write_only, "uniform_": _write_only,
    "normal_": _write_only, "bernoulli_": _write_only, "arange": _write_only, "zeros": _write_only,
    "sum": _reduction, "mean": _reduction, "amax": _reduction, "max": _reduction, "min": _reduction, "any": _reduction,
    "all": _reduction, "argmax": _reduction, "linalg_vector_norm": _reduction, "norm": _reduction, "prod": _reduction,
    "var": _times_largest("reduction", 1), "var_mean": _times_largest("reduction", 1), "std": _reduction,
    "logsumexp": _reduction, "cumsum": _times_largest("reduction", 2),
    "_softmax": _times_largest("softmax", 2), "_log_softmax": _times_largest("softmax", 2),
    "_softmax_backward_data": _times_largest("softmax", 3), "_log_softmax_backward_data": _times_largest("softmax", 3),
    "nll_loss_forward": _one_score_each(is_row=True), "nll_loss_backward": _one_score_each(is_row=True),
    "nll_loss2d_forward": _one_score_each(is_row=False), "nll_loss2d_backward": _one_score_each(is_row=False),
    "mse_loss": _inputs_and("elementwise", 0), "binary_cross_entropy_with_logits": _inputs_and("elementwise", 1),
    "native_layer_norm": _times_largest("norm", 2), "native_layer_norm_backward": _times_largest("norm", 5),
    "_fused_rms_norm": _times_largest("norm", 2), "_fused_rms_norm_backward": _times_largest("norm", 5),
    "native_group_norm": _times_largest("norm", 3), "native_group_norm_backward": _times_largest("norm", 5),
    "cudnn_batch_norm": _batch_norm, "native_batch_norm": _batch_norm, "_native_batch_norm_legit": _batch_norm,
    "_batch_norm_with_update": _batch_norm, "_batch_norm_no_update": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward, "native_batch_norm_backward": _batch_norm_backward,
    "batch_norm_backward": _batch_norm_backward,
    "max_pool2d_with_indices": _pool, "avg_pool2d": _pool, "max_pool3d_with_indices": _pool, "avg_pool3d": _pool,
    "max_pool2d_with_indices_backward": _pool_backward, "max_pool3d_with_indices_backward": _pool_backward,
    "avg_pool2d_backward": _pool_backward,
    "_adaptive_avg_pool2d": _reduction, "adaptive_max_pool2d": _reduction,
    "_adaptive_avg_pool2d_backward": _adaptive_pool_backward,
    "cat": _joined, "stack": _joined,
    "index": _indexed, "gather": _indexed, "index_select": _indexed, "embedding": _indexed, "take": _indexed,
    "index_put_": _indexed, "_index_put_impl_": _indexed, "scatter_": _indexed, "scatter_add_": _indexed,
    "index_add_": _indexed, "masked_fill_": _inputs_and("elementwise", 1), "topk": _times_largest("reduction", 4),
    "sort": _times_largest("reduction", 12), "embedding_dense_backward": _embedding_backward,
    "native_dropout": lambda call: Load("elementwise", 2 * _largest_bytes(call) + call.on_gpu[0].elements),
    "roll": _times_largest("strided", 2), "flip": _times_largest("strided", 2), "constant_pad_nd":
    _times_largest("strided", 2), "im2col": _times_largest("strided", 3), "col2im": _times_largest("strided", 2),
    "reflection_pad2d": _times_largest("strided", 2), "pixel_shuffle": _times_largest("strided", 2),
    "upsample_nearest2d": _upsample(0), "_upsample_nearest_exact2d": _upsample(0), "upsample_linear1d": _upsample(1),
    "upsample_bilinear2d": _upsample(1), "upsample_bicubic2d": _upsample(1), "upsample_trilinear3d": _upsample(1),
    "upsample_bilinear2d_backward": _times_largest("upsample", 5),
    "upsample_nearest2d_backward": _times_largest("upsample", 1.25), "slice_backward": _times_largest("elementwise", 2),
    "_conv_depthwise2d": _depthwise, "conv_depthwise3d": _depthwise, "convolution_backward": _depthwise_backward,
    "compiled_pointwise": _compiled("fused"), "compiled_reduction": _compiled("fused_reduction"),
    "compiled_template": _compiled_template,
    "triton_kernel": lambda call: Load("fused", _inputs(call), is_known=False),
    "_flash_attention_forward": _attention(1.0, is_inner=True),
    "_efficient_attention_forward": _attention(1.0, is_inner=True),
    "_scaled_dot_product_cudnn_attention": _attention(1.0, is_inner=False),
    "_cudnn_attention_forward": _attention(1.0, is_inner=False),
    "_flash_attention_backward": _attention(2.5, is_inner=True),
    "_efficient_attention_backward": _attention(2.5, is_inner=True),
    "_scaled_dot_product_cudnn_attention_backward": _attention(2.5, is_inner=False),
    "_cudnn_attention_backward": _attention(2.5, is_inner=False),
}  # fmt: skip

_OUTER_RULES: dict[str, Callable[[Call], Load]] = {
    "_scaled_dot_product_flash_attention": _attention(1.0, is_inner=False),
    "_scaled_dot_product_efficient_attention": _attention(1.0, is_inner=False),
    "_scaled_dot_product_flash_attention_backward": _attention(2.5, is_inner=False),
    "_scaled_dot_product_efficient_attention_backward": _attention(2.5, is_inner=False),
}
"""Of operators that call the one with the kernel; where no launches are recorded, they stand for it."""
COMPOSITE = frozenset(_RULES) - {"copy_", "_to_copy", "clone", "contiguous", "convolution_backward"}
"""Operators whose rule counts for all that they call, where no launches are recorded."""
