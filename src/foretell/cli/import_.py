"""`foretell import`: estimates a job on a GPU from a torch.profiler recording made on the CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretell.errors import UsageError

_EPILOG = """Record a few training steps on any machine, with any torch build:

  with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                              profile_memory=True, record_shapes=True) as profiler:
      train_three_steps()
  profiler.export_chrome_trace("profile.json.gz")

examples:
  foretell import profile.json.gz --gpu rtx-3060
  foretell import profile.json --gpu 24GiB,sm89 --explain
  foretell import profile.json --gpu a100-80gb --trace job.trace --json -

exit codes: 0 the job fits; 3 it would run out of memory; 2 the profile cannot be used
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from foretell.cli.settings import add_emit

    parser.epilog = _EPILOG
    parser.add_argument(
        "profile", type=Path, metavar="PROFILE", help="output of export_chrome_trace: PROFILE.json or PROFILE.json.gz"
    )
    parser.add_argument("--gpu", metavar="NAME", help="a GPU from `foretell gpus`, or MEMORY,smNN (default: a100-80gb)")
    parser.add_argument("--context", metavar="SIZE", help="memory of an empty CUDA process on your machine")
    parser.add_argument("--torch", metavar="VERSION", help="torch version the job will run with (default: 2.15)")
    parser.add_argument("--json", metavar="FILE", help="write the estimate as JSON; - for standard output")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="save the simulated run, for `foretell report`")
    add_emit(parser)
    parser.add_argument("--explain", action="store_true", help="show how each pass changes the peaks")


def execute(options: argparse.Namespace) -> int:
    from foretell import api, gpus
    from foretell.analysis.verdict import estimate_of
    from foretell.cli.files import check_targets, is_stdout_taken, write_json, write_trace
    from foretell.cli.settings import check_emit, print_settings
    from foretell.cli.show import show_text
    from foretell.cli.terminal import console, ignore_broken_pipe, say
    from foretell.engines import imported as cpu
    from foretell.engines.imported import explain
    from foretell.jobs import check_taken
    from foretell.units import parse_bytes

    check_targets({"--json": options.json, "--trace": options.trace}, sources=[options.profile])
    check_emit(options)
    gpu = gpus.find(api.DEFAULT_GPU if options.gpu is None else options.gpu)
    if options.gpu is None:
        say(f"no --gpu given; assuming {gpu.name}")
    card = cpu.Card(gpu=gpu, torch=cpu.NEWEST_TORCH if options.torch is None else _version(options.torch))
    context_bytes = None if options.context is None else parse_bytes(options.context)
    check_taken(gpu, context_bytes=context_bytes, used_by_others_bytes=0)
    imported = cpu.import_profile(options.profile, card, context_bytes=context_bytes, explain=options.explain)
    if options.trace:
        write_trace(imported.trace, options.trace)
    estimate = estimate_of(imported.trace)
    show_text(estimate, is_json=is_stdout_taken(options))
    if options.json:
        write_json(estimate, options.json)
    if options.explain:
        with ignore_broken_pipe():
            explain.render(imported.passes, console(stderr=is_stdout_taken(options)))
    return print_settings(options, estimate)


def _version(text: str) -> tuple[int, int]:
    from foretell.versions import parse_version

    version = parse_version(text)
    if version is None:
        raise UsageError(f"--torch {text}: not a version. Write for example 2.6 or 2.15.0.")
    return version
