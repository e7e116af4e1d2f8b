"""GPUMemNet (Yousefzadeh-Asl-Miandoab et al., 2025 and 2026), re-created: ensembles of small networks that answer with
a class of memory. Torch is imported here.

Two kinds, as in the papers: fully connected networks on totals of the model (layers by type, parameters, activations,
batch size, and the activation function as a sine and a cosine), and Transformer encoders on the sequence of its layers
with these totals beside them. There is one ensemble for each family of models. Written from the papers' description;
sizes and training are our own, and inputs are logarithms.

What they leave out: the optimizer, the precision, the card, the size of the input, what autograd saves, and workspaces.
So an ensemble is right for one campaign: one card, one version of each library, one way to train. It never answers
more than the largest class it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from foretell.errors import UsageError
from foretell.features import Family, Guess, JobFeatures, Layer
from foretell.learn import arrays
from foretell.learn.classes import CLASS_BYTES, Example, Scores, classes_of, folds, scores
from foretell.learn.networks import arrays_of, batches, restore
from foretell.plain import from_plain, to_plain
from foretell.records import Gpu
from foretell.units import format_bytes

NAME = "gpumemnet"
Kind = Literal["mlp", "transformer"]
"""Of the estimator's networks, not of the models they judge."""
KINDS: tuple[Kind, ...] = get_args(Kind)
FEWEST_EXAMPLES = 30
ACTIVATIONS = (
    "ELU", "GELU", "Identity", "LeakyReLU", "Mish", "PReLU", "ReLU", "SELU", "SiLU", "Softplus", "Tanh",
)  # fmt: skip
_COUNTED = ("Linear", "Conv", "BatchNorm", "LayerNorm", "Dropout", "Embedding")
_LONGEST = 512
"""Layers of a sequence; the papers pad to the longest of their data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of an ensemble."""

    kind: Kind = "mlp"
    members: int = 4
    epochs: int = 150
    width: int = 64
    """Of hidden layers, or of the encoder; each member has its own width from there on."""
    batch_size: int = 128
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        assert min(self.members, self.epochs, self.width, self.batch_size) > 0, self


SETTINGS: dict[Kind, Settings] = {
    "mlp": Settings(kind="mlp"),
    "transformer": Settings(kind="transformer", members=2, epochs=40, width=32, batch_size=64, learning_rate=2e-3),
}


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Networks whose probabilities are averaged."""

    kind: Kind
    width: int
    class_bytes: int
    num_classes: int
    has_oom: bool
    """The last class is running out of memory."""
    members: Sequence[nn.Module]

    def probabilities(self, jobs: Sequence[JobFeatures]) -> torch.Tensor:
        inputs = _inputs(jobs, self.kind)
        with torch.no_grad():
            found: torch.Tensor = torch.stack([each(*inputs).softmax(1) for each in self.members]).mean(0)
        return found

    def classes(self, jobs: Sequence[JobFeatures]) -> list[int]:
        found: list[int] = self.probabilities(jobs).argmax(1).tolist()
        return found


@dataclass(frozen=True, eq=False)
class GpuMemNet:
    """One ensemble for each family. An answer is the upper edge of its class, as in the papers."""

    ensembles: dict[Family, Ensemble]
    is_whole_device: bool
    """Trained on memory of the whole card, not of PyTorch's allocator."""
    name: str = NAME

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        ensemble = self.ensembles.get(features.family)
        if ensemble is None or not is_usable(features):
            return None
        (found,) = ensemble.classes([features])
        notes, width = [], ensemble.class_bytes
        if ensemble.has_oom and found == ensemble.num_classes - 1:
            num_bytes = gpu.total_bytes + 1
            notes.append("the class of jobs that ran out of memory in its training")
        else:
            num_bytes = (found + 1) * width - 1
            notes.append(f"a class: between {format_bytes(found * width)} and {format_bytes((found + 1) * width)}")
            if found == ensemble.num_classes - 1:
                notes.append("the largest class of its training: it never answers more")
        return Guess(
            estimator=self.name, reserved_bytes=num_bytes, is_whole_device=self.is_whole_device, notes=tuple(notes)
        )


