"""Lets torch's backward threads finish before Python shuts down.

A backward pass runs in a thread per GPU. When it is done, that thread drops the last reference to the pass, which since
torch 2.15 holds a Python object; if Python is shutting down at that moment, the process aborts ("terminate called
without an active exception"). On a virtual GPU, a script that ends right after its last backward pass is fast enough to
trigger this.
"""

from __future__ import annotations

from typing import Any


def wait_for_autograd(torch: Any) -> None:
    """Run an empty pass in each thread. Threads work in order, so the previous pass is released by then."""
    if not torch.cuda.is_initialized():
        return
    engine = torch.autograd.Variable._execution_engine
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.max_memory_reserved(device):
                nothing = torch.empty(0, device=f"cuda:{device}", requires_grad=True)
                # Not backward() or grad(): those would give the empty pass a Python object to release, too.
                gradient = torch.empty_like(nothing)
                engine.run_backward((nothing.clone(),), (gradient,), False, False, (), accumulate_grad=True)
