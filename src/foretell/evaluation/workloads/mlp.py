"""A classifier of fully connected layers, trained on random data. What measured runs of such nets did is repeated: one
forward with two rows first (a summary of the model), then training over epochs whose last batch is smaller. Batches are
put together from shuffled samples by a DataLoader without workers, and the loss is read back twice a step."""

import argparse
from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_SAMPLES = 4096
ACTIVATIONS = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU, "selu": nn.SELU, "tanh": nn.Tanh,
    "softplus": nn.Softplus, "swish": nn.SiLU, "mish": nn.Mish, "gelu": nn.GELU, "identity": nn.Identity,
}  # fmt: skip


def widths(kind: str, inputs: int, outputs: int, depth: int) -> list[int]:
    if kind == "uniform":
        return [inputs] * depth
    if kind == "gradual":
        return [max(inputs - (inputs - outputs) // depth * (i + 1), outputs) for i in range(depth)]
    found, width = [], inputs
    for _ in range(depth + (kind == "bottleneck")):
        width = max(width // 2, outputs)
        found.append(width)
    return found


def build(options: argparse.Namespace) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = options.input_size
    for out in widths(options.architecture, options.input_size, options.output_size, options.hidden_layers):
        layers.append(nn.Linear(width, out))
        if options.batch_norm:
            layers.append(nn.BatchNorm1d(out))
        layers.append(ACTIVATIONS[options.activation]())
        if options.dropout is not None:
            layers.append(nn.Dropout(options.dropout))
        width = out
    layers.append(nn.Linear(width, options.output_size))
    if options.softmax:
        layers.append(nn.Softmax(dim=1) if options.output_size > 1 else nn.Sigmoid())
    return nn.Sequential(*layers)


def batches(options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The end of an epoch, and some of the next one."""
    size, last = options.batch_size, NUM_SAMPLES % options.batch_size
    is_last_refused = last == 1 and options.batch_norm  # of a single row: there the measured run ended
    num_samples = min(3, NUM_SAMPLES // size) * size + (0 if is_last_refused else last)
    labels = torch.randint(0, max(2, options.output_size), (num_samples,))
    dataset = TensorDataset(torch.randn(num_samples, options.input_size), labels)
    loader = DataLoader(dataset, batch_size=size, shuffle=True)
    yield from loader
    if not is_last_refused:
        yield from islice(loader, min(2, NUM_SAMPLES // size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input-size", type=int, required=True)
    parser.add_argument("--output-size", type=int, required=True)
    parser.add_argument("--hidden-layers", type=int, required=True)
    parser.add_argument("--architecture", choices=["uniform", "gradual", "pyramid", "bottleneck"], required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="relu")
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--softmax", action="store_true", help="and the summary's two rows have no dimension between")
    options = parser.parse_args()

    model = build(options).cuda()
    summary_shape = (2, options.input_size) if options.softmax else (2, 1, options.input_size)
    model(torch.rand(summary_shape).cuda())

    criterion = nn.CrossEntropyLoss() if options.output_size > 1 else nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch_loss = 0.0
    for inputs, labels in batches(options):
        inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        outputs = model(inputs)
        if options.output_size == 1:
            labels = labels.view(-1, 1).float()
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        progress = f"loss={loss.item():.3g}"
    print(progress, epoch_loss)


if __name__ == "__main__":
    main()
