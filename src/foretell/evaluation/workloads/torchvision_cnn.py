"""A model of torchvision on small random images: fp32, no AMP, an optimizer by its name in torch.optim."""

import argparse
from functools import partial

import torch
import torchvision
from torch import nn
from torchvision.models import mobilenetv3

NUM_CLASSES = 1000
IMAGE_SIZE = 86
FEW_CLASSES = 10


def mobilenet_v3(size: str, last_channel: int) -> nn.Module:
    setting, _ = mobilenetv3._mobilenet_v3_conf(f"mobilenet_v3_{size}")
    return mobilenetv3.MobileNetV3(setting, last_channel, num_classes=FEW_CLASSES)


# The names are those of the measured runs; any other is looked up among torchvision's own, however it is spelled.
MODELS = {
    "MnasNet": partial(torchvision.models.MNASNet, 1.0, num_classes=FEW_CLASSES),
    "MobeNetV3Large": partial(mobilenet_v3, "large", 1280),
    "MobeNetV3Small": partial(mobilenet_v3, "small", 1024),
}


def make_model(name: str) -> nn.Module:
    if name in MODELS:
        return MODELS[name]()
    names = {known.replace("_", ""): known for known in torchvision.models.list_models(module=torchvision.models)}
    found = names.get(name.lower().replace("_", "").replace("-", ""))
    if found is None:
        raise SystemExit(f"torchvision has no model {name}")
    return torchvision.models.get_model(found)


ZERO_GRAD = "when: 0 before the batch, 1 before the backward, 2 after the step"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--zero-grad", type=int, choices=[0, 1, 2], default=0, help=ZERO_GRAD)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    torch.cuda.set_per_process_memory_fraction(1.0)
    model = make_model(options.model).to("cuda")
    optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    num_classes = FEW_CLASSES if options.model in MODELS else NUM_CLASSES
    model.train()
    for _ in range(options.steps):
        # As in a loop over a DataLoader: the names stand for the new batch before it is moved, and the old one is gone.
        inputs = torch.rand(options.batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
        labels = torch.randint(0, num_classes, (options.batch_size,))
        if options.zero_grad == 0:
            optimizer.zero_grad()
        inputs = inputs.to("cuda")
        labels = labels.to("cuda")
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        if options.zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.zero_grad == 2:
            optimizer.zero_grad()
        _, preds = torch.max(outputs, 1)  # noqa: RUF059 (alive in the next step, as in the measured runs)


if __name__ == "__main__":
    main()
