"""Marks and labels beside the memory history: `owners-<pid>-<n>.marshal`.

A window is `{"names": [...], "marks": [...], "labels": [...]}`. Rows are tuples of integers, in the order given here;
what is a name in them is an index into `names` of the same window, or NOTHING.
"""

from __future__ import annotations

from typing import Final

PHASES: Final = ("forward", "backward", "optimizer", "evaluation", "other")
"""Of a training; `other` is everything around it."""

MARK: Final = ("device", "num_allocations", "phase", "step", "first", "second")
"""Something begins after so many allocations. A phase: its name, and as `first` the line that began it. A node of a
backward pass: NOTHING for the phase, then the node and the module that made it."""

LABEL: Final = ("device", "num_allocations", "address", "category", "name")
"""After so many allocations a tensor lies at this address; the category is an index into LABELLED."""

LABELLED: Final = ("parameter", "buffer", "gradient", "optimizer_state")
"""The categories of labelled tensors, by number."""

NOTHING: Final = -1

MODULE_FRAME: Final = "<nn.Module>"
"""The file of a stack frame that stands for a call of a module; its function is the module's path. PyTorch records
Python frames and nothing else; where the capture folder is read the frame becomes the module of the origin."""
