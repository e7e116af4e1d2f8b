"""The rates a card sustains: a boost clock is not held where the power of the board does not allow it."""

from __future__ import annotations

from foretell.records import Gpu
from foretell.time.work import Unit

WATTS_PER_TFLOPS = {7: 20.5, 8: 17.0, 9: 14.0, 10: 12.0}
"""Board watts over TFLOPS that large fp32 products sustain, by the major compute capability: V100 20 and T4 21,
A100 17 (two kinds), H100 14, each measured on single operators; that of 10 is a guess."""
WATTS_PER_TFLOPS_GAMING = {(8, 6): 9.5, (8, 9): 8.0, (12, 0): 6.5}
"""Chips with 128 lanes in an SM: the L4 was measured (8); the others are as their boards are sold."""
FP32_SHARE = 0.9
"""Of the peak at boost clock that the best fp32 products reach where power allows it (V100 and A100-80GB: 0.88)."""
PASCAL_SHARE = {(6, 0): 0.62, (6, 1): 0.55}
"""Pascal fits no rule of watts (P100 0.62 of its peak, P4 0.41)."""
WATTS_PER_TENSOR_TFLOPS = {7: 1.9, 8: 1.15, 9: 0.8, 10: 0.5, 12: 1.2}
"""A guess: what boards with full-rate tensor cores are sold with, where more was not seen to be reached."""


def sustained_flops(gpu: Gpu, unit: Unit) -> float:
    """FLOPs a second; TF32 is half of the rate for half precision, on every card that has it."""
    has_tensor_cores = gpu.tensor_flops > 0
    if unit == "tensor" and has_tensor_cores:
        return _tensor(gpu)
    if unit == "tf32" and has_tensor_cores and gpu.compute_capability >= (8, 0):
        return _tensor(gpu) / 2
    if unit == "fp64":
        is_full = gpu.compute_capability in ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
        return _fp32(gpu) / (2 if is_full else 32)
    return _fp32(gpu)


def _fp32(gpu: Gpu) -> float:
    if gpu.compute_capability in PASCAL_SHARE:
        return gpu.fp32_flops * PASCAL_SHARE[gpu.compute_capability]
    per_tflops = WATTS_PER_TFLOPS_GAMING.get(gpu.compute_capability, WATTS_PER_TFLOPS.get(gpu.compute_capability[0]))
    return _within_power(gpu.fp32_flops * FP32_SHARE, gpu, per_tflops)


def _tensor(gpu: Gpu) -> float:
    return _within_power(gpu.tensor_flops, gpu, WATTS_PER_TENSOR_TFLOPS.get(gpu.compute_capability[0]))


def _within_power(flops: float, gpu: Gpu, watts_per_tflops: float | None) -> float:
    if gpu.power_watts is None or watts_per_tflops is None:
        return flops
    return min(flops, gpu.power_watts / watts_per_tflops * 1e12)
