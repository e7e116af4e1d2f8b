"""`foretell what-if`: replays a saved trace on another GPU or with other allocator options."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.analysis.what_if import WhatIf
    from foretell.records import Estimate

_EPILOG = """Replays the recorded allocations through a Python model of PyTorch's allocator, without running the script.
Anything the script would do differently on the other GPU (another attention kernel, another batch size) is not
included; use `foretell run` for that.

examples:
  foretell what-if job.trace --gpu rtx-4060
  foretell what-if job.trace --alloc-conf expandable_segments:True
  foretell what-if job.trace --gpu 24GiB,sm89 --alloc-conf max_split_size_mb:128 --json -
  foretell what-if epoch.trace --gpu rtx-4060 --orders 200
  foretell what-if job.trace --gpu rtx-4060 --report page.html --trace other.trace

exit codes: 0 the job fits; 3 it would run out of memory
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from foretell.cli.files import add_files
    from foretell.cli.orders import add_orders
    from foretell.cli.settings import add_emit

    parser.epilog = _EPILOG
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a file written by `foretell run --trace`")
    parser.add_argument("--gpu", metavar="NAME", help="another GPU (default: the recorded one)")
    parser.add_argument("--context", metavar="SIZE", help="memory of an empty CUDA process there")
    parser.add_argument("--used-by-others", metavar="SIZE", default="0", help="memory already used by other processes")
    parser.add_argument("--alloc-conf", metavar="OPTIONS", help="as in PYTORCH_CUDA_ALLOC_CONF (default: as recorded)")
    add_orders(parser)
    add_files(parser)
    add_emit(parser)
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, dest="target", help="save the outcome, for `foretell report` and `diff`"
    )


def execute(options: argparse.Namespace) -> int:
    from foretell import gpus
    from foretell.allocator import AllocatorSettings, check_alloc_conf
    from foretell.analysis.verdict import estimate_of
    from foretell.analysis.what_if import what_if
    from foretell.cli.files import check_targets, targets_of, write_reports, write_trace
    from foretell.cli.orders import orders_of
    from foretell.cli.settings import check_emit, print_settings
    from foretell.jobs import check_taken
    from foretell.trace import load
    from foretell.units import parse_bytes

    if options.gpu is None and options.alloc_conf is None and options.orders is None:
        raise UsageError("nothing to change: give --gpu NAME, --alloc-conf OPTIONS or --orders N.")
    check_targets(targets_of(options) | {"--trace": options.target}, sources=[options.trace])
    check_emit(options)
    trace = load(options.trace)
    settings = None
    if options.alloc_conf is not None:
        check_alloc_conf(options.alloc_conf)
        settings = AllocatorSettings.parse(options.alloc_conf, trace.torch_version)
    gpu = None if options.gpu is None else gpus.find(options.gpu)
    context_bytes = None if options.context is None else parse_bytes(options.context)
    used_by_others_bytes = parse_bytes(options.used_by_others)
    check_taken(gpu or trace.gpu, context_bytes=context_bytes, used_by_others_bytes=used_by_others_bytes)
    found = what_if(
        trace, gpu=gpu, context_bytes=context_bytes, used_by_others_bytes=used_by_others_bytes, settings=settings
    )
    estimate = estimate_of(found.trace)
    if options.orders is not None:
        estimate = replace(estimate, orders=orders_of(options, trace, estimate, settings))
    _show(options, estimate, found)
    if options.target:
        write_trace(found.trace, options.target)
    write_reports(options, found.trace, estimate)
    return print_settings(options, estimate)


def _document(options: argparse.Namespace, estimate: Estimate, found: WhatIf) -> dict[str, Any]:
    from foretell.report import json as json_report

    oom = estimate.oom
    return {
        "schema": "foretell.what-if/1",
        "verdict": estimate.verdict,
        "gpu": estimate.gpu.name,
        "allocator": options.alloc_conf,
        "capacity_bytes": found.capacity.reservable_bytes,
        "peak": {
            "allocated_bytes": estimate.peak.allocated_bytes,
            "reserved_bytes": estimate.peak.reserved_bytes,
        },
        "recorded": {
            "allocated_bytes": found.recorded.peak.allocated_bytes,
            "reserved_bytes": found.recorded.peak.reserved_bytes,
        },
        "num_retries": found.num_retries,
        "oom": None if oom is None else {"step": oom.step, "requested_bytes": oom.requested_bytes},
        "estimate": json_report.document(estimate),
    }


def _show(options: argparse.Namespace, estimate: Estimate, found: WhatIf) -> None:
    from foretell.cli.files import is_stdout_taken, write
    from foretell.cli.terminal import ignore_broken_pipe, printable

    if options.json:
        text = json.dumps(_document(options, estimate, found), indent=2) + "\n"
        if options.json != "-":
            write(Path(options.json), text)
    with ignore_broken_pipe():
        if options.json == "-":
            print(text, end="", flush=True)
        else:
            print(printable(_outcome(estimate, found)), file=sys.stderr if is_stdout_taken(options) else sys.stdout)


def _outcome(estimate: Estimate, found: WhatIf) -> str:
    from foretell.report.batches import order_words
    from foretell.report.performance import sentence
    from foretell.units import format_bytes

    name, capacity = estimate.gpu.name, format_bytes(found.capacity.reservable_bytes)
    if estimate.oom is None:
        reserved = format_bytes(estimate.peak.reserved_bytes)
        lines = [f"FITS on {name}: PyTorch reserves {reserved} of the {capacity} available to it"]
    else:
        step, requested = estimate.oom.step, format_bytes(estimate.oom.requested_bytes)
        lines = [f"OUT OF MEMORY on {name} in step {step}: cannot allocate {requested}; PyTorch has {capacity}"]
    recorded = found.recorded.peak
    allocated, reserved = format_bytes(recorded.allocated_bytes), format_bytes(recorded.reserved_bytes)
    lines.append(f"  recorded: allocated {allocated}, reserved {reserved}")
    if found.num_retries:
        times = "once" if found.num_retries == 1 else f"{found.num_retries} times"
        lines.append(f"  the cache had to be emptied {times}, which costs time")
    if estimate.performance is not None:
        lines.append(f"  {sentence(estimate.performance)}")
    if estimate.orders is not None:
        lines.append(f"  {order_words(estimate.orders)}")
        num_left = estimate.orders.num_steps - estimate.orders.num_steps_moved
        lines.append(f"  {num_left:,} of {estimate.orders.num_steps:,} steps stay in their places")
    return "\n".join(lines)
