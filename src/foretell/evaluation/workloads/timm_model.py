"""A model of timm at its own input size, trained with Adam as it was before it worked on lists (foreach)."""

import argparse

import timm
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    model = timm.create_model(options.model).cuda()
    model.train()
    image = timm.data.resolve_model_data_config(model)["input_size"]
    num_classes = model.num_classes or 1000
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(options.steps):
        inputs = torch.randn(options.batch_size, *image)
        labels = torch.randint(0, num_classes, (options.batch_size,))
        inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
