"""A named convolutional net at its usual image size: Adam, fp32. One forward with two images comes first, as in the
measured runs: a summary of the model."""

import argparse

import torch
import torchvision
from torch import nn

MODELS = {
    "vgg16": (torchvision.models.vgg16, 224),
    "resnet50": (torchvision.models.resnet50, 224),
    "mobilenetV2": (torchvision.models.mobilenet_v2, 224),
    "efficientnet": (torchvision.models.efficientnet_b0, 224),
    "inception": (lambda: torchvision.models.inception_v3(aux_logits=False, init_weights=False), 299),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--last-batch", type=int, help="size of the last batch of the epoch")
    parser.add_argument("--validate", action="store_true", help="forwards in evaluation mode after the epoch")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    make, size = MODELS[options.model]
    model = make().to("cuda")
    model(torch.rand(2, 3, size, size).cuda())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    batch_sizes = [options.batch_size] * options.steps + ([options.last_batch] if options.last_batch else [])
    for batch_size in batch_sizes:
        inputs = torch.randn(batch_size, 3, size, size)
        labels = torch.randint(0, 1000, (batch_size,))
        inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
    if options.validate:
        model.eval()
        with torch.no_grad():
            for batch_size in batch_sizes:
                inputs = torch.randn(batch_size, 3, size, size)
                labels = torch.randint(0, 1000, (batch_size,))
                inputs, labels = inputs.cuda(), labels.cuda()
                criterion(model(inputs), labels)


if __name__ == "__main__":
    main()
