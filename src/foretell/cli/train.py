"""`foretell train`: trains an estimator on a data set, or adapts foretell's own to measured runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.formulas import Estimator
    from foretell.learn.dataset import Row

_EPILOG = """Scores are of jobs, and of architectures, that the scored model was not trained on. The result is two
files: arrays (.npz) and a card (.json) with the data, the settings, the scores and the checksum of the arrays.

--method trains an estimator that was published by others, to compare with: gpumemnet (ensembles of networks that answer
with a class of memory), schedtune (trees) or dnnperf (a graph network). `foretell evaluate` judges it.

examples:
  foretell train labels.csv.gz --output mine
  foretell train labels.csv.gz --output mine --fine-tune measured.csv
  foretell guess --model mine --gpu a100-40gb train.py
  foretell train labels.csv.gz --method schedtune --output trees
  foretell train labels.csv.gz --method gpumemnet --networks transformer --class-size 2GiB --output classes
  foretell evaluate FOLDER --estimators guess,schedtune,gpumemnet --model trees --model classes
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
    parser.add_argument(
        "--method", choices=["foretell", "gpumemnet", "schedtune", "dnnperf"], default="foretell",
        help="what to train (default: foretell's own estimator)",
    )  # fmt: skip
    parser.add_argument("--folds", metavar="N", type=int, default=3, help="with --method: folds of the scores; 0: none")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="with --method: random seed (default: 0)")
    parser.add_argument("--epochs", metavar="N", type=int, help="of the networks (default: as docs/learned.md says)")
    parser.add_argument(
        "--networks", choices=["mlp", "transformer"],
        help="gpumemnet: fully connected, or a Transformer over the layers (default: mlp)",
    )  # fmt: skip
    parser.add_argument(
        "--class-size", metavar="SIZE",
        help="gpumemnet: width of its classes (default: 1 GiB for MLPs, 8 GiB for other families)",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.files import check_targets
    from foretell.learn import dataset, train

    target = options.output.with_suffix("")
    check_targets({"--output": target.with_suffix(".npz"), "--formula": options.formula})
    if options.fine_tune is not None and not options.fine_tune.exists():
        raise UsageError(f"--fine-tune {options.fine_tune}: no such file.")
    _check(options)
    rows = dataset.read(options.dataset)
    if options.method != "foretell":
        return _published(rows, target, options)
    if options.formula is not None:
        train.write_formula(options.formula, [row.labelled for row in rows])
    model = train.learn(rows, [] if options.fine_tune is None else dataset.read(options.fine_tune))
    train.save(target, model)
    with ignore_broken_pipe():
        for depth, scores in model.card["scores"].items():
            for name, score in scores.items():
                errors = f"median {score['median']:.2%}   p90 {score['p90']:.2%}"
                print(f"{depth:9} {name:12} {score['rows']:6.0f} jobs   {errors}")
        if score := model.card.get("speed_scores"):
            errors = f"median {score['step_median']:.2%}   p90 {score['step_p90']:.2%}"
            shares = f"gract off by {score['gract_mean']:.3f}   smact by {score['smact_mean']:.3f}"
            print(f"{'step time':22} {score['rows']:6.0f} jobs   {errors}   {shares}")
    say(f"wrote {target}.npz and {target}.json")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Options that do not go with the method are errors, not silence."""
    if options.method == "foretell":
        wrong = ["networks", "class_size", "epochs"]
    else:
        wrong = ["fine_tune", "formula"]
        wrong += [] if options.method == "gpumemnet" else ["networks", "class_size"]
        wrong += ["epochs"] if options.method == "schedtune" else []
    for name in wrong:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --method {options.method}.")
    if options.epochs is not None and options.epochs < 1:
        raise UsageError(f"--epochs {options.epochs}: must be 1 or more.")
    if options.folds < 0 or options.folds == 1:
        raise UsageError(f"--folds {options.folds}: must be 2 or more, or 0 for no scores.")


def _published(rows: Sequence[Row], target: Path, options: argparse.Namespace) -> int:
    train = {"gpumemnet": _gpumemnet, "schedtune": _schedtune, "dnnperf": _dnnperf}[options.method]
    lines = train(rows, target, options)
    with ignore_broken_pipe():
        print("\n".join(lines))
    say(f"wrote {target}.npz and {target}.json")
    return 0


def _gpumemnet(rows: Sequence[Row], target: Path, options: argparse.Namespace) -> list[str]:
    import statistics
    from dataclasses import replace

    from foretell.learn import gpumemnet, methods
    from foretell.learn.classes import CLASS_BYTES, Example
    from foretell.units import format_bytes, parse_bytes

    size = None if options.class_size is None else parse_bytes(options.class_size)
    settings = replace(gpumemnet.SETTINGS[options.networks or "mlp"], seed=options.seed)
    if options.epochs is not None:
        settings = replace(settings, epochs=options.epochs)
    examples = [Example(features=row.features, num_bytes=row.reserved_bytes, group=row.group) for row in rows]
    trained = gpumemnet.train_families(examples, settings, is_whole_device=False, class_bytes=size)
    lines = []
    for family in trained.ensembles if options.folds else ():
        chosen = [each for each in examples if each.features.family == family]
        width = size or CLASS_BYTES[family]
        found = gpumemnet.cross_validate(chosen, settings, class_bytes=width, num_folds=options.folds)
        accuracy = statistics.fmean(each.accuracy for each in found)
        lines.append(
            f"{family:12} {len(chosen):6} jobs   class of {format_bytes(width)} right {accuracy:.2%}   "
            f"too low {statistics.fmean(each.too_low for each in found):.2%}   F1 "
            f"{statistics.fmean(each.f1 for each in found):.3f}"
        )
    gpumemnet.save(target, trained, methods.counted(rows))
    return lines


def _schedtune(rows: Sequence[Row], target: Path, options: argparse.Namespace) -> list[str]:
    from foretell.learn import methods, schedtune

    labelled = [row.labelled for row in rows]
    trained = schedtune.train(labelled)
    lines = _errors(rows, options, lambda chosen: schedtune.train([labelled[i] for i in chosen]))
    schedtune.save(target, trained, methods.counted(rows))
    return lines


def _dnnperf(rows: Sequence[Row], target: Path, options: argparse.Namespace) -> list[str]:
    from dataclasses import replace

    from foretell.learn import dnnperf, methods

    labelled = [row.labelled for row in rows]
    settings = dnnperf.Settings(seed=options.seed)
    if options.epochs is not None:
        settings = replace(settings, epochs=options.epochs)
    trained = dnnperf.train(labelled, settings)
    lines = _errors(rows, options, lambda chosen: dnnperf.train([labelled[i] for i in chosen], settings))
    dnnperf.save(target, trained, methods.counted(rows))
    return lines


def _errors(
    rows: Sequence[Row], options: argparse.Namespace, train: Callable[[list[int]], Estimator]
) -> list[str]:
    """By kind of job, out of fold."""
    import statistics

    from foretell.learn import methods

    if not options.folds:
        return []
    gpus = [row.labelled.gpu for row in rows]
    guesses = methods.held_out(
        [row.group for row in rows], options.folds, train, lambda each, i: each.guess(rows[i].features, gpus[i]),
        seed=options.seed,
    )  # fmt: skip
    by_kind: dict[str, list[float]] = {}
    for row, guess in zip(rows, guesses, strict=True):
        error = 1.0 if guess is None else abs(guess.reserved_bytes / max(row.reserved_bytes, 1) - 1)
        by_kind.setdefault(row.kind, []).append(error)
    return [
        f"{kind:16} {len(errors):6} jobs   median {statistics.median(errors):.2%}   "
        f"p90 {sorted(errors)[int(0.9 * len(errors))]:.2%}"
        for kind, errors in by_kind.items()
    ]
