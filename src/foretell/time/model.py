"""How long a card takes for a piece of work: computing and moving its bytes, whichever is longer, and a start.

    seconds = max(((flops / rate)^3 + (bytes / bandwidth)^3)^(1/3), waiting) + launches * start

The rate is what the card sustains (rates.py) times a share for the class of kernel; products lose what their tiles
waste. Nothing here knows a model or a measured run; the shares are in constants.toml.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from foretell.records import Gpu
from foretell.time.rates import sustained_flops
from foretell.time.work import Item, Product

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TILE = 128
NARROWEST_TILE = 16
"""Of tensor cores: no tile has channels of two groups."""
L2_REACH = 1.5
"""Of the size of L2. The one constant that was chosen with the RTX 4090 in view, on which models that are bound by
bandwidth took 0.8 of what they would without L2."""
THREADS_TO_FILL_AN_SM = 512
"""So many that load 16 bytes at a time keep the memory busy: latency times bandwidth, for one SM."""
LOADS_UNDER_WAY = {"reduction": 4}
"""Of a thread, where they are not one: PyTorch's reductions are unrolled (`vt0` in Reduce.cuh)."""
LEAST_SHARE = 0.01
MEMORY_LATENCY = 300e-9
"""Of an access that misses the caches: 250 to 350 ns where it was measured, from Turing to Ada, on idle memory."""
ROUNDS_OF_A_BLOCK = 4
"""PyTorch's layer norm has a block for each row, however short: it reads, reduces twice across its warps, and writes.
Each takes about as long as an access to memory. So has a batched product for each matrix, however small."""
TILES_ON_AN_SM = 2
"""Blocks of 256 threads with 128 registers each."""
PCIE_BYTES_PER_SECOND = {True: 20e9, False: 6e9}
"""Copies from pinned memory and from plain memory: what PCIe 4 x16, and the driver's staging buffer, usually reach."""


@dataclass(frozen=True, slots=True)
class Constants:
    bandwidth: Mapping[str, float]
    rate: Mapping[str, float]
    set: Mapping[str, float] = field(default_factory=dict)

    @property
    def start_seconds(self) -> float:
        return self.set["start_us"] * 1e-6

    def bandwidth_share(self, kernel_class: str) -> float:
        return _share(self.bandwidth, kernel_class)

    def rate_share(self, kernel_class: str) -> float:
        return _share(self.rate, kernel_class)


def _share(shares: Mapping[str, float], kernel_class: str) -> float:
    plain = kernel_class.removesuffix("_nhwc")
    return shares.get(kernel_class, shares.get(plain, shares["other"]))


@cache
def constants() -> Constants:
    with Path(__file__).with_name("constants.toml").open("rb") as file:
        return Constants(**tomllib.load(file))


@dataclass(frozen=True, slots=True)
class Demand:
    """An item on one card, before the shares are known."""

    flop_seconds: float
    """At the sustained rate, with what tiles waste."""
    byte_seconds: float
    """At full bandwidth."""
    launches: int
    waiting_seconds: float = 0.0
    """Of each thread for its accesses to memory, if it makes many one after the other."""


def demand(item: Item, gpu: Gpu) -> Demand:
    rate = sustained_flops(gpu, item.unit if item.flops else "fp32")
    waste = 1.0
    if item.product is not None and item.kernel_class.startswith("grouped_conv"):
        waste = _padded(item.product.n, NARROWEST_TILE) / max(1, item.product.n)
    elif item.product is not None:
        waste = tile_waste(item.product, gpu.num_sms, is_tensor=item.unit in ("tensor", "tf32"))
    moved = item.bytes * misses(item.bytes, gpu.l2_bytes)
    return Demand(
        item.flops * waste / rate,
        moved / gpu.bandwidth_bytes_per_second / few_threads(item, gpu),
        item.launches,
        waiting_seconds(item, gpu),
    )


def seconds(item: Item, gpu: Gpu, constants: Constants) -> float:
    if item.kind == "copy":
        return item.bytes / PCIE_BYTES_PER_SECOND[not item.is_blocking] + constants.start_seconds
    needed = demand(item, gpu)
    computing = needed.flop_seconds / constants.rate_share(item.kernel_class)
    moving = needed.byte_seconds / constants.bandwidth_share(item.kernel_class)
    return max(combine(computing, moving), needed.waiting_seconds) + needed.launches * constants.start_seconds


def combine(computing: float, moving: float) -> float:
    """Both at once: a little more than the longer one."""
    return float((computing**3 + moving**3) ** (1 / 3))


def misses(num_bytes: float, l2_bytes: int) -> float:
    """The part of the bytes that reaches DRAM. Half of them are read, and the kernel before has just written those:
    what L2 holds of them is not read again."""
    return 1.0 - 0.5 / (1.0 + num_bytes / max(1.0, 2.0 * L2_REACH * l2_bytes))


def waiting_seconds(item: Item, gpu: Gpu) -> float:
    """Of threads that make one access after the other, or of blocks that do little between their accesses."""
    product = item.product
    if item.kernel_class == "norm" and item.blocks:
        waves = item.blocks * item.threads / (gpu.num_sms * gpu.threads_per_sm)
    elif item.kernel_class == "bmm" and product is not None:
        waves = _tiles(product) / (gpu.num_sms * TILES_ON_AN_SM)
    else:
        return item.rounds * MEMORY_LATENCY
    return waves * ROUNDS_OF_A_BLOCK * MEMORY_LATENCY


def few_threads(item: Item, gpu: Gpu) -> float:
    """The share of the bandwidth that a small grid can ask for: each thread has only so much under way."""
    if not item.blocks or item.launches > 1:
        return 1.0
    threads = item.blocks * item.threads * LOADS_UNDER_WAY.get(item.kernel_class, 1)
    return min(1.0, max(LEAST_SHARE, threads / (gpu.num_sms * THREADS_TO_FILL_AN_SM)))


def tile_waste(product: Product, num_sms: int, *, is_tensor: bool) -> float:
    """How much longer a product takes than its FLOPs say: the edges of tiles, SMs without a tile, short sums, and
    sizes that tensor cores cannot load whole."""
    padded = _padded(product.m, 64) * _padded(product.n, 32) / max(1, product.m * product.n)
    tiles = max(1, _tiles(product))  # 0: an empty product
    splits = max(1, product.k // 512)  # a long sum is split over idle SMs
    idle = math.pow(max(1.0, num_sms / (tiles * splits)), 0.4)
    odd = 1.28 if is_tensor and (product.n % 8 or product.k % 8) else 1.0
    return math.sqrt(padded) * idle * (1.0 + 7.0 / max(1, product.k)) * odd


def _tiles(product: Product) -> int:
    return math.ceil(product.m / TILE) * math.ceil(product.n / TILE) * product.batch


def _padded(size: int, to: int) -> int:
    return math.ceil(size / to) * to
