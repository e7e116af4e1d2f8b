"""How many of a card's SMs a piece of work keeps busy, and how full: from its grid, or from the tiles of a product."""

from __future__ import annotations

from math import ceil

from foretell.records import Gpu
from foretell.time.work import Item

_REGISTERS = {"gemm": 128, "bmm": 128, "conv": 128, "grouped_conv": 96, "attention": 168, "depthwise": 48}
"""Of a thread, by the first words of the class. For the kernels of cuBLAS and cuDNN, whose launches nobody sees, they
are typical numbers; so are the 40 of all others, because the machine code of PyTorch's kernels is not read."""
_OTHER_REGISTERS = 40
_TILES = ((128, 128), (128, 64), (64, 64), (32, 32))
_LIBRARY_THREADS = 256


def sm_active(item: Item, gpu: Gpu) -> float:
    """The share of SMs with a block, while it runs."""
    return min(1.0, _blocks(item, gpu) / gpu.num_sms)


def sm_occupancy(item: Item, gpu: Gpu) -> float:
    """Warps on all SMs, of those they can hold."""
    warps = ceil(min(1024, item.threads if item.blocks else _LIBRARY_THREADS) / 32)
    limits = [gpu.blocks_per_sm, gpu.threads_per_sm // (32 * warps)]
    limits.append(gpu.registers_per_sm // (_registers(item.kernel_class) * 32 * warps))
    if item.shared_bytes:
        limits.append(gpu.shared_bytes_per_sm // (item.shared_bytes + 1024))
    resident = min(_blocks(item, gpu) / gpu.num_sms, max(1, min(limits)))
    return min(1.0, resident * warps * 32 / gpu.threads_per_sm)


def _registers(kernel_class: str) -> int:
    return next((number for name, number in _REGISTERS.items() if kernel_class.startswith(name)), _OTHER_REGISTERS)


def _blocks(item: Item, gpu: Gpu) -> float:
    if item.blocks:
        return item.blocks
    product = item.product
    if product is None:
        return float(gpu.num_sms * 4) if item.bytes > 1 << 20 else max(1.0, item.bytes / 4096)
    blocks = 1
    for height, width in _TILES:
        blocks = ceil(product.m / height) * ceil(product.n / width) * product.batch
        if blocks >= gpu.num_sms:
            return float(blocks)
    return float(min(gpu.num_sms, blocks * max(1, product.k // 512)))