def is_usable(features: JobFeatures) -> bool:
    return bool(features.layers) and bool(features.batch_size) and features.parameters is not None


# --- training ---------------------------------------------------------------------------------------------------------


def train(
    examples: Sequence[Example], settings: Settings, *, class_bytes: int, on_epoch: Callable[[], None] = lambda: None
) -> Ensemble:
    """An ensemble on jobs of one family. The global random state is left as it was."""
    known = [each for each in examples if is_usable(each.features)]
    if len(known) < FEWEST_EXAMPLES:
        raise UsageError(
            f"GPUMemNet needs {FEWEST_EXAMPLES} or more jobs of a family with layers and a batch size; there are "
            f"{len(known)}."
        )
    jobs = [each.features for each in known]
    truth = torch.tensor(classes_of(known, class_bytes))
    inputs, num_classes = _inputs(jobs, settings.kind), int(truth.max()) + 1
    with torch.random.fork_rng(devices=[]):
        members = []
        for number in range(settings.members):
            torch.manual_seed(settings.seed + number)
            member = _member(settings.kind, settings.width, number, num_classes)
            _standardize(member, inputs)
            _fit(member, inputs, truth, settings, on_epoch)
            members.append(member)
    has_oom = any(each.is_oom for each in known)
    return Ensemble(settings.kind, settings.width, class_bytes, num_classes, has_oom, members)


def train_families(
    examples: Sequence[Example], settings: Settings, *, is_whole_device: bool, class_bytes: int | None = None
) -> GpuMemNet:
    """An ensemble for each family with enough jobs; `class_bytes` overrides the papers' widths."""
    ensembles: dict[Family, Ensemble] = {}
    for family, width in CLASS_BYTES.items():
        chosen = [each for each in examples if each.features.family == family and is_usable(each.features)]
        if len(chosen) >= FEWEST_EXAMPLES:
            ensembles[family] = train(chosen, settings, class_bytes=class_bytes or width)
    if not ensembles:
        raise UsageError(f"the data has no family with {FEWEST_EXAMPLES} or more usable jobs to train GPUMemNet on.")
    return GpuMemNet(ensembles, is_whole_device)


def cross_validate(
    examples: Sequence[Example], settings: Settings, *, class_bytes: int, num_folds: int,
    on_epoch: Callable[[], None] = lambda: None,
) -> list[Scores]:  # fmt: skip
    """Scores of each fold, by an ensemble that was trained from scratch on the others. A job with nothing to go by is
    answered with the lowest class."""
    truth = classes_of(examples, class_bytes)
    parts = folds([each.group for each in examples], num_folds, seed=settings.seed)
    found = []
    for fold in range(num_folds):
        tested = [i for i, part in enumerate(parts) if part == fold]
        others = [each for each, part in zip(examples, parts, strict=True) if part != fold]
        ensemble = train(others, settings, class_bytes=class_bytes, on_epoch=on_epoch)
        answers = _classes(ensemble, [examples[i].features for i in tested], top=max(truth))
        found.append(scores([truth[i] for i in tested], answers))
    return found


def _classes(ensemble: Ensemble, jobs: Sequence[JobFeatures], *, top: int) -> list[int]:
    """In the classes of all examples, of which a fold may lack the largest."""
    usable = [i for i, job in enumerate(jobs) if is_usable(job)]
    found = [0] * len(jobs)
    for i, answer in zip(usable, ensemble.classes([jobs[i] for i in usable]), strict=True):
        found[i] = top if ensemble.has_oom and answer == ensemble.num_classes - 1 else answer
    return found


