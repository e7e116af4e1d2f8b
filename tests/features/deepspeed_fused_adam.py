"""DeepSpeed's own Adam, on the card and on the host; elsewhere it is compiled on first use, by a CUDA toolkit."""

import torch
from common import report
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

states = []
for device, kind in (("cuda", FusedAdam), ("cpu", DeepSpeedCPUAdam)):
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = kind(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    states.append(sum(moment.nbytes for moment in moments))
print("states", *states)
report()
