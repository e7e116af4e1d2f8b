"""DNNPerf (Gao et al., ICSE-SEIP 2023): a graph network over the operators of a model. Torch is imported here.

Nodes are layers in the order of their calls, with their type, sizes and, for convolutions, their shapes; edges carry
the size of the tensor between two layers. A few rounds of messages, weighted by attention over the edge, are added up
and decide together with what is known of the job as a whole (batch size, optimizer, precision, card). It answers with
bytes, by regression on their logarithm.

What it leaves out: branches. A description has layers in a sequence and not which tensor goes where, so the graph is a
chain, both ways; functions that are no layers (`torch.cat`, attention as a function) are not nodes. Workspaces and what
autograd saves are not told to it. A job much larger than those of its training is an extrapolation of the network.
Written from the paper's description; sizes and training are our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.errors import UsageError
from foretell.features import ConvolutionCall, Guess, JobFeatures, Layer
from foretell.formulas.model_states import state_bytes
from foretell.learn import arrays
from foretell.learn.networks import arrays_of, batches, restore
from foretell.learn.train import Labelled
from foretell.plain import from_plain
from foretell.records import Gpu

NAME = "dnnperf"
FEWEST_ROWS = 30
_KINDS = (
    "Linear", "Conv", "BatchNorm", "LayerNorm", "GroupNorm", "Dropout", "Embedding", "ReLU", "GELU", "SiLU", "Tanh",
    "Sigmoid", "Softmax", "MaxPool", "AvgPool", "AdaptiveAvgPool", "Identity", "Flatten", "LSTM",
)  # fmt: skip
_NODE = len(_KINDS) + 1 + 3 + 6
_JOB = 9
_LONGEST = 1024
_SMALLEST_LOG, _LARGEST_LOG = math.log(2**20), math.log(2**44)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    width: int = 48
    rounds: int = 3
    epochs: int = 60
    batch_size: int = 32
    learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        assert min(self.width, self.rounds, self.epochs, self.batch_size) > 0, self


@dataclass(frozen=True, eq=False)
class DnnPerf:
    network: _Network
    largest_bytes: int
    name: str = NAME

    def guess(self, features: JobFeatures, gpu: Gpu) -> Guess | None:
        if not _is_usable(features):
            return None
        with torch.no_grad():
            log = float(self.network(*_inputs([(features, gpu)]))[0])
        num_bytes = int(math.exp(min(max(log, _SMALLEST_LOG), _LARGEST_LOG)))
        is_beyond = num_bytes > self.largest_bytes
        notes = ("larger than any job of its training: an extrapolation",) if is_beyond else ()
        return Guess(estimator=self.name, reserved_bytes=num_bytes, notes=notes)


def train(
    rows: Sequence[Labelled], settings: Settings | None = None, *, on_epoch: Callable[[], None] = lambda: None
) -> DnnPerf:
    """The global random state is left as it was."""
    settings = settings or Settings()
    known = [row for row in rows if _is_usable(row.features)]
    if len(known) < FEWEST_ROWS:
        raise UsageError(f"DNNPerf needs {FEWEST_ROWS} or more jobs with layers and a batch size, not {len(known)}.")
    inputs = _inputs([(row.features, row.gpu) for row in known])
    truth = torch.tensor([math.log(max(row.reserved_bytes, 1)) for row in known])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = _Network(settings.width, settings.rounds)
        network.middle.copy_(truth.mean())
        _fit(network, inputs, truth, settings, on_epoch)
    return DnnPerf(network, max(row.reserved_bytes for row in known))


def _fit(
    network: _Network, inputs: tuple[torch.Tensor, ...], truth: torch.Tensor, settings: Settings,
    on_epoch: Callable[[], None],
) -> None:  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, epochs=settings.epochs,
        steps_per_epoch=math.ceil(len(truth) / settings.batch_size),
    )  # fmt: skip
    network.train()
    for _ in range(settings.epochs):
        for rows in batches(inputs[-1], settings.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(network(*(each[rows] for each in inputs)), truth[rows], beta=0.05)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        on_epoch()
    network.eval()


class _Network(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("middle", torch.zeros(()))
        self.node = nn.Linear(_NODE, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width + 1, width) for _ in range(rounds))
        self.attentions = nn.ModuleList(nn.Linear(2 * width + 1, 1) for _ in range(rounds))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.head = nn.Sequential(
            nn.Linear(3 * width + _JOB, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.GELU(),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(
        self, job: torch.Tensor, nodes: torch.Tensor, edges: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        longest = int(lengths.max())
        nodes, edges = nodes[:, :longest], edges[:, : longest - 1, None]
        is_node = (torch.arange(longest)[None, :] < lengths[:, None])[:, :, None]
        is_edge = is_node[:, 1:]
        state = nn.functional.gelu(self.node(nodes)) * is_node
        for message, attention, update in zip(self.messages, self.attentions, self.updates, strict=True):
            before, after = state[:, :-1], state[:, 1:]
            received = torch.zeros_like(state)
            forth = torch.cat([before, after, edges], 2)
            back = torch.cat([after, before, edges], 2)
            received[:, 1:] += message(forth) * attention(forth).sigmoid() * is_edge
            received[:, :-1] += message(back) * attention(back).sigmoid() * is_edge
            state = state + nn.functional.gelu(update(torch.cat([state, received], 2))) * is_node
        total = state.sum(1)
        mean = total / lengths[:, None]
        largest = state.masked_fill(~is_node, -1e9).amax(1)
        found: torch.Tensor = self.head(torch.cat([total / 100, mean, largest, job], 1))[:, 0]
        return found + self.middle


# --- inputs -----------------------------------------------------------------------------------------------------------


def _is_usable(features: JobFeatures) -> bool:
    return bool(features.layers) and bool(features.batch_size) and features.parameters is not None


def _inputs(jobs: Sequence[tuple[JobFeatures, Gpu]]) -> tuple[torch.Tensor, ...]:
    graphs = [_nodes(job) for job, _ in jobs]
    lengths = torch.tensor([len(each) for each in graphs])
    longest = max(2, int(lengths.max()))
    nodes, edges = torch.zeros(len(jobs), longest, _NODE), torch.zeros(len(jobs), longest - 1)
    for row, graph in enumerate(graphs):
        nodes[row, : len(graph)] = torch.tensor(graph)
        edges[row, : len(graph) - 1] = nodes[row, : len(graph) - 1, len(_KINDS) + 1]
    return torch.tensor([_job(*job) for job in jobs]), nodes, edges, lengths


def _nodes(features: JobFeatures) -> list[list[float]]:
    """Convolutions are matched with layers in the order of the calls; one that is called as a function has no node."""
    calls = list(features.convolutions or ())
    found = []
    for layer in (features.layers or ())[:_LONGEST]:
        call = calls.pop(0) if layer.kind.startswith("Conv") and calls else None
        found.append(_node(layer, call))
    return found


def _node(layer: Layer, call: ConvolutionCall | None) -> list[float]:
    kinds = [float(layer.kind.startswith(kind)) for kind in _KINDS]
    sizes = (_log(layer.activations), _log(layer.parameters), float(layer.parameters > 0))
    shapes = [0.0] * 6
    if call is not None:
        shapes = [
            _log(math.prod(call.x)), _log(call.w[0]), _log(math.prod(call.w[2:])), _log(call.groups),
            _log(call.stride[0]), call.element_bytes / 4,
        ]  # fmt: skip
    return [*kinds, float(not any(kinds)), *sizes, *shapes]


def _job(features: JobFeatures, gpu: Gpu) -> list[float]:
    parameter_bytes = features.parameter_bytes or 4 * (features.parameters or 0)
    return [
        _log(features.batch_size or 0), _log(features.parameters or 0), _log(parameter_bytes),
        _log(sum(layer.activations for layer in features.layers or ())), _log(state_bytes(features)),
        _log(features.input_bytes or 0), (features.element_bytes or 4) / 4, math.log(gpu.total_bytes) / 10,
        gpu.compute_capability[0] / 10,
    ]  # fmt: skip


def _log(value: float) -> float:
    return math.log1p(value) / 10


# --- files ------------------------------------------------------------------------------------------------------------


def save(path: Path, trained: DnnPerf, about: dict[str, Any]) -> None:
    sizes = {"width": trained.network.width, "rounds": len(trained.network.messages)}
    card = {
        "method": NAME, **sizes, "largest_bytes": trained.largest_bytes, "data": about,
        "software": {"torch": torch.__version__},
    }  # fmt: skip
    arrays.save(path, arrays_of(NAME, trained.network), card)


def read(path: Path) -> DnnPerf:
    found, whole_card = arrays.load(path)
    try:
        card = from_plain(_Card, {name: whole_card.get(name) for name in ("width", "rounds", "largest_bytes")})
        network = _Network(card.width, card.rounds)
        restore(NAME, network, found)
    except ValueError as error:
        raise arrays.cannot_use(path, error) from None
    return DnnPerf(network, card.largest_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    width: int
    rounds: int
    largest_bytes: int

    def __post_init__(self) -> None:
        assert 0 < self.width <= 512, f"a width of {self.width}"
        assert 0 < self.rounds <= 16, f"{self.rounds} rounds"
