"""A few operators, when CUDA starts: does this torch do here what it does on a card?

What is asked of torch's inside (guard.py, dispatch.py) holds for the versions it was written for. Another version may
call elsewhere, and then memory would be missing without a word: so a small program runs first, and every allocation it
makes must be one that a card has seen (tests/test_cpu_engine.py runs the same program on the virtual GPU).
"""

from __future__ import annotations

from typing import Any

from ...inside.stop.autograd_threads import wait_for_autograd

_KIB = 1024
EXPECTED = {
    "weights": [16 * _KIB, 16 * _KIB],
    "forward": [16 * _KIB, 16 * _KIB, 16 * _KIB, 16 * _KIB, 4],
    # 1, the gradients of sum (a view), relu and the square's two, the sum of which is made in place, and of the weights
    "backward": [4, 16 * _KIB, 16 * _KIB, 16 * _KIB, 16 * _KIB],
    "optimizer": [16 * _KIB],
    "attention": [16 * _KIB, 16 * _KIB],
}
"""Bytes of each allocation, in order; those of attention without the seeds, which differ between versions."""
_SEED = 512


def program(torch: Any, mark: Any) -> None:
    """`mark` is called with a name at the beginning of each part."""
    mark("weights")
    weights = torch.ones(64, 64, device="cuda", requires_grad=True)
    inputs = torch.ones(64, 64, device="cuda")
    mark("forward")
    product = weights * inputs
    loss = (product * product + product).relu().sum()
    mark("backward")
    # Not loss.backward() and no optimizer: the hooks that count steps must not see them.
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), accumulate_grad=True)
    del product, loss
    mark("optimizer")
    torch._foreach_addcdiv_([inputs], [weights.grad], torch._foreach_sqrt([weights.detach()]))
    mark("attention")
    tokens = torch.zeros(1, 2, 64, 32, device="cuda")
    torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
    mark("end")


def what_is_wrong(device: Any) -> str | None:
    """None: all is as on a card. The allocator is as before afterwards."""
    torch, memory = device.torch, device.memory
    parts: dict[str, list[int]] = {}

    def mark(name: str) -> None:
        parts[name] = []
        memory.on_alloc = parts[name].append

    # The backward pass runs in another thread, which would wait for the end of the initialisation this is part of.
    torch.cuda._initialized = True
    try:
        with torch.enable_grad():
            program(torch, mark)
        wait_for_autograd(torch)  # its thread may still hold the last node, and with it the weights
        wrong = first_difference(parts)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        torch.cuda._initialized = False
        memory.on_alloc = None
    leaked = memory.allocator.allocated_bytes
    if wrong is None and leaked:
        wrong = f"{leaked} bytes were not freed"
    memory.start_again()
    return wrong


def first_difference(parts: dict[str, list[int]]) -> str | None:
    for name, expected in EXPECTED.items():
        seen = [size for size in parts.get(name, []) if name != "attention" or size > _SEED]
        if seen != expected:
            return f"{name}: allocates {seen} bytes instead of {expected}"
    return None
