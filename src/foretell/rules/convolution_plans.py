"""The workspace cuDNN requests for a convolution, if there is no cuDNN to ask: a rule derived from its answers.

cuDNN 9.26 (torch 2.15) was queried for 600 layers of common nets, in three directions, two precisions and two memory
formats, for seven cards (benchmarks/convolution_workspaces.py; B200: 250 layers). Its workspaces have four parts, and
16 bytes at the end:

- Copies in the layout the tensor cores read: channels last, channels padded to 16 bytes. In NCHW, x, y and w are all
  copied (w of a 1x1 filter is the same in both layouts); in channels-last, only operands that need padding.
- Copies rounded to TF32. Except on H100 and B200, a float32 operand is copied whatever its layout: x and w forward, y
  and w for the data gradient, x and y for the weight gradient. The result is copied in NCHW, except by the usual
  forward kernel, which writes NCHW directly.
- Partial sums in float32: a weight gradient has few tiles and long sums, which are split among idle multiprocessors.
- Filters transformed for Winograd: 25 numbers for each pair of channels, for 3x3 filters with few channels, on
  Turing also for those with many.

Layers with too little computation for the copies to pay use a kernel without a workspace: 1x1 filters with few
channels, most depthwise ones, the first layer, tiny ones. The threshold is cuDNN's own time estimate. The parts above
were derived from all layers, the thresholds fitted to one half of them.

On the other half, without the layers of ResNet-50, which were inspected (22,752 rows): 64 % are right within the 512
bytes of one block of PyTorch's allocator, 69 % within 5 %. The errors sum to 19 % of all workspaces, which is 10 % of
x, y and w, where the workspaces are 49 %. Of layers with 16 MiB and more, 85 % are off by at most a tenth of x, y and
w. In the same block: H100 and B200 72 %, A100 66 %, RTX 5090 65 %, RTX 3060 63 %, RTX 4090 60 %, T4 53 %; data
gradients 76 %, forward 73 %, weight gradients 43 %, whose number of partial sums is only approximate. Worst are 1x1
filters in float32 on RTX 30 and 40, where cuDNN's choice looks random.

A second sample (420 rows in tests/data, 383 of layers or batch sizes not queried before) gives 69 % in the same block
and 81 % off by at most a tenth of x, y and w; its errors sum to 43 % of its workspaces, most of that from five rows of
large layers with few channels on one side.

Not queried: TF32 disabled, cudnn.benchmark, float64, Volta and Pascal; hardly any 3d convolutions. bfloat16 gets the
same as float16 in 19 of 20 cases. Near the limit of a card, torch uses another plan than the first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod

from .convolution import Convolution

_END = 16
_TINY = 64 * 1024
"""Elements of x, y and w; smaller layers are computed without copies."""
_WINOGRAD = 4 * 25
"""Bytes for each pair of channels."""


def planned_workspace(convolution: Convolution, compute_capability: tuple[int, int]) -> int:
    """In bytes, for convolutions that PyTorch sends to cuDNN; it computes most depthwise ones in NCHW itself. Padding
    and dilation showed no effect beyond the shape of y."""
    layer = _Layer.of(convolution)
    cards = _generation(compute_capability)
    if layer.element_bytes not in (2, 4):
        return 0  # double: no tensor cores that PyTorch would use
    if layer.is_depthwise:
        return _depthwise(layer, cards)
    if layer.c <= 4 and layer.groups == 1:
        return _first(layer, cards)
    if not layer.is_channels_last and prod(layer.x) + prod(layer.y) + prod(layer.w) < _TINY:
        return 0
    if layer.element_bytes == 2 or cards.reads_float32:
        return _arranged(layer, cards)
    if not cards.has_tf32:
        return _without_tensor_cores(layer)
    return _rounded(layer, cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """Differences between card generations. cuDNN plans by compute capability alone: RTX 4060 and 4090, with 24 and 128
    multiprocessors, got the same workspaces for all layers, and so did RTX 3060 and 3090.

    Below the thresholds named direct_, nothing is copied; those on channels are for 1x1 filters.
    """

    num_parts: int
    """Partial sums of a weight gradient with one tile; with more tiles there are fewer per tile."""
    has_tf32: bool = True
    reads_float32: bool = False
    """Tensor cores read float32 and round it in hardware."""
    has_much_bandwidth: bool = False
    """Relative to compute throughput: copying is cheap."""
    direct_channels_half: int = 0
    """Forward in half precision."""
    direct_channels_forward: int = 0
    """Forward in TF32."""
    direct_channel_pairs_data: int = 0
    direct_channel_pairs_weights: int = 0
    direct_intensity: int = 0
    """For larger filters in the backward pass; on Hopper, also for 1x1 filters in float32."""
    few_tiles: int = 0
    """Below this many tiles, sums are split in the forward direction, too."""


_TURING = _Generation(num_parts=32, has_tf32=False, direct_channels_half=100)
_A100 = _Generation(
    num_parts=80,
    has_much_bandwidth=True,
    direct_channels_half=48,
    direct_channels_forward=200,
    direct_channel_pairs_weights=600,
    direct_intensity=90,
    few_tiles=40,
)
_AMPERE = _Generation(
    num_parts=28,
    direct_channels_half=64,
    direct_channels_forward=384,
    direct_channel_pairs_data=1600,
    direct_channel_pairs_weights=72_000,
    direct_intensity=200,
    few_tiles=80,
)
_ADA = _Generation(
    num_parts=64,
    direct_channel_pairs_data=36_000,
    direct_channel_pairs_weights=72_000,
    direct_intensity=250,
    few_tiles=96,
)
_HOPPER = _Generation(
    num_parts=0, has_much_bandwidth=True, reads_float32=True, direct_channels_half=16, direct_intensity=64
)
_B200 = _Generation(num_parts=0, has_much_bandwidth=True, reads_float32=True, direct_channels_half=16)
_BLACKWELL_RTX = _Generation(
    num_parts=128,
    direct_channels_half=40,
    direct_channels_forward=200,
    direct_intensity=90,
    few_tiles=600,
)


def _generation(compute_capability: tuple[int, int]) -> _Generation:
    if compute_capability < (8, 0):
        return _TURING
    if compute_capability >= (12, 0):
        return _BLACKWELL_RTX
    if compute_capability >= (10, 0):
        return _B200
    return {(8, 0): _A100, (8, 9): _ADA, (9, 0): _HOPPER}.get(compute_capability, _AMPERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer(Convolution):
    """A convolution with the derived quantities the rule needs."""

    @classmethod
    def of(cls, convolution: Convolution) -> _Layer:
        return cls(**{each.name: getattr(convolution, each.name) for each in fields(convolution)})

    @property
    def c(self) -> int:
        return self.x[1]

    @property
    def k(self) -> int:
        return self.y[1]

    @property
    def taps(self) -> int:
        return prod(self.w[2:])

    @property
    def pixels(self) -> int:
        return self.y[0] * prod(self.y[2:])

    @property
    def is_large(self) -> bool:
        return self.pixels >= 20_000

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.w[1] == 1

    @property
    def is_winograd(self) -> bool:
        return self.taps == 9 and max(self.stride) == 1 and self.groups == 1

    @property
    def intensity(self) -> float:
        """Multiplications per element of x, y and w."""
        return self.pixels * prod(self.w) / (prod(self.x) + prod(self.y) + prod(self.w))

    @property
    def pads_x(self) -> bool:
        return self._padded(self.c) != self.c

    @property
    def pads_y(self) -> bool:
        return self._padded(self.k) != self.k

    @property
    def x_copy(self) -> int:
        return self.element_bytes * self.x[0] * self._padded(self.c) * prod(self.x[2:])

    @property
    def y_copy(self) -> int:
        return self.element_bytes * self.y[0] * self._padded(self.k) * prod(self.y[2:])

    @property
    def w_copy(self) -> int:
        return self.element_bytes * self._padded(self.k) * self._padded(self.w[1]) * self.taps

    @property
    def unpadded_copies(self) -> int:
        return self.element_bytes * (prod(self.x) + prod(self.y) + prod(self.w)) + _END

    def _padded(self, channels: int) -> int:
        multiple = 16 // self.element_bytes
        return channels if self.groups > 1 else _tiles(channels, multiple) * multiple

    def partial_sums(self, num_parts: int) -> int:
        """Partial sums of the weight gradient: one float32 copy of w per part; none for fewer than four parts."""
        tiles = _tiles(self.k, 128) * _tiles(self.w[1] * self.taps, 128)
        num_parts = min(num_parts // tiles, self.pixels // 512)
        return num_parts * self.w_copy * 4 // self.element_bytes + 128 if num_parts > 3 else 0


def _tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)


def _depthwise(layer: _Layer, cards: _Generation) -> int:
    if layer.direction != "weights" or not layer.is_channels_last:
        return 0
    if layer.element_bytes == 2:  # eight partial sums per image, channels padded to 32
        return 4 * 8 * layer.x[0] * layer.taps * 32 * _tiles(layer.k, 32)
    if layer.taps >= 49 and cards.has_much_bandwidth:  # as if grouped: the one channel of a group is padded to four
        return 4 * (4 * prod(layer.x) + 4 * prod(layer.y) + 16 * prod(layer.w)) + _END
    return 0


def _first(layer: _Layer, cards: _Generation) -> int:
    """Layers with up to four channels, which are not padded in float32."""
    if layer.taps == 1 or layer.k < 16:
        return 0
    if layer.element_bytes == 2:
        if layer.direction == "forward":
            return 0
        return layer.x_copy + layer.w_copy + (0 if layer.is_channels_last else layer.y_copy) + _END
    if layer.direction == "forward":
        return layer.unpadded_copies if layer.taps > 9 and not layer.is_channels_last and cards is _A100 else 0
    if layer.direction == "data":
        return layer.unpadded_copies if layer.is_channels_last else 0
    if layer.taps < 49 or cards not in (_A100, _ADA):
        return 0
    return layer.x_copy + layer.y_copy + layer.w_copy + layer.partial_sums(cards.num_parts) + _END


def _arranged(layer: _Layer, cards: _Generation) -> int:
    """For tensor cores that read the elements without conversion."""
    pads = layer.pads_x or layer.pads_y
    if layer.is_channels_last or prod(layer.x[2:]) == 1:
        copies = (layer.x_copy if layer.pads_x else 0) + (layer.y_copy if layer.pads_y else 0)
        copies += layer.w_copy if pads else 0
    elif layer.taps == 1 and _is_direct_arranged(layer, cards):
        return 0
    else:
        copies = layer.x_copy + layer.y_copy + (layer.w_copy if layer.taps > 1 or pads else 0)
    if layer.direction == "weights":  # none on H100 and B200, which sum within a cluster
        copies += layer.partial_sums(cards.num_parts)
    return copies + _END if copies else 0


def _is_direct_arranged(layer: _Layer, cards: _Generation) -> bool:
    if layer.direction == "forward" and layer.c < cards.direct_channels_half:
        return True
    if layer.direction == "forward" and layer.pixels >= 200_000 and cards is _ADA:
        return True
    return layer.direction != "weights" and layer.element_bytes == 4 and layer.intensity < cards.direct_intensity


def _rounded(layer: _Layer, cards: _Generation) -> int:
    """float32 on tensor cores that read TF32."""
    x, y, w, is_last = layer.x_copy, layer.y_copy, layer.w_copy, layer.is_channels_last
    channel_pairs = layer.c * layer.k
    if layer.direction == "forward":
        if layer.taps == 1 and _is_direct_forward(layer, cards):
            return 0
        if layer.is_winograd and layer.c < 32 and not is_last:
            return _WINOGRAD * channel_pairs
        is_split = _tiles(layer.pixels, 128) * _tiles(layer.k, 128) < cards.few_tiles
        copies_y = layer.pads_y if is_last else layer.k % 8 or layer.groups > 1 or is_split
        return x + w + (y if copies_y else 0) + _END
    if layer.direction == "data":
        if is_last:
            return y + w + (x if layer.pads_x else 0) + _END
        if layer.is_winograd and layer.c < 40:
            return _WINOGRAD * channel_pairs
        if _is_direct_data(layer, cards):
            return 0
        return x + y + w + _END
    if _is_direct_weights(layer, cards):
        return 0
    return x + y + (0 if is_last or layer.taps == 1 else w) + layer.partial_sums(cards.num_parts) + _END


def _is_direct_forward(layer: _Layer, cards: _Generation) -> bool:
    """For 1x1 filters. Large images are copied sooner on A100, never on Ada, which has little bandwidth for its
    compute."""
    if cards is _ADA:
        return layer.c * layer.k < 20_000 or layer.is_large
    if cards is _A100 and layer.is_large:
        return min(layer.c, layer.k) < 48
    if layer.is_channels_last:
        return layer.c < 100
    return layer.c < cards.direct_channels_forward and (cards is _A100 or layer.k < 256 or not layer.is_large)


def _is_direct_data(layer: _Layer, cards: _Generation) -> bool:
    if layer.taps > 1:
        return layer.intensity < cards.direct_intensity
    if cards is _AMPERE and layer.is_large and layer.c <= 256 and layer.k >= 2 * layer.c:
        return True
    return layer.c * layer.k < cards.direct_channel_pairs_data


def _is_direct_weights(layer: _Layer, cards: _Generation) -> bool:
    if layer.taps > 1:
        return layer.intensity < cards.direct_intensity
    return layer.c * layer.k < cards.direct_channel_pairs_weights


def _without_tensor_cores(layer: _Layer) -> int:
    """float32 on Turing: kernels are for NCHW, so channels-last is copied."""
    if layer.direction == "weights" or layer.taps == 1:
        return 0
    transformed = _WINOGRAD * layer.c * layer.k if layer.is_winograd else 0
    return transformed + (layer.unpadded_copies if layer.is_channels_last else 0)
