"""What instant estimators know of a job, and what they answer. `inside/describe.py` writes the description in the
process of the job. None: not known."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from foretell.plain import from_plain, to_plain

Family = Literal["mlp", "cnn", "transformer"]
Source = Literal["model", "script", "config", "summary", "typed"]
WorkKind = Literal[
    "convolution", "convolution_nhwc", "grouped_convolution", "grouped_convolution_nhwc", "product", "attention",
    "norm", "softmax", "pool", "copy", "lookup", "elementwise", "view",
]  # fmt: skip
ZeroGrad = Literal["before_forward", "before_backward", "later"]
_NOT_EXPECTED = {
    "source", "name", "attention_heads", "gpu", "torch_version", "earlier_bytes", "zero_grad", "keeps_gradients",
    "played_workspace_bytes", "played_growth_bytes", "played_batch_size", "compute_capability",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A module without children, in the order of the calls."""

    kind: str
    """Its class: `Conv2d`."""
    activations: int
    """Elements of its output, for the whole batch."""
    parameters: int

    def __post_init__(self) -> None:
        assert min(self.activations, self.parameters) >= 0, f"{self.kind}: a negative size"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """A convolution of the forward pass, in terms of `rules.convolution.Convolution`."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_transposed: bool
    is_channels_last: bool
    element_bytes: int
    saved_bytes: int
    """What autograd has saved before it."""
    gradient_bytes: int
    """Gradients of parameters that exist when its own are computed."""

    def __post_init__(self) -> None:
        sizes = (*self.w, *self.stride, *self.dilation, self.groups, self.element_bytes)
        assert min(sizes) > 0, "a size of a convolution must be 1 or more"
        assert min((*self.x, *self.y, *self.padding), default=0) >= 0, "a convolution has a negative size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Operators of the forward pass, of one kind and size."""

    kind: WorkKind
    element_bytes: int
    """Of their results; 0: views, which compute nothing."""
    calls: int
    flops: int
    bytes: int
    """Read and written, without `weight_bytes`."""
    weight_bytes: int
    """Of parameters and buffers."""
    tiles: int
    """Blocks of 128 x 128 results of matrix products."""

    def __post_init__(self) -> None:
        sizes = (self.element_bytes, self.calls, self.flops, self.bytes, self.weight_bytes, self.tiles)
        assert min(sizes) >= 0, f"{self.kind}: a negative size"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFeatures:
    """A training job as the first forward pass of its training shows it."""

    source: Source
    name: str = ""
    layers: tuple[Layer, ...] | None = None
    batch_size: int | None = None
    input_shape: tuple[int, ...] | None = None
    """Of the first tensor, with the batch."""
    input_bytes: int | None = None
    parameters: int | None = None
    parameter_bytes: int | None = None
    trainable_bytes: int | None = None
    """Of the parameters that get gradients."""
    buffer_bytes: int | None = None
    saved_bytes: int | None = None
    """What autograd keeps for the backward pass, by storage, without parameters and buffers."""
    output_bytes: int | None = None
    """Of everything the forward pass allocates, also if it is freed at once."""
    forward_peak_bytes: int | None = None
    """Highest sum of what is saved and of the operands of one operator."""
    backward_peak_bytes: int | None = None
    """The same of the backward pass, with the gradients of parameters so far and without workspaces."""
    largest_bytes: int | None = None
    """The largest tensor the forward pass allocates."""
    second_bytes: int | None = None
    convolutions: tuple[ConvolutionCall, ...] | None = None
    num_tensors: int | None = None
    """Parameters that are trained, as tensors."""
    largest_parameter_bytes: int | None = None
    attention_heads: int | None = None
    optimizer: str | None = None
    """`Adam`, as in torch.optim."""
    momentum: bool | None = None
    foreach: bool | None = None
    """Whether the optimizer works on lists of tensors; their temporaries are as large as all parameters."""
    element_bytes: int | None = None
    """Of what matrix products and convolutions compute with: 2 under autocast."""
    work: tuple[Work, ...] | None = None
    """What the forward pass computes and moves, for the time of a step."""
    is_checkpointed: bool | None = None
    """Whether the pass called torch.utils.checkpoint, so that parts of it are computed again."""
    earlier_bytes: int | None = None
    """What forward passes before this one had saved, of which none was followed by a backward pass: the largest."""
    zero_grad: ZeroGrad | None = None
    """Where a step sets gradients to zero, as seen before the first backward pass; `later`: not until then."""
    keeps_gradients: bool | None = None
    """`zero_grad(set_to_none=False)`: gradients live on through the next step."""
    played_bytes: int | None = None
    """Reserved after two steps that were played on the caching allocator, without workspaces of convolutions."""
    played_workspace_bytes: int | None = None
    """The same with the workspaces of a card of `compute_capability`."""
    played_growth_bytes: int | None = None
    """How much more it is with each further batch of that size."""
    played_batch_size: int | None = None
    """With which it was played, if that is not `batch_size`."""
    compute_capability: tuple[int, int] | None = None
    gpu: str = ""
    torch_version: str = ""

    def __post_init__(self) -> None:
        assert (self.batch_size or 0) >= 0, f"batch_size {self.batch_size} must not be negative"
        assert (self.parameters or 0) >= 0, f"parameters {self.parameters} must not be negative"

    @property
    def unknown(self) -> tuple[str, ...]:
        """The empty fields."""
        return tuple([name for name in _EXPECTED if getattr(self, name) is None])

    @property
    def is_complete(self) -> bool:
        """Whether what a forward pass shows is known; a summary has only layers and parameters."""
        needed = (self.parameter_bytes, self.saved_bytes, self.played_bytes, self.convolutions, self.layers)
        return all(each is not None for each in needed)

    @property
    def family(self) -> Family:
        kinds = {layer.kind for layer in self.layers or ()}
        # `Conv1D` of transformers is a linear layer.
        if self.convolutions or any(kind.startswith("Conv") and kind != "Conv1D" for kind in kinds):
            norms = {kind for kind in kinds if kind.endswith("LayerNorm")}
            num_norms = sum(layer.kind in norms for layer in self.layers or ()) if norms else 0
            return "transformer" if num_norms > len(self.convolutions or ()) > 0 else "cnn"
        if any("Attention" in kind or ("Norm" in kind and not kind.startswith("BatchNorm")) for kind in kinds):
            return "transformer"
        return "transformer" if "Embedding" in kinds else "mlp"

    def with_batch(self, batch_size: int) -> JobFeatures:
        """The same model with another batch: what grows with the batch is scaled. Exact but for rounding where every
        operator works on samples."""
        if not self.batch_size:
            raise ValueError("the batch size of the description is not known")
        ratio = batch_size / self.batch_size

        def scaled(value: int | None) -> int | None:
            return None if value is None else round(value * ratio)

        def scaled_above(value: int | None, held: int) -> int | None:
            return None if value is None else round(max(value - held, 0) * ratio) + min(value, held)

        def grown(value: int | None) -> int | None:
            if value is None or self.played_growth_bytes is None:
                return scaled_above(value, held)
            return max(min(value, held), round(value + (ratio - 1) * self.played_growth_bytes))

        gradients = self.trainable_bytes or 0
        held = (self.parameter_bytes or 0) + (self.buffer_bytes or 0) + gradients
        return replace(
            self,
            batch_size=batch_size,
            input_shape=None if self.input_shape is None else (batch_size, *self.input_shape[1:]),
            input_bytes=scaled(self.input_bytes),
            saved_bytes=scaled(self.saved_bytes),
            output_bytes=scaled(self.output_bytes),
            forward_peak_bytes=scaled(self.forward_peak_bytes),
            backward_peak_bytes=scaled_above(self.backward_peak_bytes, gradients),
            played_bytes=grown(self.played_bytes),
            played_workspace_bytes=grown(self.played_workspace_bytes),
            played_growth_bytes=scaled(self.played_growth_bytes),
            played_batch_size=self.played_batch_size or self.batch_size,
            largest_bytes=scaled(self.largest_bytes),
            second_bytes=scaled(self.second_bytes),
            work=None
            if self.work is None
            else tuple(
                replace(
                    each, flops=round(each.flops * ratio), bytes=round(each.bytes * ratio),
                    tiles=round(each.tiles * ratio),
                )
                for each in self.work
            ),
            layers=None
            if self.layers is None
            else tuple(replace(layer, activations=round(layer.activations * ratio)) for layer in self.layers),
            convolutions=None
            if self.convolutions is None
            else tuple(
                replace(
                    each,
                    x=(round(each.x[0] * ratio), *each.x[1:]),
                    y=(round(each.y[0] * ratio), *each.y[1:]),
                    saved_bytes=round(each.saved_bytes * ratio),
                )
                for each in self.convolutions
            ),
        )


