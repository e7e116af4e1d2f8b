"""The same bytes with every hook and with none: what is measured is the script, not foretell."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Any

import pytest

from .conftest import Run

RESNET = """
    from torchvision.models import resnet50
    import torch
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    images, labels = torch.zeros(16, 3, 128, 128).cuda(), torch.zeros(16, dtype=torch.long).cuda()
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model(images)
"""
GPT2 = """
    from transformers import GPT2Config, GPT2LMHeadModel
    import torch
    model = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(4, 256, dtype=torch.long).cuda()
    for _ in range(4):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
AMP_AND_CHECKPOINTING = """
    import torch
    from torch.utils.checkpoint import checkpoint
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=False)
    model = torch.nn.Sequential(*[Block() for _ in range(4)], torch.nn.Linear(256, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.zeros(8, 256, 256).cuda(), torch.zeros(8 * 256, dtype=torch.long).cuda()
    for _ in range(4):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x).view(-1, 1000), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CASTS = """
    import torch
    from torch import nn
    def model():
        return nn.Sequential(nn.Conv2d(3, 512, 7), nn.Conv2d(512, 512, 3), nn.Linear(1024, 512), nn.Embedding(999, 512))
    kept = [
        model().to("cuda", torch.bfloat16).to(memory_format=torch.channels_last),
        model().half().cuda(),
        model().to("cuda", torch.bfloat16, memory_format=torch.channels_last),
        model().to(memory_format=torch.channels_last).to("cuda", torch.float16),
        model().double().float().to(memory_format=torch.channels_last).bfloat16().cuda(),
    ]
    said = [(tuple(p.shape), p.stride(), str(p.dtype)) for m in kept for p in m.parameters()]
"""
LOADER = """
    import torch
    from torch.utils.data import DataLoader
    lengths = [512, 1600, 720, 2560, 800]
    def collate(samples):
        return {"x": torch.nn.utils.rnn.pad_sequence([torch.zeros(lengths[i % 5], 256) for i in samples], True)}
    def on_gpu(samples):
        return [each.cuda() for each in collate(samples).values()]
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for function in (collate, on_gpu):
        for batch in DataLoader(range(20), 2, collate_fn=function):
            x = batch["x"].cuda() if function is collate else batch[0]
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
SCRIPTS = {
    "resnet50": RESNET, "gpt2": GPT2, "amp-checkpointing": AMP_AND_CHECKPOINTING, "casts": CASTS, "loader": LOADER,
}  # fmt: skip
ALL_IN_TURN = """
    import gc, json, os, sys
    for name, script in json.loads(SCRIPTS).items():
        variables = {"__name__": "__main__"}
        try:
            exec(script, variables)
        except ImportError as error:
            print("COUNTERS", json.dumps([name, f"not installed: {error.name}"]))
            continue
        said = variables.pop("said", None)
        variables.clear()
        gc.collect()
        import torch
        stats = torch.cuda.memory_stats()
        which = ("allocated_bytes", "reserved_bytes", "segment", "allocation")
        counters = [stats[f"{what}.all.{how}"] for what in which for how in ("current", "peak", "allocated")]
        print("COUNTERS", json.dumps([name, [counters, said]]))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # The hooks wait for torch's backward threads before Python ends (autograd_threads.py); without them, it may abort.
    sys.stdout.flush()
    if "foretell_child" not in sys.modules:
        os._exit(0)
"""


@pytest.fixture(scope="module")
def counters(capture: Run) -> list[dict[str, Any]]:
    """Those of the allocator after each script, without the hooks and with them."""
    scripts = json.dumps({name: dedent(script) for name, script in SCRIPTS.items()})
    script = f"SCRIPTS = {scripts!r}\n{dedent(ALL_IN_TURN)}"
    # Cold: without the hooks nothing of foretell is in the process, with them they are there before torch.
    plain = capture(script, hooks=False, cold=True).check()
    hooked = capture(script, steps="all", time=True, cold=True).check()
    assert hooked.lines("cuda")
    lines = [[line for line in run.said if line.startswith("COUNTERS ")] for run in (plain, hooked)]
    return [dict(json.loads(line.removeprefix("COUNTERS ")) for line in each) for each in lines]


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_counters_of_the_allocator_are_the_same_with_and_without_the_hooks(
    counters: list[dict[str, Any]], name: str
) -> None:
    plain, hooked = counters
    if isinstance(plain[name], str):
        pytest.skip(plain[name])
    assert hooked[name] == plain[name]


def test_a_child_forked_before_cuda_starts_may_use_the_gpu(capture: Run) -> None:
    """torch forbids CUDA in a forked child once the parent has initialised it, or only asked for its kernels."""
    script = """
        import os, torch
        import torch._dynamo
        child = os.fork()
        if child == 0:
            torch.zeros(4, device="cuda")
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    assert capture(script, cold=True).check().said == ["0"]  # cold: a warm process has been forked already


def test_reading_the_history_does_not_import_the_compiler(capture: Run) -> None:
    script = """
        import sys, torch
        for name in [name for name in sys.modules if name.startswith("torch._inductor")]:
            del sys.modules[name]  # the warm process has it
        vars(torch).pop("_inductor", None)
        weights = torch.ones(64, 64, device="cuda", requires_grad=True)
        for _ in range(3):
            (torch.ones(8, 64, device="cuda") @ weights).sum().backward()
        print("torch._inductor" in sys.modules, "_inductor" in vars(torch))
        torch._inductor.config
        print(sys.modules["torch._inductor"] is torch._inductor)
        """
    captured = capture(script, steps="all").check()
    assert captured.said == ["False False", "True"]
    assert list(captured.directory.glob("history-*-1.marshal"))
