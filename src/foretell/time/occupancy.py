"""How many of a card's SMs a piece of work keeps busy, and how full: from its grid, or from the tiles of a product."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from foretell.records import Gpu
from foretell.time.work import Item, Product, Unit


class Block(NamedTuple):
    """What a block takes of an SM."""

    threads: int
    registers: int
    """Of a thread."""
    shared_bytes: int


_Tile = tuple[int, int]
_FP32_BLOCKS: Mapping[_Tile, Block] = {
    (128, 128): Block(256, 118, 16640), (128, 64): Block(128, 122, 12544), (32, 32): Block(128, 86, 32768),
}  # fmt: skip
_HALF_BLOCKS: Mapping[_Tile, Block] = {
    (128, 128): Block(128, 166, 0), (128, 64): Block(128, 114, 0), (64, 64): Block(128, 84, 0),
    (32, 32): Block(128, 60, 0),
}  # fmt: skip
_TF32_BLOCKS: Mapping[_Tile, Block] = {
    (128, 128): Block(128, 238, 0), (128, 64): Block(128, 158, 0), (64, 64): Block(128, 142, 0),
    (32, 32): Block(128, 88, 0),
}  # fmt: skip
"""Kernels of cuBLAS and cuDNN, whose launches nobody sees, by the tile of the result that a block computes, the largest
first: medians of those of that tile in their machine code for 8.0 (`python -m benchmarks.tile_registers`). For half
precision and TF32, the smallest is 64x32. Threads of fp32 kernels are those that were measured on an A100."""
_CONVOLUTION = Block(256, 128, 0)
"""cuDNN has many kernels for a tile, with 50 to 250 registers, and nobody says which one it takes: with those of its
largest tile, the convolutions of measured CNNs on an A100 would fill half of what they did; with these 16 warps on an
SM, they do not."""

_FP32_FILL, _OTHER_FILL = (4, 128), (1, 512)
"""Blocks on each SM, down to which sums: for fewer blocks, tiles are smaller and longer sums are split. In fp32, cuBLAS
fills the SMs of an A100, by the grids of measured products. For tensor cores, no grid was measured."""
_TYPICAL = Block(256, 32, 0)
"""Of a kernel whose machine code was not found, where its launch does not say more."""
_LIBRARY_REGISTERS = {"depthwise": 48, "attention": 168}
_REGISTER_UNIT = 8
"""Registers of a thread are given out in eights, of a warp in 256s."""
_DRIVER_BYTES = 1024
"""Of shared memory, in each block."""
FP32_OF_AN_ELEMENT = 6.0
"""FLOPs of a lane for each element of 4 bytes that a kernel reads or writes; a division or a root takes several. By
half of the MLPs and CNNs on an A100 whose FP32 activity was measured."""


def sm_active(item: Item, gpu: Gpu) -> float:
    """The share of SMs with a block, while it runs."""
    return min(1.0, _blocks(item, gpu) / gpu.num_sms)


def sm_occupancy(item: Item, gpu: Gpu) -> float:
    """Warps on all SMs, of those they can hold."""
    block = _block(item, gpu)
    warps = ceil(min(1024, block.threads) / 32)
    registers = _REGISTER_UNIT * ceil(block.registers / _REGISTER_UNIT) * 32 * warps
    limits = [gpu.blocks_per_sm, gpu.threads_per_sm // (32 * warps), gpu.registers_per_sm // max(1, registers)]
    if block.shared_bytes:
        limits.append(gpu.shared_bytes_per_sm // (block.shared_bytes + _DRIVER_BYTES))
    resident = min(_blocks(item, gpu) / gpu.num_sms, max(1, min(limits)))
    return min(1.0, resident * warps * 32 / gpu.threads_per_sm)


def fp32_flops(item: Item, gpu: Gpu) -> float:
    """What the plain lanes compute, with what they compute in vain beside the edges of a product. Kernels that only
    move data also compute: for each element they touch."""
    if item.unit != "fp32":
        return 0.0
    product = item.product
    if product is None or not item.flops:
        return item.flops + FP32_OF_AN_ELEMENT * item.bytes / 4
    (height, width), _ = _tile(product, item.unit, gpu)
    padded = ceil(product.m / height) * height * ceil(product.n / width) * width
    return item.flops * padded / max(1, product.m * product.n)


def _block(item: Item, gpu: Gpu) -> Block:
    if item.blocks:
        own = _TYPICAL.registers if item.registers is None else item.registers
        return Block(item.threads, own, item.shared_bytes)
    if "conv" in item.kernel_class:
        return _CONVOLUTION
    if item.product is not None:
        tile, _ = _tile(item.product, item.unit, gpu)
        return _blocks_of(item.unit)[tile]
    registers = next((n for name, n in _LIBRARY_REGISTERS.items() if item.kernel_class.startswith(name)), None)
    return _TYPICAL if registers is None else _TYPICAL._replace(registers=registers)


def _blocks_of(unit: Unit) -> Mapping[_Tile, Block]:
    return {"tensor": _HALF_BLOCKS, "tf32": _TF32_BLOCKS}.get(unit, _FP32_BLOCKS)


def _blocks(item: Item, gpu: Gpu) -> float:
    if item.blocks:
        return item.blocks
    product = item.product
    if product is None:
        return float(gpu.num_sms * 4) if item.bytes > 1 << 20 else max(1.0, item.bytes / 4096)
    _, blocks = _tile(product, item.unit, gpu)
    a_sm, shortest = _fill(item.unit)
    return float(max(blocks, min(a_sm * gpu.num_sms, blocks * max(1, product.k // shortest))))


def _tile(product: Product, unit: Unit, gpu: Gpu) -> tuple[_Tile, int]:
    """Its size, and how many there are: the largest of which there are enough, or the smallest. Of batched products,
    always the largest."""
    enough = _fill(unit)[0] * gpu.num_sms
    tiles = tuple(_blocks_of(unit))
    counts = [ceil(product.m / height) * ceil(product.n / width) * product.batch for height, width in tiles]
    if product.batch > 1:
        return tiles[0], counts[0]
    return next(((tile, n) for tile, n in zip(tiles, counts, strict=True) if n >= enough), (tiles[-1], counts[-1]))


def _fill(unit: Unit) -> tuple[int, int]:
    return _OTHER_FILL if unit in ("tensor", "tf32") else _FP32_FILL