_EXPECTED = tuple(each.name for each in fields(JobFeatures) if each.name not in _NOT_EXPECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """An instant estimate of a steady step, without loading data, each number with an interval that contains 95 %."""

    step_ms: float
    step_low_ms: float
    step_high_ms: float
    gract: float
    """Some kernel runs, as DCGM counts it (`records.Activity`)."""
    gract_low: float
    gract_high: float
    smact: float
    smact_low: float
    smact_high: float

    def __post_init__(self) -> None:
        assert 0 < self.step_low_ms <= self.step_ms <= self.step_high_ms, self
        assert 0 <= self.gract_low <= self.gract <= self.gract_high <= 1, self
        assert 0 <= self.smact_low <= self.smact <= self.smact_high <= 1, self


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """An instant estimate of reserved memory (`torch.cuda.max_memory_reserved`)."""

    estimator: str
    reserved_bytes: int
    low_bytes: int | None = None
    """With `high_bytes`, the interval that contains 95 % of runs; None: this estimator has none."""
    high_bytes: int | None = None
    is_whole_device: bool = False
    """The number is of the whole card, not of PyTorch's allocator."""
    bound_bytes: int | None = None
    """Its class of memory is too low in at most 2 % of runs."""
    notes: tuple[str, ...] = ()
    """What the estimate does not know."""
    speed: Speed | None = None
    """None: this estimator says nothing of time, or too little is known of the job."""

    def __post_init__(self) -> None:
        if self.low_bytes is not None and self.high_bytes is not None:
            assert self.low_bytes <= self.reserved_bytes <= self.high_bytes, self


def features_from(value: Any) -> JobFeatures:
    """From plain JSON values; a ValueError says what is wrong."""
    return from_plain(JobFeatures, value)


def plain_features(features: JobFeatures) -> dict[str, Any]:
    """Without fields that are None."""
    plain = to_plain(features)
    assert isinstance(plain, dict)
    return {name: value for name, value in plain.items() if value is not None}
