"""Runs on the virtual GPU: PyTorch's own allocator, asked for one sequence of requests after another.

Each line of its input is a list of requests, each line of its output what came of it. Every sequence begins with
nothing allocated and nothing cached.
"""

import contextlib
import gc
import json
import os
import sys

import torch

NUM_STREAMS = 3


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    fraction = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    num_pools = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.cuda.init()
    if fraction:
        torch.cuda.set_per_process_memory_fraction(fraction)
    gc.collect()
    gc.freeze()  # each sequence ends with a collection, which need not look through all of torch
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(NUM_STREAMS - 1))]
    for line in sys.stdin:
        answer = run(json.loads(line), streams, num_pools)
        print(json.dumps(answer), file=answers, flush=True)


def run(requests: list[list], streams: list[torch.cuda.Stream], num_pools: int) -> dict:
    before = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    held: dict[int, torch.Tensor] = {}
    pools = [torch.cuda.MemPool() for _ in range(num_pools)]
    levels = []
    for kind, *values in requests:
        torch.cuda._sleep(1)  # a kernel, without memory
        if kind == "malloc":
            name, size, stream, pool = values
            private = (
                torch.cuda.use_mem_pool(pools[pool]) if num_pools and pool is not None else contextlib.nullcontext()
            )
            with torch.cuda.stream(streams[stream]), private, contextlib.suppress(torch.OutOfMemoryError):
                held[name] = torch.empty(size, dtype=torch.uint8, device="cuda")
        elif kind == "free":
            held.pop(values[0], None)
        elif kind == "record":
            if values[0] in held:
                held[values[0]].record_stream(streams[values[1]])
        elif kind == "synchronize":
            torch.cuda.synchronize()
        elif kind == "empty_cache":
            torch.cuda.empty_cache()
        stats = torch.cuda.memory_stats()
        levels.append([stats[f"{name}_bytes.all.current"] for name in ("allocated", "active", "reserved")])
    stats = torch.cuda.memory_stats()
    streams_by_handle = {stream.cuda_stream: number for number, stream in enumerate(streams)}
    segments = [
        [
            segment["address"], segment["total_size"], streams_by_handle[segment["stream"]],
            [[block["size"], block["state"] == "active_allocated"] for block in segment["blocks"]],
        ]
        for segment in torch.cuda.memory_snapshot()
    ]  # fmt: skip
    answer = {
        "levels": levels,
        "peaks": [stats[f"{name}_bytes.all.peak"] for name in ("allocated", "active", "reserved")],
        "retries": stats["num_alloc_retries"] - before["num_alloc_retries"],
        "ooms": stats["num_ooms"] - before["num_ooms"],
        "segments": sorted(segments),
    }
    held.clear()
    pools.clear()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
    return answer


if __name__ == "__main__":
    main()
