"""Options about the time of a step."""

from __future__ import annotations

import argparse


def add_time(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("time")
    group.add_argument(
        "--time", action="store_true", help="also estimate how long a step takes and how busy it keeps the GPU"
    )
    group.add_argument(
        "--host-factor", metavar="F", type=float,
        help="how much slower the CPU of the GPU's machine is than the one foretell was calibrated on, as `foretell "
        "doctor` says there; implies --time (default: 0.8, and an interval from 0.6 to 3)",
    )  # fmt: skip
    return group


def add_price(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--price-per-hour", metavar="PRICE", type=float,
        help="also say what 1,000 steps cost, if an hour of the GPU costs this; in any currency, implies --time",
    )  # fmt: skip
