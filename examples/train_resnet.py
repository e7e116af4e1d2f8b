"""Trains a torchvision image classifier on synthetic pictures (nothing is downloaded).

python train_resnet.py --model resnet50 --batch-size 64 --amp
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SyntheticPictures(Dataset):
    """Stands in for ImageNet: a picture depends on its index alone."""

    def __init__(self, length: int, size: int, num_classes: int) -> None:
        self.length, self.size, self.num_classes = length, size, num_classes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator), index % self.num_classes


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")

    loader_options = {
        "batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": device.type == "cuda",
    }  # fmt: skip
    pictures = SyntheticPictures(args.steps_per_epoch * args.batch_size, args.image_size, args.num_classes)
    train_loader = DataLoader(pictures, shuffle=True, drop_last=True, **loader_options)
    validation = SyntheticPictures(args.validation_steps * args.batch_size, args.image_size, args.num_classes)
    validation_loader = DataLoader(validation, **loader_options)

    model = torchvision.models.get_model(args.model, num_classes=args.num_classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp)

    for epoch in range(args.epochs):
        loss = train(model, train_loader, optimizer, scaler, device, args)
        accuracy = evaluate(model, validation_loader, device, args)
        schedule.step()
        print(f"epoch {epoch}: loss {loss:.3f}, validation accuracy {accuracy:.1%}")

    args.output.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.output / f"{args.model}.pt")


def train(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    device: torch.device,
    args: argparse.Namespace,
) -> float:
    model.train()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16, enabled=args.amp):
            loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach()
    return total.item() / len(loader)


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, args: argparse.Namespace) -> float:
    model.eval()
    correct = torch.zeros((), device=device)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16, enabled=args.amp):
            correct += (model(images).argmax(dim=1) == labels).sum()
    return correct.item() / max(len(loader.dataset), 1)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="any classifier of torchvision.models")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps-per-epoch", type=int, default=20)
    parser.add_argument("--validation-steps", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--amp", action="store_true", help="mixed precision in float16")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
