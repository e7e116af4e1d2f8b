"""A Triton kernel of the script's own: it counts into one tensor and only reads another."""

import torch
import triton
import triton.language as tl
from common import report


@triton.jit
def count_kernel(labels, counts, scale, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    label = tl.load(labels + place, mask=mask, other=0)
    for _ in range(2):
        tl.atomic_add(counts + label, 1, mask=mask)
    tl.store(scale + place, label * 2.0, mask=mask)


labels = torch.randint(8, (100,)).to("cuda")
counts = torch.zeros(8, dtype=torch.int32, device="cuda")
scale = torch.zeros(100, device="cuda")
print("known before", counts.sum().item(), labels.min().item() >= 0)
count_kernel[(1,)](labels, counts, scale, 100, BLOCK=128)
print("only read", labels.max().item() < 8)
print("written", counts.sum().item())
print("written", scale.sum().item())
report()
