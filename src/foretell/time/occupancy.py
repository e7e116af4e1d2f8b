"""How many of a card's SMs a piece of work keeps busy, and how full: from its grid, or from the tiles of a product."""

from __future__ import annotations

from math import ceil

from foretell.records import Gpu
from foretell.time.work import Item, Product

_REGISTERS = {"gemm": 128, "bmm": 128, "conv": 128, "grouped_conv": 96, "attention": 168, "depthwise": 48}
"""Of a thread, by the first words of the class. For the kernels of cuBLAS and cuDNN, whose launches nobody sees, they
are typical numbers; so are the 32 of all others, because the machine code of PyTorch's kernels is not read."""
_OTHER_REGISTERS = 32
_TILES = ((128, 128), (128, 64), (64, 64), (32, 32))
_LIBRARY_THREADS = 256
FP32_OF_AN_ELEMENT = 6.0
"""FLOPs of a lane for each element of 4 bytes that a kernel reads or writes; a division or a root takes several. By
half of the MLPs and CNNs on an A100 whose FP32 activity was measured."""


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


def fp32_flops(item: Item, gpu: Gpu) -> float:
    """What the plain lanes compute, with what they compute in vain beside the edges of a product. Kernels that only
    move data also compute: for each element they touch."""
    if item.unit != "fp32":
        return 0.0
    product = item.product
    if product is None or not item.flops:
        return item.flops + FP32_OF_AN_ELEMENT * item.bytes / 4
    height, width, _ = _tile(product, gpu)
    padded = ceil(product.m / height) * height * ceil(product.n / width) * width
    return item.flops * padded / max(1, product.m * product.n)


def _registers(kernel_class: str) -> int:
    return next((number for name, number in _REGISTERS.items() if kernel_class.startswith(name)), _OTHER_REGISTERS)


def _blocks(item: Item, gpu: Gpu) -> float:
    if item.blocks:
        return item.blocks
    product = item.product
    if product is None:
        return float(gpu.num_sms * 4) if item.bytes > 1 << 20 else max(1.0, item.bytes / 4096)
    _, _, blocks = _tile(product, gpu)
    return float(blocks if blocks >= gpu.num_sms else min(gpu.num_sms, blocks * max(1, product.k // 512)))


def _tile(product: Product, gpu: Gpu) -> tuple[int, int, int]:
    """Height, width, and how many there are: the largest one that leaves no SM idle, or the smallest."""
    found = (1, 1, 1)
    for height, width in _TILES:
        found = height, width, ceil(product.m / height) * ceil(product.n / width) * product.batch
        if found[2] >= gpu.num_sms:
            break
    return found
