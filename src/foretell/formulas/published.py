"""Published formulas for whole jobs. Each takes the features of a job and gives bytes, or None where it is not
defined.

They are written from the papers' descriptions and figures, not from their code, and leave out the constants their
authors measured on their own cards, unless the docstring says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from foretell.features import JobFeatures
from foretell.formulas.model_states import state_bytes
from foretell.formulas.workspaces import workspaces
from foretell.records import Gpu
from foretell.units import MIB

HORUS_BYTES = 800 * MIB
"""Its constant: what remains of the published values of VGG-16 and ResNet-50 when the formula is taken off."""
_NOT_COUNTED = {"MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "Identity", "Flatten", "Embedding"}


def horus_bytes(features: JobFeatures) -> int | None:
    """Horus (Yeung et al., TPDS 2022), as the evaluation of GPUMemNet uses it: activations A of one sample, parameters
    P and batch size B give (A B + P) + B P elements of four bytes, and a constant.

    B P stands for the gradients: it is far too high for large batches of large models, because PyTorch sums gradients
    over the batch. Optimizer states and workspaces are not counted.
    """
    if features.layers is None or features.parameters is None or not features.batch_size:
        return None
    activations = sum(layer.activations for layer in features.layers if layer.kind not in _NOT_COUNTED)
    parameters = features.parameters
    return 4 * (activations + parameters + features.batch_size * parameters) + HORUS_BYTES


def dnnmem_bytes(features: JobFeatures, gpu: Gpu) -> int | None:
    """DNNMem (Gao et al., ESEC/FSE 2020): tensors of the graph with their life times, workspaces of convolutions, and
    the allocator's rounding.

    Weights, buffers, gradients and inputs live throughout; outputs of operators until their backward pass; two
    gradients of activations and one workspace at a time. Its tensors are the outputs of layers, also where PyTorch
    keeps an input, a mask or nothing; the original leaves out the optimizer, and so does this. Large segments are
    rounded to 2 MiB. Its measured constant for the framework is left to the context and libraries of the card.
    """
    if features.layers is None or features.parameter_bytes is None:
        return None
    size = 4
    outputs = [size * layer.activations for layer in features.layers]
    gradients = max((first + second for first, second in pairwise(outputs)), default=0)
    held = 2 * features.parameter_bytes + (features.buffer_bytes or 0) + (features.input_bytes or 0)
    total = held + sum(outputs) + gradients + max(workspaces(features, gpu), default=0)
    return -(-total // (2 * MIB)) * 2 * MIB


def llmem_bytes(
    features: JobFeatures, *, vocabulary: int | None = None, data_parallel: int = 1, tensor_parallel: int = 1
) -> int | None:
    """LLMem (Kim et al., IJCAI 2024): parameters, gradients, states, the outputs of Transformer layers, and the output
    head, whose logits are counted in the precision of the model and in float32.

    Tensor parallelism divides what belongs to layers; data parallelism as in ZeRO divides gradients and states. For
    language models only; the original measures a base for the card, rounds chunks, and takes gradient checkpointing for
    granted, which this leaves to what autograd saves.
    """
    if features.family != "transformer" or features.parameter_bytes is None or features.saved_bytes is None:
        return None
    trained = features.trainable_bytes or 0
    head = next((layer for layer in reversed(features.layers or ()) if layer.kind == "Linear"), None)
    logits = head.activations if head is not None else 0
    if vocabulary is not None and features.input_shape:
        logits = prod(features.input_shape) * vocabulary
    element_bytes = features.element_bytes or 4
    shared = (trained + state_bytes(features)) // data_parallel
    return (features.parameter_bytes + shared + features.saved_bytes + logits * (element_bytes + 4)) // tensor_parallel


def faketensor_bytes(features: JobFeatures) -> int | None:
    """The peak of live tensors in one forward and backward pass, as a FakeTensorMode that adds up storages sees it:
    parameters, buffers, inputs, what is saved, and the operands of one operator. No optimizer, workspaces, caching
    allocator or context, which is why it is half of what a card shows."""
    if features.parameter_bytes is None or features.backward_peak_bytes is None:
        return None
    fixed = features.parameter_bytes + (features.buffer_bytes or 0) + (features.input_bytes or 0)
    return fixed + max(features.forward_peak_bytes or 0, features.backward_peak_bytes)


def memtracker_bytes(features: JobFeatures) -> int | None:
    """What torch.distributed._tools.mem_tracker.MemTracker (2.15) adds up: the same with gradients and states of the
    optimizer from the second step on, or the optimizer's own step with its temporaries, if that is more. No workspaces,
    no caching allocator."""
    peak = faketensor_bytes(features)
    if peak is None:
        return None
    trained = features.trainable_bytes or 0
    states = state_bytes(features)
    fixed = (features.parameter_bytes or 0) + (features.buffer_bytes or 0) + (features.input_bytes or 0)
    return max(peak + states, fixed + trained + states + _step_temporaries(features))


def _step_temporaries(features: JobFeatures) -> int:
    """Of an optimizer of Adam's kind: a list as large as all that is trained, or two tensors as large as the largest
    parameter, if it works tensor by tensor. SGD has none."""
    if features.optimizer == "SGD":
        return 0
    return 2 * (features.largest_parameter_bytes or 0) if features.foreach is False else features.trainable_bytes or 0


def schedtune_features(features: JobFeatures, gpu: Gpu) -> Sequence[float] | None:
    """The inputs of SchedTune's ensemble of trees (Albahar et al., CCGrid 2022): of the job, parameters, layers,
    activations, batch size and size of its input; of the card, memory, multiprocessors, bandwidth and peak.

    The trees themselves are trained (`foretell train`): there is no formula, and no answer beyond what they saw.
    """
    if features.layers is None or features.parameters is None or not features.batch_size:
        return None
    return (
        float(features.parameters),
        float(len(features.layers)),
        float(sum(layer.activations for layer in features.layers)),
        float(features.batch_size),
        float(prod((features.input_shape or (1,))[1:])),
        float(gpu.total_bytes),
        float(gpu.num_sms),
        float(gpu.bandwidth_bytes_per_second),
        gpu.fp32_flops,
    )
