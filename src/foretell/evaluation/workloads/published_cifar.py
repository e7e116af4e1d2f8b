"""A model of timm on images of CIFAR-100: AdamW, fp32, an epoch through a DataLoader (here its first and last
batches) and the validation after it."""

import argparse

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES, NUM_IMAGES, NUM_VALIDATED = 100, 50_000, 10_000
SIZE = 32
NUM_BATCHES = 4


def batches(num_images: int, batch_size: int) -> DataLoader:
    """As many as NUM_BATCHES, the last as small as in the whole data set."""
    num = min(num_images, (NUM_BATCHES - 1) * batch_size + (num_images % batch_size or batch_size))
    images, labels = torch.zeros(num, 3, SIZE, SIZE), torch.randint(0, NUM_CLASSES, (num,))
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()

    model = timm.create_model(options.model, num_classes=NUM_CLASSES).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for images, labels in batches(NUM_IMAGES, options.batch_size):
        images, labels = images.cuda(), labels.cuda()
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for images, labels in batches(NUM_VALIDATED, options.batch_size):
            images, labels = images.cuda(), labels.cuda()
            criterion(model(images), labels)


if __name__ == "__main__":
    main()
