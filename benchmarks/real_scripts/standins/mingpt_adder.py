"""Teaches a GPT to add, as minGPT's projects/adder does: a Trainer with callbacks, and generation as evaluation."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

DIGITS, WIDTH = 2, 48


class Additions(Dataset):
    def __init__(self, is_test):
        order = torch.randperm(10 ** (2 * DIGITS), generator=torch.Generator().manual_seed(1337))
        self.numbers = order[:500] if is_test else order[500:]

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, at):
        a, b = divmod(self.numbers[at].item(), 10**DIGITS)
        text = f"{a:0{DIGITS}}{b:0{DIGITS}}" + f"{a + b:0{DIGITS + 1}}"[::-1]
        digits = torch.tensor([int(each) for each in text])
        targets = digits[1:].clone()
        targets[: DIGITS * 2 - 1] = -1
        return digits[:-1], targets


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 3, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        normed = self.ln_1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(10, WIDTH), nn.Embedding(3 * DIGITS, WIDTH)
        self.blocks, self.ln_f = nn.Sequential(*[Block() for _ in range(3)]), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10, bias=False)

    def forward(self, digits, targets=None):
        x = self.wte(digits) + self.wpe(torch.arange(digits.size(1), device=digits.device))
        logits = self.head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, 10), targets.view(-1), ignore_index=-1)

    @torch.no_grad()
    def generate(self, digits, count):
        for _ in range(count):
            logits, _ = self(digits)
            _, best = torch.topk(F.softmax(logits[:, -1], dim=-1), k=1, dim=-1)
            digits = torch.cat((digits, best), dim=1)
        return digits


class Trainer:
    def __init__(self, model, dataset):
        self.model, self.dataset, self.iteration = model.to("cuda"), dataset, 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def run(self, on_batch_end):
        sampler = RandomSampler(self.dataset, replacement=True, num_samples=int(1e10))
        loader = DataLoader(
            self.dataset, sampler=sampler, shuffle=False, pin_memory=True, batch_size=64, num_workers=4
        )
        batches, begun = iter(loader), time.time()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            x, y = (each.to("cuda") for each in batch)
            _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.iteration, self.seconds, begun = self.iteration + 1, time.time() - begun, time.time()
            on_batch_end(self)


def evaluate(trainer, split):
    factors = torch.tensor([[10**i for i in range(DIGITS + 1)][::-1]], device="cuda")
    correct = 0
    for number, (x, _) in enumerate(DataLoader(Additions(split == "test"), batch_size=100)):
        digits = x.to("cuda")[:, : DIGITS * 2]
        answer = trainer.model.generate(digits, DIGITS + 1)[:, -(DIGITS + 1) :].flip(1)
        a, b = (digits[:, i * DIGITS : (i + 1) * DIGITS] * factors[:, 1:] for i in range(2))
        correct += sum(((answer * factors).sum(1) == a.sum(1) + b.sum(1)).cpu().tolist())
        if number == 4:
            break
    return correct


def on_batch_end(trainer):
    if trainer.iteration % 10 == 0:
        print(f"iteration {trainer.iteration}: loss {trainer.loss.item():.5f}, {trainer.seconds:.2f} s")
    if trainer.iteration % 500 == 0:
        trainer.model.eval()
        print({split: evaluate(trainer, split) for split in ("train", "test")})
        torch.save(trainer.model.state_dict(), "model.pt")
        trainer.model.train()


Trainer(GPT(), Additions(is_test=False)).run(on_batch_end)
