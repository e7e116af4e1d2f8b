"""`foretell train`: trains the learned estimator on a data set, or adapts it to measured runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.errors import UsageError

_EPILOG = """Scores are of jobs, and of architectures, that the scored model was not trained on. The result is two
files: arrays (.npz) and a card (.json) with the data, the settings, the scores and the checksum of the arrays.

examples:
  foretell train labels.csv.gz --output mine
  foretell train labels.csv.gz --output mine --fine-tune measured.csv
  foretell guess --model mine --gpu a100-40gb train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="of `foretell dataset`: a file or a folder")
    parser.add_argument("--output", metavar="NAME", type=Path, required=True, help="writes NAME.npz and NAME.json")
    parser.add_argument(
        "--fine-tune", metavar="FILE", type=Path,
        help="a data set of measured runs: one factor for each family is fitted to them",
    )  # fmt: skip


    parser.add_argument(
        "--formula", metavar="FILE", type=Path,
        help="first fit the coefficients of the formula to the data set, and write them to this file, as JSON",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.files import check_targets
    from foretell.learn import dataset, train

    target = options.output.with_suffix("")
    check_targets({"--output": target.with_suffix(".npz"), "--formula": options.formula})
    if options.fine_tune is not None and not options.fine_tune.exists():
        raise UsageError(f"--fine-tune {options.fine_tune}: no such file.")
    rows = dataset.read(options.dataset)
    if options.formula is not None:
        train.write_formula(options.formula, [row.labelled for row in rows])
    trained = train.train([row.labelled for row in rows])
    measured = [] if options.fine_tune is None else [row.labelled for row in dataset.read(options.fine_tune)]
    train.save(target, trained, rows, measured)
    with ignore_broken_pipe():
        for depth, scores in trained.scores.items():
            for name, score in scores.items():
                errors = f"median {score['median']:.2%}   p90 {score['p90']:.2%}"
                print(f"{depth:9} {name:12} {score['rows']:6.0f} jobs   {errors}")
    say(f"wrote {target}.npz and {target}.json")
    return 0
