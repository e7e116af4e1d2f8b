"""DeepSpeed's own Adam is compiled on first use, which needs a CUDA toolkit."""

import torch
from deepspeed.ops.adam import FusedAdam

model = torch.nn.Linear(64, 64).cuda()
optimizer = FusedAdam(model.parameters())
model(torch.randn(4, 64, device="cuda")).sum().backward()
optimizer.step()
