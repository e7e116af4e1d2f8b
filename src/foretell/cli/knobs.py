"""Options of the commands that turn a knob: which one, how far, how many runs at a time."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from foretell.cli.jobs import prepare as _prepare

if TYPE_CHECKING:
    from foretell.plan.knobs import Knob
    from foretell.runs.pool import Workers


def add_knob(parser: argparse.ArgumentParser) -> None:
    """Add the options of `knob_of`."""
    knob = parser.add_argument_group("knob (one of them)")
    knob.add_argument(
        "--arg", metavar="NAME",
        help="an option of the script, e.g. --arg=--batch-size; a setting as of Hydra, e.g. --arg=train.batch_size=; "
        "or a placeholder in the command, e.g. --arg={N}",
    )  # fmt: skip
    knob.add_argument("--env", metavar="NAME", help="an environment variable")
    knob.add_argument(
        "--config-key", metavar="FILE:KEY",
        help="a key of a YAML, JSON or TOML file, e.g. train.yaml:data.batch_size; your file is not changed",
    )  # fmt: skip
    knob.add_argument(
        "--dataloader", action="store_true",
        help="the batch size of the DataLoader that feeds the training, for scripts without an option for it",
    )  # fmt: skip


def knob_of(options: argparse.Namespace) -> Knob:
    from foretell.plan import functions

    arg = None if options.arg is None else options.arg or ""  # argparse makes an empty list of `--`
    return functions.knob_of(
        arg=arg, env=options.env, config_key=options.config_key, dataloader=options.dataloader
    )


def add_workers(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--workers", metavar="N|ray|ray://HOST:PORT", default=str(os.cpu_count() or 1),
        help="runs at a time on this machine, or a Ray cluster (default: one per CPU)",
    )  # fmt: skip


def workers_of(options: argparse.Namespace) -> Workers:
    from foretell.runs import parse_workers

    return parse_workers(options.workers)


def prepare(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """As that of `jobs`. `--arg --batch-size` is `--arg=--batch-size`: argparse would take the second for an option."""
    words = _prepare(parser, words)
    end = words.index("--") if "--" in words else len(words)
    for at in range(end - 1, 0, -1):
        if words[at - 1] == "--arg" and words[at].startswith("-"):
            words = [*words[: at - 1], f"--arg={words[at]}", *words[at + 1 :]]
    return words
