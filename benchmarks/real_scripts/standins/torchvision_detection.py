"""Trains Faster R-CNN, as references/detection/train.py of torchvision does, and evaluates its boxes on the CPU."""

import math
import sys

import torch
from torchvision.models import detection
from torchvision.transforms.v2 import functional as F

device = torch.device("cuda")


class Boxes(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        draw = torch.Generator().manual_seed(at)
        image = torch.randint(0, 256, (3, 480, 640), dtype=torch.uint8, generator=draw)
        corner = torch.rand(3, 2, generator=draw) * 200
        boxes = torch.cat([corner, corner + 50 + 100 * torch.rand(3, 2, generator=draw)], dim=1)
        return F.to_dtype(image, torch.float, scale=True), {"boxes": boxes, "labels": torch.tensor([1, 2, 1])}


def collate(batch):
    return tuple(zip(*batch, strict=True))


loader = torch.utils.data.DataLoader(Boxes(40), batch_size=2, shuffle=True, num_workers=2, collate_fn=collate)
test_loader = torch.utils.data.DataLoader(Boxes(8), batch_size=1, num_workers=2, collate_fn=collate)
model = detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91).to(device)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9)
for epoch in range(1):
    model.train()
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=19)
    for images, targets in loader:
        images = [image.to(device) for image in images]
        targets = [{key: each.to(device) for key, each in target.items()} for target in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        if not math.isfinite(loss.item()):
            print(f"the loss is {loss.item()}, stopping")
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        print({key: f"{each.item():.4f}" for key, each in losses.items()})
    model.eval()
    with torch.inference_mode():
        for images, _ in test_loader:
            torch.cuda.synchronize()
            found = [{key: each.cpu() for key, each in one.items()} for one in model([i.to(device) for i in images])]
    print(f"epoch {epoch}: {sum(len(one['boxes']) for one in found)} boxes in the last image")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
