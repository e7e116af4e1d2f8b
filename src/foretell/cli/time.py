"""Options about the time of a step."""

from __future__ import annotations

import argparse


def add_time(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time")
    group.add_argument(
        "--time", action="store_true", help="also estimate how long a step takes and how busy it keeps the GPU"
    )
    group.add_argument(
        "--host-factor", metavar="F", type=float,
        help="how much slower the CPU beside the GPU is than a fast desktop's; implies --time (default: 1.25)",
    )  # fmt: skip
