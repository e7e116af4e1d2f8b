"""`foretell max-batch`: the largest batch size with which a script fits."""

from __future__ import annotations

import argparse

from foretell.cli.knobs import prepare
from foretell.cli.max import add_search, search

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """The script runs with one batch size after another, several at a time, until the largest that fits is found.
It fits if the script does on a card with that memory, less --safety; the next sizes above it have been tried too.
docs/max-batch.md explains the search. `foretell max` does the same for any other integer.

examples:
  foretell max-batch --gpu rtx-3060 --arg=--batch-size train.py --amp
  foretell max-batch --gpu rtx-4090 --config-key train.yaml:data.batch_size --multiple-of 8 train.py
  foretell max-batch --gpu a10g --dataloader --safety 5% train.py
  foretell max-batch --gpu a10g --arg=--batch-size --emit trainer --effective-batch 256 train.py

exit codes: 0 found; 1 the script itself fails with every batch size; 2 wrong usage, no batch size of the range
            fits, all up to --max do, a script that does not accept the knob or ignores it, or an unsupported
            environment; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell max-batch --arg=NAME [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    add_search(parser, has_batch=True)


def execute(options: argparse.Namespace) -> int:
    return search(options, key="batch_size")
