"""Trains ResNet-50 on random images, as imagenet/main.py --dummy of pytorch/examples does."""

import argparse
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, models, transforms

parser = argparse.ArgumentParser()
parser.add_argument("-a", "--arch", default="resnet50")
parser.add_argument("-b", "--batch-size", type=int, default=128)
args = parser.parse_args()
model = torch.nn.DataParallel(models.__dict__[args.arch]()).cuda()
criterion = nn.CrossEntropyLoss().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
training = datasets.FakeData(3 * args.batch_size * 4, (3, 224, 224), 1000, transforms.ToTensor())
validation = datasets.FakeData(2 * args.batch_size, (3, 224, 224), 1000, transforms.ToTensor())
options = {"batch_size": args.batch_size, "num_workers": 2, "pin_memory": True}
training_loader = torch.utils.data.DataLoader(training, shuffle=True, **options)
validation_loader = torch.utils.data.DataLoader(validation, shuffle=False, **options)


def accuracy(output, target):
    with torch.no_grad():
        _, best = output.topk(5, 1, True, True)
        correct = best.t().eq(target.view(1, -1).expand_as(best.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in (1, 5)]


best = 0.0
for epoch in range(1):
    model.train()
    begun = time.time()
    for number, (images, target) in enumerate(training_loader):
        images, target = images.to("cuda", non_blocking=True), target.to("cuda", non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        top1, top5 = accuracy(output, target)
        shown = f"loss {loss.item():.3f}, top 1 {top1[0]:.2f}, top 5 {top5[0]:.2f}"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}, batch {number}: {shown}, {time.time() - begun:.1f} s")
    model.eval()
    sums = torch.zeros(2)
    with torch.no_grad():
        for images, target in validation_loader:
            output = model(images.cuda(non_blocking=True))
            sums += torch.stack(accuracy(output, target.cuda(non_blocking=True))).flatten().cpu()
    scheduler.step()
    is_best = sums[0].item() > best
    best = max(sums[0].item(), best)
    torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "best": best}, "checkpoint.pth.tar")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
