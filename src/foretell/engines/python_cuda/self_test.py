"""Runs a few operators when CUDA starts: does this torch behave here as on a card?

The use of torch's internals (guard.py, dispatch.py) fits the versions it was written for. Another version may call
other functions, and memory would be missing silently. So a small program runs first, and each of its allocations must
match a card's (tests/test_cpu_engine.py runs the same program on the virtual GPU).
"""

from __future__ import annotations

from typing import Any

from ...inside.stop.autograd_threads import wait_for_autograd

_KIB = 1024
EXPECTED = {
    "weights": [16 * _KIB, 16 * _KIB],
    "forward": [16 * _KIB, 16 * _KIB, 16 * _KIB, 16 * _KIB, 4],
    # 1; gradients of sum (a view), relu, and the square's two, added up in place; then those of the weights
    "backward": [4, 16 * _KIB, 16 * _KIB, 16 * _KIB, 16 * _KIB],
    "optimizer": [16 * _KIB],
    "attention": [16 * _KIB, 16 * _KIB],
}
"""Bytes of each allocation, in order; for attention without the seeds, which differ between versions."""
_SEED = 512


def program(torch: Any, mark: Any) -> None:
    """Call `mark` with a name at the start of each part."""
    mark("weights")
    weights = torch.ones(64, 64, device="cuda", requires_grad=True)
    inputs = torch.ones(64, 64, device="cuda")
    mark("forward")
    product = weights * inputs
    loss = (product * product + product).relu().sum()
    mark("backward")
    # Not loss.backward(), and no optimizer: the hooks that count steps must not see them.
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
    """What differs from a card, or None. Leaves the allocator as it was."""
    torch, memory = device.torch, device.memory
    parts: dict[str, list[int]] = {}

    def mark(name: str) -> None:
        parts[name] = []
        memory.on_alloc = parts[name].append

    # The backward pass runs in another thread, which would wait for the initialisation that this is part of.
    torch.cuda._initialized = True
    try:
        with torch.enable_grad():
            program(torch, mark)
        wait_for_autograd(torch)  # its thread may still hold the last node, and thus the weights
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
