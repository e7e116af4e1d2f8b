"""`--emit`: the decision in the words of a scheduler or a training framework, on standard output."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from foretell.cli.terminal import ignore_broken_pipe, is_stdout_closed, printable, say
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from foretell.records import Estimate

# As in foretell.plan.emit, which takes a third of a second to import; a test compares them.
MEMORY_TOOLS = ("slurm", "kubernetes", "kai", "hami", "volcano", "mig", "ray", "skypilot", "dstack")
BATCH_TOOLS = ("trainer", "lightning", "accelerate")


def add_emit(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, has_batch: bool = False) -> None:
    """Add the options of `print_settings`. `has_batch`: the command finds a batch size."""
    tools = (*MEMORY_TOOLS, *BATCH_TOOLS)
    parser.add_argument(
        "--emit", metavar="TOOL", choices=tools,
        help="print what to ask for as settings of a scheduler"
        f"{' or a training framework' if has_batch else ''}, and all else to standard error: "
        f"{', '.join(tools if has_batch else MEMORY_TOOLS)}",
    )  # fmt: skip
    parser.add_argument(
        "--shard-size", metavar="SIZE", help="with --emit slurm: memory that a shard stands for (default: 1GiB)"
    )
    if has_batch:
        parser.add_argument(
            "--effective-batch", metavar="N",
            help="with --emit of a training framework: samples per optimizer step, reached by gradient accumulation",
        )  # fmt: skip
    parser.set_defaults(has_batch=has_batch)


def check_emit(options: argparse.Namespace) -> None:
    """Rejects what can be seen to be wrong before any work is done."""
    tool: str | None = options.emit
    if tool is not None and options.json == "-":
        raise UsageError(f"--emit {tool} and --json - both write to standard output. Give --json a file name.")
    if tool is not None and is_stdout_closed():
        raise UsageError(f"--emit {tool}: standard output is closed.")
    if tool in BATCH_TOOLS and not options.has_batch:
        raise UsageError(
            f"--emit {tool}: needs the largest batch size that fits, which `foretell {options.command}` does not look "
            "for. Use `foretell max-batch`."
        )
    if options.shard_size is not None and tool != "slurm":
        raise UsageError("--shard-size applies to --emit slurm.")
    if getattr(options, "effective_batch", None) is not None and tool not in BATCH_TOOLS:
        raise UsageError(f"--effective-batch applies to --emit {', '.join(BATCH_TOOLS)}.")
    _arguments(options)


def print_settings(options: argparse.Namespace, estimate: Estimate, *, batch_size: int | None = None) -> int:
    """Print what `--emit` asks for, if anything, and return the exit code of the estimate: if the settings cannot be
    given, never 0."""
    from foretell.cli.show import exit_code

    code = exit_code(estimate)
    if options.emit is None:
        return code
    from foretell.plan.emit import emit

    try:
        text = emit(options.emit, estimate, batch_size=batch_size, **_arguments(options))
    except ForetellError as error:
        say(str(error))
        return code or error.exit_code
    with ignore_broken_pipe():
        print(printable(text), end="", flush=True)
    return code


def _arguments(options: argparse.Namespace) -> dict[str, int]:
    from foretell.units import MIB, parse_bytes

    arguments = {}
    if options.shard_size is not None:
        arguments["shard_bytes"] = parse_bytes(options.shard_size)
        if arguments["shard_bytes"] < MIB:
            raise UsageError(f"--shard-size {options.shard_size}: must be 1MiB or more.")
    effective = getattr(options, "effective_batch", None)
    if effective is not None:
        if not re.fullmatch("[0-9]{1,9}", effective) or int(effective) < 1:
            raise UsageError(f"--effective-batch {effective}: must be a number (1 or more).")
        arguments["effective_batch"] = int(effective)
    return arguments
