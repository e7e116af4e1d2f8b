"""`foretell what-if`: a saved trace on another card or with other options of PyTorch's allocator, not run again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from foretell.allocator import Outcome
    from foretell.records import Estimate
    from foretell.trace import Trace

_EPILOG = """The requests of the recorded run are given to PyTorch's allocator, written again in Python: same requests,
another card or other options. What the script itself would do otherwise on another card (a smaller attention kernel,
another batch size) is not in it; `foretell run` on that card says that.

examples:
  foretell what-if job.trace --gpu rtx-4060
  foretell what-if job.trace --alloc-conf expandable_segments:True
  foretell what-if job.trace --gpu 24GiB,sm89 --alloc-conf max_split_size_mb:128 --json -

exit codes: 0 it fits; 3 it would run out of memory
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a file written by `foretell run --trace`")
    parser.add_argument("--gpu", metavar="NAME", help="another card (default: the recorded one)")
    parser.add_argument("--context", metavar="SIZE", help="what an empty CUDA process takes there")
    parser.add_argument("--used-by-others", metavar="SIZE", default="0", help="what others have of the card already")
    parser.add_argument("--alloc-conf", metavar="OPTIONS", help="as in PYTORCH_CUDA_ALLOC_CONF (default: the recorded)")
    parser.add_argument("--json", metavar="FILE", help="write the outcome as JSON; - is the standard output")


def execute(options: argparse.Namespace) -> int:
    from foretell import gpus
    from foretell.allocator import CachingAllocator, Device, play_again
    from foretell.cli.show import OUT_OF_MEMORY
    from foretell.overhead import library_bytes, loaded_libraries
    from foretell.trace import AllocatorSettings, load
    from foretell.units import parse_bytes
    from foretell.verdict import estimate_of

    if options.gpu is None and options.alloc_conf is None:
        raise UsageError("what if what? Give --gpu NAME, --alloc-conf OPTIONS, or both.")
    trace = load(options.trace)
    recorded = estimate_of(trace)
    _check(trace, recorded)
    gpu = gpus.find(options.gpu) if options.gpu else trace.gpu
    context = (
        parse_bytes(options.context) if options.context else gpu.context_bytes if options.gpu else trace.context_bytes
    )
    libraries = library_bytes(gpu) if options.gpu else trace.libraries
    _, loaded = loaded_libraries(libraries, trace.library_functions())
    beside = context + loaded + parse_bytes(options.used_by_others)
    settings = trace.allocator
    if options.alloc_conf is not None:
        settings = AllocatorSettings.parse(options.alloc_conf, trace.torch_version)
    if not settings.is_native:
        raise UnsupportedError("cudaMallocAsync is the driver's own allocator: run the script with it instead.")
    device = Device(gpu.total_bytes - beside, total_bytes=gpu.total_bytes)
    outcome = play_again(trace.memory, CachingAllocator(device, settings))
    _show(options, trace, recorded, outcome, capacity=gpu.total_bytes - beside, name=gpu.name)
    return OUT_OF_MEMORY if outcome.oom_event is not None else 0


def _check(trace: Trace, recorded: Estimate) -> None:
    """The recorded run, played again on the recorded card, must come to the recorded peaks."""
    from foretell.allocator import CachingAllocator, Device, play_again

    if recorded.oom is not None:
        raise UnsupportedError(
            "the recorded run ran out of memory, so what it would have asked for next is not known. Record it on a "
            "card that is large enough: foretell run --gpu 96GiB,sm90 --trace ..."
        )
    if not trace.allocator.is_native:
        raise UnsupportedError("the run was recorded with cudaMallocAsync, whose requests are not in the trace.")
    again = play_again(trace.memory, CachingAllocator(Device(trace.gpu.total_bytes), trace.allocator))
    found = (again.peak_allocated_bytes, again.peak_reserved_bytes)
    peaks = (recorded.peak.allocated_bytes, recorded.peak.reserved_bytes)
    if found != peaks:
        raise UnsupportedError(
            f"this trace cannot be played again: its requests give peaks of {found}, the run had {peaks} (allocated, "
            "reserved). CUDA graphs, memory pools of the script's own and a history that is not whole are reasons. Run "
            "the script on that card instead."
        )


def _show(
    options: argparse.Namespace, trace: Trace, recorded: Estimate, outcome: Outcome, *, capacity: int, name: str
) -> None:
    from foretell.cli.terminal import readers_may_leave
    from foretell.units import format_bytes

    step = _step_of(trace, outcome.oom_event)
    document = {
        "schema": "foretell.what-if/1",
        "verdict": "fits" if outcome.oom_event is None else "oom",
        "gpu": name,
        "allocator": options.alloc_conf,
        "capacity_bytes": capacity,
        "peak": {
            "allocated_bytes": outcome.peak_allocated_bytes,
            "reserved_bytes": outcome.peak_reserved_bytes,
        },
        "recorded": {
            "allocated_bytes": recorded.peak.allocated_bytes,
            "reserved_bytes": recorded.peak.reserved_bytes,
        },
        "num_retries": outcome.num_retries,
        "oom": None if step is None else {"step": step, "requested_bytes": outcome.requested_bytes},
    }
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    with readers_may_leave():
        if options.json == "-":
            print(json.dumps(document, indent=2))
            return
        if step is None:
            print(f"FITS on {name}: PyTorch reserves {format_bytes(outcome.peak_reserved_bytes)} of the "
                  f"{format_bytes(capacity)} there are for it")  # fmt: skip
        else:
            print(f"OUT OF MEMORY on {name} in step {step}: {format_bytes(outcome.requested_bytes or 0)} were asked "
                  f"for, of {format_bytes(capacity)} there are for PyTorch")  # fmt: skip
        print(f"  recorded: allocated {format_bytes(recorded.peak.allocated_bytes)}, "
              f"reserved {format_bytes(recorded.peak.reserved_bytes)}")  # fmt: skip
        if outcome.num_retries:
            print(f"  the cache was emptied {outcome.num_retries} times to make room, which takes time")


def _step_of(trace: Trace, event: int | None) -> int | None:
    if event is None:
        return None
    return sum(mark.time_us < trace.memory.time_us[event] for mark in trace.steps)
