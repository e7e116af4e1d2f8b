"""Times in a recorded job: a tick, and an order among what a card does in addition between two ticks.

A tick is a position in the order of all recorded events. What a pass adds happens between two ticks, and what another
pass adds may have to happen right after that; so a moment is a tuple, compared as tuples are:

    (7,) < (7, 1) < (7, 1, 1) < (7, 2) < (8,)
"""

from __future__ import annotations

import sys
from enum import IntEnum

Moment = tuple[int, ...]
START: Moment = (0,)
"""The first moment of the recording."""
BEFORE: Moment = (-1,)
"""Allocation time of blocks that exist when the recording begins."""
NEVER: Moment = (sys.maxsize,)
"""Free time of blocks that outlive the recording."""


def before(moment: Moment, *order: int) -> Moment:
    """Just before that moment, after everything recorded earlier. Orders are compared from first to last."""
    return (*moment[:-1], moment[-1] - 1, *order)


def after(moment: Moment, *order: int) -> Moment:
    """Just after that moment, before everything recorded later."""
    return (*moment, *order)


class AtEnd(IntEnum):
    """What a card does at the end of an operator, after everything the CPU did, in this order. Recurrent nets have
    their own order."""

    THREAD_WORKSPACE = 1
    TAKEN = 2
    """Workspaces and temporaries, one after the other; the output of a fused kernel."""
    SAVED = 3
    """Saved by a fused kernel for the backward pass."""
    WORKSPACE_GIVEN_BACK = 4
    SUM_TAKEN = 5
    SUM_GIVEN_BACK = 6
    GIVEN_BACK = 7


class AtBegin(IntEnum):
    """What a card does before an operator begins."""

    COPIED = 1
    """By the preceding operator."""
    DROPOUT_STATES = 2
    MOVED = 3
    """Copied from the host, in the order of creation there."""
