"""Trains an LSTM or a Transformer on words, as word_language_model/main.py of pytorch/examples does: no optimizer, the
parameters are moved by hand."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["LSTM", "Transformer"], default="LSTM")
parser.add_argument("--accel", action="store_true")
parser.add_argument("--epochs", type=int, default=40)
args = parser.parse_args()
WIDTH, LENGTH, BATCH = 200, 35, 20
device = torch.device("cuda" if args.accel else "cpu")


class Recurrent(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.encoder, self.drop = nn.Embedding(vocabulary, WIDTH), nn.Dropout(0.2)
        self.rnn, self.decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, vocabulary)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)), hidden


class Transformer(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.encoder, self.drop = nn.Embedding(vocabulary, WIDTH), nn.Dropout(0.2)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.2), 2)
        self.decoder = nn.Linear(WIDTH, vocabulary)

    def forward(self, words, hidden):
        mask = torch.log(torch.tril(torch.ones(len(words), len(words), device=words.device)))
        return self.decoder(self.layers(self.drop(self.encoder(words)), mask=mask)), hidden


def corpus(part, numbers):
    with open(f"wikitext/{part}.txt") as file:
        words = [numbers.setdefault(word, len(numbers)) for line in file for word in [*line.split(), "<eos>"]]
    columns = torch.tensor(words[: len(words) // BATCH * BATCH])
    return columns.view(BATCH, -1).t().contiguous().to(device)


def batch_at(source, start):
    length = min(LENGTH, len(source) - 1 - start)
    return source[start : start + length], source[start + 1 : start + 1 + length].view(-1)


def detached(hidden):
    return None if hidden is None else tuple(each.detach() for each in hidden)


def evaluate():
    model.eval()
    total, hidden = 0.0, None
    with torch.no_grad():
        for start in range(0, len(valid) - 1, LENGTH):
            words, targets = batch_at(valid, start)
            output, hidden = model(words, hidden)
            total += len(words) * loss_of(output.view(-1, len(numbers)), targets).item()
    return total / (len(valid) - 1)


def train(rate):
    model.train()
    hidden, total = None, 0.0
    for number, start in enumerate(range(0, len(source) - 1, LENGTH)):
        words, targets = batch_at(source, start)
        model.zero_grad()
        output, hidden = model(words, detached(hidden))
        loss = loss_of(output.view(-1, len(numbers)), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-rate)
        total += loss.item()
        if number % 20 == 19:
            print(f"{number} batches: loss {total / 20:.2f}")
            total = 0.0


numbers = {}
source, valid = corpus("train", numbers), corpus("valid", numbers)
model = (Recurrent if args.model == "LSTM" else Transformer)(len(numbers)).to(device)
loss_of = nn.CrossEntropyLoss()
rate, best = 20.0, None
for epoch in range(1, args.epochs + 1):
    train(rate)
    loss = evaluate()
    print(f"epoch {epoch}: valid loss {loss:.2f}")
    if best is None or loss < best:
        torch.save(model, "model.pt")
        best = loss
    else:
        rate /= 4.0
print(f"max_memory_allocated: {torch.cuda.max_memory_allocated()}")