def _fit(
    member: nn.Module, inputs: tuple[torch.Tensor, ...], truth: torch.Tensor, settings: Settings,
    on_epoch: Callable[[], None],
) -> None:  # fmt: skip
    optimizer = torch.optim.AdamW(member.parameters(), lr=settings.learning_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, epochs=settings.epochs,
        steps_per_epoch=math.ceil(len(truth) / settings.batch_size),
    )  # fmt: skip
    lengths = inputs[2] if settings.kind == "transformer" else torch.ones(len(truth))
    member.train()
    for _ in range(settings.epochs):
        for rows in batches(lengths, settings.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(member(*(each[rows] for each in inputs)), truth[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        on_epoch()
    member.eval()


# --- networks ---------------------------------------------------------------------------------------------------------


def _member(kind: Kind, width: int, number: int, num_classes: int) -> nn.Module:
    """Each has a width of its own."""
    own_width = width + 16 * number
    return _Totals(own_width, num_classes) if kind == "mlp" else _Sequence(own_width, num_classes)


class _Totals(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(TOTALS)))
        self.register_buffer("spread", torch.ones(len(TOTALS)))
        self.layers = nn.Sequential(
            nn.Linear(len(TOTALS), width), nn.GELU(), nn.Dropout(0.05), nn.Linear(width, width), nn.GELU(),
            nn.Dropout(0.05), nn.Linear(width, num_classes),
        )  # fmt: skip

    def forward(self, totals: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers((totals - self.mean) / self.spread)
        return found


class _Sequence(nn.Module):  # type: ignore[misc]
    """An encoder over the layers; the mean and the largest of its outputs, and the totals, decide."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(TOTALS)))
        self.register_buffer("spread", torch.ones(len(TOTALS)))
        self.embedding = nn.Linear(_TOKEN, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.05, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Sequential(
            nn.Linear(2 * width + len(TOTALS), 2 * width), nn.GELU(), nn.Linear(2 * width, num_classes)
        )

    def forward(self, totals: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        tokens = tokens[:, : int(lengths.max())]
        places = torch.arange(tokens.shape[1])
        is_padding = places[None, :] >= lengths[:, None]
        encoded = self.embedding(tokens)
        encoded = encoded + _places(tokens.shape[1], encoded.shape[2])
        encoded = self.encoder(encoded, src_key_padding_mask=is_padding)
        mean = encoded.masked_fill(is_padding[:, :, None], 0.0).sum(1) / lengths[:, None]
        largest = encoded.masked_fill(is_padding[:, :, None], -1e9).amax(1)
        found: torch.Tensor = self.head(torch.cat([mean, largest, (totals - self.mean) / self.spread], 1))
        return found


def _places(length: int, width: int) -> torch.Tensor:
    """Where in the sequence: sines and cosines."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length)[:, None] * rates[None, :]
    return torch.stack([angles.sin(), angles.cos()], 2).reshape(length, -1)[:, :width]


def _standardize(member: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    member.mean.copy_(inputs[0].mean(0))
    member.spread.copy_(inputs[0].std(0, correction=0).clamp_min(1e-6))


# --- inputs -----------------------------------------------------------------------------------------------------------

TOTALS = (
    "layers", *(f"num_{kind}" for kind in _COUNTED), "batch", "parameters", "activations", "activations_x_batch",
    "log_batch", "log_parameters", "log_activations", "log_activations_x_batch", "sine", "cosine",
)  # fmt: skip
_TOKEN = len(_COUNTED) + 1 + 5
_SCALE = 2.0**30


def totals(features: JobFeatures) -> list[float]:
    """In the order of `TOTALS`; activations are of one sample."""
    layers = features.layers or ()
    batch_size, parameters = features.batch_size or 1, features.parameters or 0
    together = sum(layer.activations for layer in layers)
    sizes = (batch_size, parameters, together / batch_size, together)
    return [
        float(len(layers)),
        *(float(sum(layer.kind.startswith(kind) for layer in layers)) for kind in _COUNTED),
        *(size / _SCALE for size in sizes),
        *(math.log1p(size) for size in sizes),
        *encoded_activation(features),
    ]


def encoded_activation(features: JobFeatures) -> tuple[float, float]:
    """The activation function used most, as a point on a half circle; the origin stands for none."""
    kinds = [layer.kind for layer in features.layers or () if layer.kind in ACTIVATIONS]
    return _angle(max(kinds, key=kinds.count)) if kinds else (0.0, 0.0)


def _angle(kind: str) -> tuple[float, float]:
    if kind not in ACTIVATIONS:
        return 0.0, 0.0
    angle = math.pi * ACTIVATIONS.index(kind) / len(ACTIVATIONS)
    return math.sin(angle), math.cos(angle)


def _token(layer: Layer, batch_size: int) -> list[float]:
    kinds = [float(layer.kind.startswith(kind)) for kind in _COUNTED]
    sizes = (layer.activations / batch_size, layer.activations, layer.parameters)
    return [*kinds, float(not any(kinds)), *(math.log1p(size) / 10 for size in sizes), *_angle(layer.kind)]


def _inputs(jobs: Sequence[JobFeatures], kind: Kind) -> tuple[torch.Tensor, ...]:
    known = torch.tensor([totals(job) for job in jobs], dtype=torch.float32)
    if kind == "mlp":
        return (known,)
    sequences = [[_token(layer, job.batch_size or 1) for layer in (job.layers or ())[:_LONGEST]] for job in jobs]
    lengths = torch.tensor([len(each) for each in sequences])
    tokens = torch.zeros(len(jobs), int(lengths.max()), _TOKEN)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    return known, tokens, lengths


# --- files ------------------------------------------------------------------------------------------------------------


def save(path: Path, trained: GpuMemNet, about: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    sizes = {}
    for family, ensemble in trained.ensembles.items():
        for number, member in enumerate(ensemble.members):
            found |= arrays_of(f"{family}/{number}", member)
        sizes[family] = to_plain(
            _Sizes(
                kind=ensemble.kind, width=ensemble.width, members=len(ensemble.members),
                class_bytes=ensemble.class_bytes, num_classes=ensemble.num_classes, has_oom=ensemble.has_oom,
            )
        )  # fmt: skip
    card = {
        "method": NAME, "inputs": list(TOTALS), "ensembles": sizes, "is_whole_device": trained.is_whole_device,
        "data": about, "software": {"torch": torch.__version__},
    }  # fmt: skip
    arrays.save(path, found, card)


def read(path: Path) -> GpuMemNet:
    found, whole_card = arrays.load(path)
    try:
        card = from_plain(_Card, {name: whole_card.get(name) for name in ("inputs", "ensembles", "is_whole_device")})
        if card.inputs != TOTALS:
            raise ValueError("it was trained on other inputs than this foretell computes")
        ensembles = {family: _restored(found, family, each) for family, each in card.ensembles.items()}
    except ValueError as error:
        raise arrays.cannot_use(path, error) from None
    return GpuMemNet(ensembles, card.is_whole_device)


def _restored(found: dict[str, Any], family: Family, sizes: _Sizes) -> Ensemble:
    members = []
    for number in range(sizes.members):
        member = _member(sizes.kind, sizes.width, number, sizes.num_classes)
        restore(f"{family}/{number}", member, found)
        members.append(member)
    return Ensemble(sizes.kind, sizes.width, sizes.class_bytes, sizes.num_classes, sizes.has_oom, members)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    kind: Kind
    width: int
    members: int
    class_bytes: int
    num_classes: int
    has_oom: bool

    def __post_init__(self) -> None:
        assert 0 < self.width <= 512, f"a width of {self.width}"
        assert self.width % 4 == 0, f"a width of {self.width}"
        assert 0 < self.members <= 32, f"{self.members} members"
        assert 0 < self.num_classes <= 4096, f"{self.num_classes} classes"
        assert 0 < self.class_bytes <= 2**50, f"classes of {self.class_bytes} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    inputs: tuple[str, ...]
    ensembles: dict[Family, _Sizes]
    is_whole_device: bool
