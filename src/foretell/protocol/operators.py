"""The operators of one step: `operators-<pid>.marshal`, written where the time of a step is asked for.

`{"kind", "step", "begin_us", "end_us", "cpu_us", "delay_us", "loading_us", "loop_us", "signatures", "columns",
"phases"}`: what was recorded (see KINDS), its number, when it began and ended, the CPU time that the process took for
it, how long its main thread waited for a CPU, the CPU time of loading batches, that of a fixed loop, which tells how
fast this machine is, the distinct signatures, the bytes of one array for each of COLUMNS (an operator that another
calls comes after it; those of captured graphs come first, with their own times), and the phases as (time_us, phase).

A signature is the JSON text of [name, inputs]. An input is a number, a boolean, null, or a tensor as
[dtype, sizes, layout, is on the GPU]; several tensors are a list of them behind the word "list".
"""

from __future__ import annotations

from typing import Final

KINDS: Final = ("training", "inference")
"""A step of the optimizer, or a pass of a model without gradients."""

COLUMNS: Final = {"begin_us": "q", "end_us": "q", "signature": "i", "parent": "i", "thread": "B"}
"""By the type letters of the array module; parent: its row, or -1."""

LAYOUTS: Final = ("contiguous", "channels_last", "broadcast", "strided")
"""How a tensor lies in memory; broadcast: some of its elements share their place."""

LIST: Final = "list"

COMPILED: Final = {
    "triton_poi": "foretell::compiled_pointwise",
    "triton_red": "foretell::compiled_reduction",
    "triton_per": "foretell::compiled_reduction",
    "triton_tem": "foretell::compiled_template",
    "triton_": "foretell::compiled_pointwise",
    "": "foretell::triton_kernel",
}
"""Names of calls that stand for a launch of a kernel of Triton, by the beginning of the name that Inductor gave it; the
last is for kernels that the script brings. Their inputs are the kernel's tensors, and how many elements it is about."""

LOADER: Final = "enumerate(DataLoader)"
"""How the names of PyTorch's own ranges around the delivery of a batch begin."""
