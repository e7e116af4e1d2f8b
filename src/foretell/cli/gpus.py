"""`foretell gpus`: the table of GPUs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from foretell import gpus
from foretell.cli.terminal import console, ignore_broken_pipe
from foretell.records import Gpu
from foretell.units import GIB, MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print all fields as JSON")
    parser.add_argument("--mig", action="store_true", help="show the MIG slices instead")
    parser.add_argument("name", nargs="*", help="show only these GPUs, in any spelling")


def execute(options: argparse.Namespace) -> int:
    cards = [gpus.find(name) for name in options.name] or list(gpus.all_gpus())
    if options.mig:
        cards = [gpu for gpu in gpus.all_slices() if gpu.name.partition(":")[0] in {card.name for card in cards}]
    with ignore_broken_pipe():
        if options.json:
            print(json.dumps([asdict(card) for card in cards], indent=2))
        else:
            _print_table(cards)
    return 0


def _print_table(cards: list[Gpu]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1))
    table.add_column("--gpu", style="bold", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for title in ("sm", "SMs", "GB/s", "fp32", "tensor", "context"):
        table.add_column(title, justify="right", no_wrap=True)
    for card in cards:
        major, minor = card.compute_capability
        table.add_row(
            card.name,
            f"{card.total_bytes / GIB:.2f}{'*' if card.is_measured else ' '}",
            f"{major}{minor}",
            str(card.num_sms),
            f"{card.bandwidth_bytes_per_second / 1e9:.0f}",
            f"{card.fp32_flops / 1e12:.1f}",
            f"{card.tensor_flops / 1e12:.0f}" if card.tensor_flops else "-",
            f"{card.context_bytes / MIB:.0f}",
        )
    terminal = console()
    terminal.print(table)
    terminal.print(
        "memory: total memory in GiB, as torch reports it (*: measured on that GPU; otherwise published or derived); "
        "sm: compute capability; fp32, tensor: peak dense TFLOPS; "
        "context: estimated memory of an empty CUDA process, in MiB. "
        "Any spelling works (rtx3060, 'RTX 3060'), and so do a description such as 24GiB,sm89 and a MIG slice such as "
        "a100-80gb:3g.40gb.",
        style="bright_black",
    )
