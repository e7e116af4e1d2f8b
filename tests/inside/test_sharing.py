"""Device memory that torch.multiprocessing sends to another process: CUDA IPC. Cold: the other one is spawned from the
command line of the first."""

from __future__ import annotations

import json

import pytest

from .conftest import Run

TWO_PROCESSES = """
import json
import torch
import torch.multiprocessing as mp

def memory():
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

def consume(model, tensors, answers):
    numbers, floats, large = tensors.get(), tensors.get(), tensors.get()
    answers.put({"first": numbers.tolist(), "sum": int(numbers.sum()), "float": floats[0].item(), "memory": memory(),
                 "weight": list(model.weight.shape), "large": int(large[-1])})
    tensors.get()
    answers.put({"seen": numbers.tolist()})
    numbers += 1
    model.weight.data.zero_()
    answers.put({"written": True})
    del numbers, floats, large, model
    torch.cuda.synchronize()
    answers.put({"memory": memory()})
    tensors.get()

def main():
    said = {}
    context = mp.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    model = torch.nn.Linear(512, 512, bias=False, device="cuda")
    model.share_memory()
    numbers = torch.arange(5, device="cuda")
    floats = torch.randn(100_000, device="cuda")
    before = memory()
    child = context.Process(target=consume, args=(model, tensors, answers))
    child.start()
    for each in (numbers, floats, torch.arange(500_000, device="cuda")):  # nobody keeps the last one here
        tensors.put(each)
    del each
    said["child"] = answers.get(timeout=1800)
    said["sent"] = [after - start for after, start in zip(memory(), before)]
    numbers.fill_(7)
    tensors.put(0)
    said["later"] = answers.get(timeout=1800)["seen"]
    answers.get(timeout=1800)
    said["from child"] = numbers.tolist()
    said["child at the end"] = answers.get(timeout=1800)["memory"]
    torch.cuda.ipc_collect()
    said["collected"] = [after - start for after, start in zip(memory(), before)]
    tensors.put(0)
    child.join(1800)
    said["exit"] = child.exitcode
    print(json.dumps(said))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("allocator", ["expandable_segments:False", "expandable_segments:True"])
def test_a_tensor_sent_to_another_process_is_the_producers_memory_and_has_its_values(
    capture: Run, allocator: str
) -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": allocator, "PYTORCH_ALLOC_CONF": allocator}
    said = json.loads(capture(TWO_PROCESSES, environment=environment, steps="all", cold=True).check().said[-1])
    child = said["child"]
    assert (child["first"], child["sum"], child["large"]) == ([0, 1, 2, 3, 4], 10, 499_999)
    assert child["float"] == 1.0, "what is not known has a stand-in, not what lies in the memory"
    # The sum of the numbers and what torch needs for it are the child's own: one block in one small segment.
    assert child["memory"] == [0, 2 << 20]
    assert child["weight"] == [512, 512]
    large_bytes = 4_000_256  # 500,000 integers in blocks of 512 bytes, held for the child
    assert said["sent"][0] == large_bytes
    assert said["later"] == [7] * 5, "the memory is the same one"
    assert said["from child"] == [8] * 5
    assert said["child at the end"][0] == 0
    assert said["collected"][0] == 0, "the child has let go, so the block is free"
    assert said["exit"] == 0


def test_a_child_that_dies_early_leaves_the_producer_going(capture: Run) -> None:
    script = """
        import os
        import sys
        import torch
        import torch.multiprocessing as mp

        def die(tensors):
            assert tensors.get().tolist() == [3, 3]
            os._exit(5)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            tensors = context.Queue()
            child = context.Process(target=die, args=(tensors,))
            child.start()
            tensors.put(torch.full((2,), 3, device="cuda"))
            child.join(1800)
            tensors.put(torch.ones(2, device="cuda"))
            print(child.exitcode, torch.full((2,), 4, device="cuda").tolist())
            # torch 2.6 frees what was sent to a dead child when its allocator's history is gone already, and aborts.
            sys.stdout.flush()
            os._exit(0)
    """
    assert capture(script, steps="all", cold=True).check().said[-1] == "5 [4, 4]"
