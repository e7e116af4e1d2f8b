"""DDP over NCCL in a job whose other communicator is Gloo's."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
gloo = dist.new_group(backend="gloo")
dist.all_reduce(torch.ones(4), group=gloo)
for source in (0, 3, 3):
    dist.broadcast(torch.ones(4), src=source, group=gloo)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
