"""Extensions write into tensors behind PyTorch's back: by address (ctypes), and in an operator of their own."""

import ctypes

import torch
from bitsandbytes.cextension import lib
from common import report


@torch.library.custom_op("example::count", mutates_args={"counts"})
def count(labels: torch.Tensor, counts: torch.Tensor) -> None:
    counts.index_add_(0, labels, torch.ones_like(labels))


filled = torch.zeros(64, device="cuda")
others = torch.ones(64, device="cuda")
before = filled.sum()
lib.cfill_fp32(
    ctypes.c_void_p(filled.data_ptr()), ctypes.c_void_p(None), ctypes.c_float(3.0), ctypes.c_int64(filled.numel())
)
print("before", before.item())
print("untouched", others.sum().item())
print("filled", filled.sum().item())

labels = torch.randint(8, (100,)).to("cuda")
counts = torch.zeros(8, dtype=torch.int64, device="cuda")
count(labels, counts)
print("labels", labels.max().item() < 8)
print("counts", counts.sum().item())
report()
