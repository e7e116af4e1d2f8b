"""torch.profiler with CUDA activities around a training loop."""

import torch
from common import report
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=2), profile_memory=True) as profiler:
    for _ in range(4):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
print("events", len(profiler.key_averages()))
profiler.export_chrome_trace("trace.json")
report()
