"""timm: a small vision model with timm's own optimizer, schedule, mixup and moving average of the weights."""

import timm
import torch
from common import STEPS, image_batches, report, setup
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3


def main() -> None:
    device = setup(__doc__)
    model = timm.create_model("resnet10t", num_classes=10).to(device)
    average = ModelEmaV3(model, decay=0.99)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.05)
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=STEPS)
    mixup = Mixup(mixup_alpha=0.8, num_classes=10)
    loss_of = SoftTargetCrossEntropy()
    for step, (images, labels) in enumerate(image_batches(device, size=64)):
        mixed, targets = mixup(images, labels)
        optimizer.zero_grad()
        loss_of(model(mixed), targets).backward()
        optimizer.step()
        average.update(model, step=step)
        schedule.step(step + 1)
    model.eval()
    with torch.no_grad():
        model(images)
    report()


if __name__ == "__main__":
    main()
