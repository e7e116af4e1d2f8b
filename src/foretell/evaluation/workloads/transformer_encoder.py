"""A classifier around nn.TransformerEncoder. As in the measured runs, two forwards of a whole batch come first, and
their input stays."""

import argparse

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.embedding_size
        self.embedding = nn.Embedding(options.vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(1, options.seq_length, width))
        layer = nn.TransformerEncoderLayer(
            width, options.num_heads, options.ff_hidden_size, options.dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, options.num_layers)
        self.head = nn.Linear(width, options.num_classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions
        x = self.encoder(x)
        x = x.mean(dim=1)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ("num-classes", "embedding-size", "num-layers", "num-heads", "ff-hidden-size", "seq-length", "vocab-size")
    for name in (*sizes, "batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--last-batch", type=int, default=0, help="size of the last batch of the epoch")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    shape = (options.batch_size, options.seq_length)
    model = Classifier(options).cuda()
    mock_input = torch.randint(0, options.vocab_size, shape).cuda()
    model(mock_input)
    model(mock_input)

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    whole = [options.batch_size] * options.steps
    for batch_size in [*whole, options.last_batch, *whole] if options.last_batch else whole:
        inputs = torch.randint(0, options.vocab_size, (batch_size, options.seq_length))
        labels = torch.randint(0, options.num_classes, (batch_size,))
        inputs, labels = inputs.cuda(), labels.cuda()
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        _, predicted = torch.max(outputs, 1)  # noqa: RUF059 (alive in the next step, as in the measured runs)


if __name__ == "__main__":
    main()
