"""`--orders N` of `foretell run` and `foretell what-if`: the recorded steps in random orders."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.allocator import AllocatorSettings
    from foretell.records import Estimate, Orders
    from foretell.trace import Trace

_MOST = 100_000
_PAUSE_SECONDS = 10


def add_orders(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    group.add_argument(
        "--orders", metavar="N", type=_number,
        help="replay the recorded steps in N random orders, and show how many run out of memory",
    )  # fmt: skip
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of --orders (default: 0)")


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST:
        raise UsageError(f"--orders {text}: must be a number from 1 to {_MOST}.")
    return int(text)


def orders_of(
    options: argparse.Namespace, trace: Trace, estimate: Estimate, settings: AllocatorSettings | None = None
) -> Orders:
    """On the GPU of the estimate. Raises `UnsupportedError` if the steps cannot be moved."""
    from foretell.analysis.orders import random_orders
    from foretell.cli.terminal import say
    from foretell.rules.capacity import capacity_of

    last = time.monotonic()

    def show(num_done: int) -> None:
        nonlocal last
        if time.monotonic() - last > _PAUSE_SECONDS:
            last = time.monotonic()
            say(f"{num_done:,} of {options.orders:,} random orders replayed")

    return random_orders(
        trace, capacity_of(estimate), num=options.orders, seed=options.seed, settings=settings, on_progress=show
    )
