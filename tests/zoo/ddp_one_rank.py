"""DistributedDataParallel with one rank: NCCL on the GPU, Gloo on the CPU; gradients live in buckets."""

import torch
from common import image_batches, report, setup
from torch import nn


def main() -> None:
    device = setup(__doc__)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10)).to(device)
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    for images, labels in image_batches(device):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
    report()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
