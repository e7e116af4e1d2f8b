"""When something happens in a recorded job: a tick, and an order among what a card does in addition between two ticks.

A tick is a place in the order of all that was recorded. What a pass adds happens between two ticks, and what another
pass adds may have to happen right after that; so a moment is a tuple, compared as tuples are:

    (7,) < (7, 1) < (7, 1, 1) < (7, 2) < (8,)
"""

from __future__ import annotations

import sys
from enum import IntEnum

Moment = tuple[int, ...]
START: Moment = (0,)
"""The first of the recording."""
BEFORE: Moment = (-1,)
"""The birth of what was there when the recording began."""
NEVER: Moment = (sys.maxsize,)
"""The death of what outlives the recording."""


def before(moment: Moment, *order: int) -> Moment:
    """After all that is recorded before that moment. Orders are compared from the first to the last."""
    return (*moment[:-1], moment[-1] - 1, *order)


def after(moment: Moment, *order: int) -> Moment:
    """Before all that is recorded after that moment."""
    return (*moment, *order)


class AtEnd(IntEnum):
    """What a card does before an operator ends, when the CPU has done all of its own, in this order. Recurrent nets
    have an order of their own."""

    THREAD_WORKSPACE = 1
    TAKEN = 2
    """Workspaces and temporaries, one after the other; the output of a fused kernel."""
    SAVED = 3
    """By a fused kernel, for the backward pass."""
    WORKSPACE_GIVEN_BACK = 4
    SUM_TAKEN = 5
    SUM_GIVEN_BACK = 6
    GIVEN_BACK = 7


class AtBegin(IntEnum):
    """Before an operator begins."""

    COPIED = 1
    """By the operator before."""
    DROPOUT_STATES = 2
    MOVED = 3
    """From the host, in the order in which it was made there."""
