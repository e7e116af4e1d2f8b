"""The jobs `make bench` measures: plain training loops, timed by themselves.

    python benchmarks/workloads.py resnet50|gpt2|llama-7b [--steps N] [--device auto|cpu|cuda] [--cudnn-benchmark]

Each job imports what it needs and no more, so that it can be compared with that import. It prints one line,
`BENCH {"steps": N, "seconds": ..., "max_reserved": ...}`; the seconds are those of the loop alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import nn

Step = Callable[[], None]


def resnet50(device: torch.device) -> Step:
    """ResNet-50, batch 32 of 224 x 224, SGD with momentum."""
    import torchvision

    model = torchvision.models.resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.rand(32, 3, 224, 224), torch.randint(1000, (32,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()

    return step


def gpt2(device: torch.device, batch: int = 8) -> Step:
    """GPT-2 small, batch 8 of 512 tokens unless another is given, AdamW, float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).to(device)
    return language_step(model, torch.randint(50257, (batch, 512)), device, is_mixed=False)


def llama_7b(device: torch.device) -> Step:
    """A Llama of 6.7 billion parameters in float32 under bfloat16 autocast, AdamW: 16 bytes a parameter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(use_cache=False))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model = model.to(device)
    return language_step(model, torch.randint(32000, (1, 1024)), device, is_mixed=True)


def language_step(model: nn.Module, tokens: torch.Tensor, device: torch.device, *, is_mixed: bool) -> Step:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        batch = tokens.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_mixed):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


JOBS = {"resnet50": resnet50, "gpt2": gpt2, "llama-7b": llama_7b}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=8, help="batch size of gpt2")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let PyTorch try all engines of cuDNN")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    torch.manual_seed(0)
    device = torch.device(args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    step = gpt2(device, args.batch) if args.job == "gpt2" else JOBS[args.job](device)
    started = time.perf_counter()
    for _ in range(args.steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    reserved = torch.cuda.max_memory_reserved() if device.type == "cuda" else 0
    print("BENCH", json.dumps({"steps": args.steps, "seconds": seconds, "max_reserved": reserved}), flush=True)


if __name__ == "__main__":
    main()
