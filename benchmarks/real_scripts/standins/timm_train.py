"""Trains ResNet-50 with mixed precision, as timm's train.py does: its loader, mixup, EMA, saver and scheduler."""

import time
from contextlib import suppress

import timm
import torch
from timm import create_model, utils
from timm.data import Mixup, create_dataset, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import NativeScaler

if torch.cuda.is_available():
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
device = torch.device("cuda:0")
utils.random_seed(42, 0)
model = create_model("resnet50", num_classes=2).to(device)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=2e-5)
ema = utils.ModelEmaV3(model, decay=0.9998)
config = resolve_data_config({}, model=model)
options = {"input_size": config["input_size"], "batch_size": 16, "num_workers": 2, "device": device}
training = create_loader(
    create_dataset("", root="image_folder", split="train", is_training=True), is_training=True, re_prob=0.25,
    auto_augment="rand-m9-mstd0.5", **options,
)  # fmt: skip
validation = create_loader(create_dataset("", root="image_folder", split="val"), is_training=False, **options)
mixup = Mixup(mixup_alpha=0.8, num_classes=2)
loss_of, scaler = SoftTargetCrossEntropy().to(device), NativeScaler()
scheduler, num_epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=3, updates_per_epoch=len(training))
saver = utils.CheckpointSaver(model=model, optimizer=optimizer, model_ema=ema, checkpoint_dir=".", recovery_dir=".")
print(f"timm {timm.__version__}: {num_epochs} epochs of {len(training)} batches")
for epoch in range(num_epochs):
    model.train()
    losses = utils.AverageMeter()
    for number, (images, target) in enumerate(training):
        images, target = mixup(images, target)
        with torch.autocast(device_type=device.type, dtype=torch.float16):
            loss = loss_of(model(images), target)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        optimizer.zero_grad()
        ema.update(model)
        torch.cuda.synchronize()
        losses.update(loss.item(), images.size(0))
        scheduler.step_update(num_updates=epoch * len(training) + number, metric=losses.avg)
    for each in (model, ema.module):
        each.eval()
        top1 = utils.AverageMeter()
        with torch.no_grad(), suppress(ZeroDivisionError):
            for images, target in validation:
                with torch.autocast(device_type=device.type, dtype=torch.float16):
                    output = each(images)
                accuracy, _ = utils.accuracy(output, target, topk=(1, 2))
                top1.update(accuracy.item(), output.size(0))
    saver.save_checkpoint(epoch, metric=top1.avg)
    scheduler.step(epoch + 1, top1.avg)
    print(f"{time.time():.0f}: epoch {epoch}: loss {losses.avg:.4f}, top 1 {top1.avg:.2f}")
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
