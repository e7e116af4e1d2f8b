"""`foretell scale`: how many GPUs a job needs."""

from __future__ import annotations

import argparse

from foretell.cli.jobs import add_job
from foretell.cli.knobs import add_workers, prepare, workers_of
from foretell.cli.max import integer
from foretell.cli.sweep import add_knobs, add_output, check_output, grid_of, job_of_many, progress_of, put_out, sizes_of
from foretell.cli.terminal import say
from foretell.errors import UsageError

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """The number of GPUs doubles until no rank runs out of memory; then numbers between the last two are tried.
Of each number some ranks are run (--ranks auto). A launcher in the command is not started: its options say what each
rank runs. docs/ranks.md has more.

examples:
  foretell scale --gpu h100 train_fsdp.py
  foretell scale --gpu a100-40gb --gpus-per-node 4 -- accelerate launch --config_file fsdp.yaml train.py
  foretell scale --gpu h100 --config-key ds.json:zero_optimization.stage=2,3 -- deepspeed train.py --deepspeed ds.json
  foretell scale --gpu h100 --sizes 8,16,32,64 --arg=--tensor-parallel=1,2,4,8 --html scale.html train.py

exit codes: 0 a number of GPUs is enough; 3 none is; 1 the script itself fails with each;
            2 wrong usage, a script that does not accept a knob, or an unsupported environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell scale [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    sizes = parser.add_argument_group("number of GPUs")
    sizes.add_argument("--min", metavar="N", default="1", help="the smallest number (default: 1)")
    sizes.add_argument("--max", metavar="N", default="1024", help="the largest number (default: 1024)")
    sizes.add_argument("--sizes", metavar="A,B,...", help="all of these numbers, and no others")
    sizes.add_argument(
        "--safe", action="store_true",
        help="also what to request from a scheduler must fit, which is enough for 99%% of runs",
    )  # fmt: skip
    add_knobs(parser, "knobs (each combination is a search of its own)")
    add_workers(add_job(parser, has_world_size=False))
    add_output(parser)


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.show import OUT_OF_MEMORY
    from foretell.plan import scale_report
    from foretell.plan.scale import scale

    cards = check_output(options)
    low, high = integer("--min", options.min), integer("--max", options.max)
    sizes = sizes_of("--sizes", options.sizes)
    if sizes and (low, high) != (1, 1024):
        raise UsageError("--sizes names all numbers of GPUs; leave out --min and --max.")
    found = scale(
        job_of_many(options, sizes or [high]), grid_of(options), sizes=sizes, low=low, high=high,
        is_request=options.safe, finds_need=not options.no_need, workers=workers_of(options),
        on_point=progress_of(options), say=(lambda text: None) if options.quiet else say,
    )  # fmt: skip
    put_out(options, scale_report, found, cards)
    return OUT_OF_MEMORY if found.smallest is None else 0
