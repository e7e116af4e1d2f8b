"""What a script can ask of the card and of PyTorch's allocator: graphs with a pool of their own, streams and
record_stream, pinned memory, emptied caches, a fragmented heap, an allocation that fails and is tried again."""

import torch
from common import note_peaks, report
from torch import nn

MIB = 1 << 20


def fragment() -> list[torch.Tensor]:
    """Every second block of many sizes stays: what is asked for next fits none of the holes."""
    blocks = [torch.empty(size * 1000, dtype=torch.uint8, device="cuda") for size in range(300, 30000, 700)]
    kept = blocks[::2]
    del blocks
    kept.append(torch.empty(60 * MIB, dtype=torch.uint8, device="cuda"))
    return kept


def replay_a_graph(model: nn.Module) -> None:
    inputs = torch.zeros(64, 256, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(inputs).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad()
    with torch.cuda.graph(graph):
        model(inputs).sum().backward()
    for _ in range(3):
        inputs.copy_(torch.randn(64, 256))
        graph.replay()
    graphed = torch.cuda.make_graphed_callables(nn.Linear(256, 256).cuda(), (inputs.clone().requires_grad_(),))
    graphed(inputs).sum().backward()


def prefetch(model: nn.Module) -> None:
    side = torch.cuda.Stream()
    for _ in range(4):
        batch = torch.randn(512, 256).pin_memory()
        with torch.cuda.stream(side):
            moved = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        moved.record_stream(torch.cuda.current_stream())
        model(moved).sum().backward()
        finished = torch.cuda.Event(enable_timing=True)
        finished.record()
        finished.synchronize()


def main() -> None:
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    kept = fragment()
    prefetch(model)
    if torch.cuda.get_allocator_backend() == "native":
        replay_a_graph(model)
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        print("CAUGHT")
    note_peaks()
    del kept
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    prefetch(model)
    print("RETRIES", torch.cuda.memory_stats().get("num_alloc_retries", 0))
    report()


if __name__ == "__main__":
    main()
