"""GPUMemNet's networks, re-created, on measured runs, beside the figures of its authors (`make gpumemnet`).

    python -m benchmarks.gpumemnet --ground-truth FOLDER [--sets mlp_a100,cnn_a100] [--folds 3] [--html classes.html]

Each set is divided into folds; each fold is judged by an ensemble that was trained from scratch on the others. Beside
the two kinds of networks stands what the papers tried first: a regression by ExtraTrees, whose answer is put into its
class. The page has the confusion matrices, and the jobs as PCA and t-SNE see them.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from foretell import disk
from foretell.errors import ForetellError, UsageError
from foretell.evaluation import cases, instant, tables
from foretell.features import Family, JobFeatures
from foretell.learn import gpumemnet
from foretell.learn.classes import CLASS_BYTES, Example, Scores, classes_of, folds, scores, sklearn
from foretell.learn.processes import state_of_description
from foretell.report.static_page import document, plotly_objects, scrolling_table
from foretell.runs import Store
from foretell.runs.environment import private_cache
from foretell.units import format_bytes, parse_bytes

HERE = Path(__file__).resolve().parent
GROUND_TRUTH = HERE.parents[1] / "shared" / "ground_truth"
BEGIN, END = "<!-- begin: make gpumemnet -->", "<!-- end: make gpumemnet -->"
SETS: dict[str, Family] = {
    "mlp_a100": "mlp", "mlp_plain_a100": "mlp", "cnn_a100": "cnn", "transformer_a100": "transformer",
}  # fmt: skip
LEFT_OUT = {"cnn_a100": ("residual", "dense")}
"""Architectures that the authors leave out of the set."""
TREES = "ExtraTrees"
NAMES = {"mlp": "MLP ensemble", "transformer": "Transformer ensemble", TREES: "ExtraTrees regression"}
ESTIMATORS = tuple(NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Over the folds."""

    accuracy: float
    precision: float
    recall: float
    f1: float
    too_low: float


def _published(accuracy: float, precision: float, f1: float, too_low: float) -> Means:
    return Means(accuracy=accuracy, precision=precision, recall=accuracy, f1=f1, too_low=too_low)


PUBLISHED: dict[tuple[Family, str], Means] = {
    ("mlp", "mlp"): _published(0.9762, 0.9728, 0.9736, 0.0176),
    ("mlp", "transformer"): _published(0.9838, 0.9850, 0.9837, 0.0076),
    ("cnn", "mlp"): _published(0.7965, 0.8210, 0.8012, 0.0719),
    ("cnn", "transformer"): _published(0.8029, 0.8236, 0.8077, 0.0783),
    ("transformer", "mlp"): _published(0.8483, 0.8408, 0.8408, 0.1072),
    ("transformer", "transformer"): _published(0.8583, 0.8638, 0.8573, 0.0636),
}
"""Means of the three folds in Ensemble/k_fold_results of itu-rad/GPUMemNet (b44b4e4), with classes of 1,000 and 8,000
MiB and two to seventy times as many runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    set: str
    family: Family
    estimator: str
    num_jobs: int
    class_bytes: int
    folds: tuple[Scores, ...]
    seconds: float
    """Of CPU."""

    @property
    def means(self) -> Means:
        names = ("accuracy", "precision", "recall", "f1", "too_low")
        return Means(**{name: statistics.fmean(getattr(each, name) for each in self.folds) for name in names})

    @property
    def confusion(self) -> list[list[int]]:
        """Of all folds together."""
        size = max(len(each.confusion) for each in self.folds)
        total = [[0] * size for _ in range(size)]
        for each in self.folds:
            for i, row in enumerate(each.confusion):
                for j, count in enumerate(row):
                    total[i][j] += count
        return total


def main() -> int:
    options = parsed()
    try:
        return run(options)
    except ForetellError as error:
        print(f"gpumemnet: {error}", file=sys.stderr)
        return error.exit_code


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ground-truth", type=Path, default=GROUND_TRUTH, metavar="FOLDER")
    parser.add_argument("--sets", default=",".join(SETS), metavar="A,B", help=f"default: {','.join(SETS)}")
    parser.add_argument("--estimators", default=",".join(ESTIMATORS), metavar="A,B", help=f"of {','.join(ESTIMATORS)}")
    parser.add_argument("--folds", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--epochs", type=int, metavar="N", help="instead of those of the settings")
    parser.add_argument("--class-size", metavar="SIZE", help="default: 1 GiB for MLPs, 8 GiB for other families")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N runs of each set: the first ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="that describe jobs")
    parser.add_argument("--html", type=Path, metavar="FILE", help="confusion matrices, PCA and t-SNE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table between its markers")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    names = [name.strip() for name in options.sets.split(",") if name.strip()]
    estimators = [name.strip() for name in options.estimators.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SETS]:
        raise UsageError(f"--sets {options.sets}: unknown set {unknown[0]}. Known: {', '.join(SETS)}.")
    if unknown := [name for name in estimators if name not in ESTIMATORS]:
        raise UsageError(f"--estimators {options.estimators}: unknown {unknown[0]}. Known: {', '.join(ESTIMATORS)}.")
    width = None if options.class_size is None else parse_bytes(options.class_size)
    console = Console(stderr=True, highlight=False)
    given = {name: read(options, name, console) for name in names}
    results = []
    for name, examples in given.items():
        for estimator in estimators:
            found = judged(name, examples, estimator, width or CLASS_BYTES[SETS[name]], options)
            console.print(f"{name}, {NAMES[estimator]}: {found.means.accuracy:.2%} right, {found.seconds:.0f} s of CPU")
            results.append(found)
    rows = table(results)
    Console(width=160).print(rich_table(rows))
    if options.json:
        values = [{**asdict(each), "means": asdict(each.means), "confusion": each.confusion} for each in results]
        disk.write(options.json, json.dumps(values, indent=1) + "\n", is_private=False)
    if options.markdown:
        before, _, rest = options.markdown.read_text("utf-8").partition(BEGIN)
        text = f"{BEGIN}\n\n{tables.markdown(HEADINGS, rows)}\n\n{END}{rest.partition(END)[2]}"
        disk.write(options.markdown, before + text, is_private=False)
    if options.html:
        disk.write(options.html, page(results, given, width), is_private=False)
    return 0


def read(options: argparse.Namespace, name: str, console: Console) -> list[Example]:
    """The runs of a set. Descriptions are kept where `foretell evaluate` keeps them."""
    known = [
        case
        for case in cases.read(options.ground_truth, [name])
        if case.factors.get("architecture") not in LEFT_OUT.get(name, ())
    ][: options.sample]
    folder = private_cache("evaluations", os.environ)
    if folder is None:
        raise UsageError("there is no cache folder to keep descriptions in (~/.cache).")
    store = Store(folder / "descriptions.jsonl", state=state_of_description(of_any_script=True))

    def show(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            console.print(f"{name}: {done} of {total} jobs described")

    jobs = instant.describe(known, store, workers=options.workers, on_progress=show)
    store.close()
    return [
        Example(features=job, num_bytes=case.measured_bytes, is_oom=case.is_oom, group=case.key)
        for case in known
        if isinstance(job := jobs[case.key], JobFeatures)
    ]


# --- judging ----------------------------------------------------------------------------------------------------------


def judged(
    name: str, examples: Sequence[Example], estimator: str, class_bytes: int, options: argparse.Namespace
) -> Result:
    started = time.process_time()
    if estimator == TREES:
        found = regressed(examples, class_bytes=class_bytes, num_folds=options.folds, seed=options.seed)
    else:
        settings = next(each for each in gpumemnet.SETTINGS.values() if each.kind == estimator)
        settings = replace(settings, seed=options.seed, epochs=options.epochs or settings.epochs)
        found = gpumemnet.cross_validate(examples, settings, class_bytes=class_bytes, num_folds=options.folds)
    return Result(
        set=name, family=SETS[name], estimator=estimator, num_jobs=len(examples), class_bytes=class_bytes,
        folds=tuple(found), seconds=time.process_time() - started,
    )  # fmt: skip


def regressed(examples: Sequence[Example], *, class_bytes: int, num_folds: int, seed: int) -> list[Scores]:
    """Bytes, by trees that were trained on runs that fit: they cannot say that a job would not."""
    truth = classes_of(examples, class_bytes)
    parts = folds([each.group for each in examples], num_folds, seed=seed)
    inputs = [gpumemnet.totals(each.features) for each in examples]
    found = []
    for fold in range(num_folds):
        trees = sklearn("ensemble").ExtraTreesRegressor(300, random_state=seed)
        chosen = [i for i, part in enumerate(parts) if part != fold and not examples[i].is_oom]
        trees.fit([inputs[i] for i in chosen], [examples[i].num_bytes for i in chosen])
        tested = [i for i, part in enumerate(parts) if part == fold]
        answers = trees.predict([inputs[i] for i in tested])
        found.append(scores([truth[i] for i in tested], [int(answer // class_bytes) for answer in answers]))
    return found


# --- showing ----------------------------------------------------------------------------------------------------------

HEADINGS = ("set", "estimator", "runs", "class", "right", "each fold", "precision", "recall", "F1", "too low")


def table(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Every estimator, and under it what its authors published."""
    rows = []
    for each in results:
        accuracies = ", ".join(f"{100 * one.accuracy:.1f}" for one in each.folds)
        size = format_bytes(each.class_bytes)
        rows.append((each.set, NAMES[each.estimator], str(each.num_jobs), size, *_cells(each.means, accuracies)))
        if (each.family, each.estimator) in PUBLISHED:
            rows.append((each.set, "as published", "", "", *_cells(PUBLISHED[each.family, each.estimator], "")))
    return rows


def _cells(means: Means, accuracies: str) -> tuple[str, ...]:
    return (
        f"{means.accuracy:.2%}".replace("%", " %"), accuracies, f"{means.precision:.3f}", f"{means.recall:.3f}",
        f"{means.f1:.3f}", f"{means.too_low:.2%}".replace("%", " %"),
    )  # fmt: skip


def rich_table(rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table

    found = Table(box=None, padding=(0, 1), header_style="bright_black")
    for heading in HEADINGS:
        found.add_column(heading, justify="left" if heading in ("set", "estimator") else "right", no_wrap=True)
    for row in rows:
        found.add_row(*row, style="bright_black" if row[1] == "as published" else "")
    return found


def page(results: Sequence[Result], given: dict[str, list[Example]], width: int | None) -> str:
    plotly = plotly_objects()
    head = [f"<th>{html.escape(heading)}</th>" for heading in HEADINGS]
    cells = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table(results)]
    drawn = [
        *((f"{each.set}: {NAMES[each.estimator]}, confusion", confusion_chart(plotly, each)) for each in results),
        *(
            (f"{name}: {method} of the totals", points_chart(plotly, points, classes_of(examples, size), size))
            for name, examples in given.items()
            for size in [width or CLASS_BYTES[SETS[name]]]
            for method, points in projections(examples).items()
        ),
    ]
    parts = [f"<p>{html.escape((__doc__ or '').split(chr(10))[0])}</p>", scrolling_table(head, cells)]
    for number, (heading, figure) in enumerate(drawn):
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False}))
    return document("GPUMemNet, re-created", parts, style="")


def projections(examples: Sequence[Example]) -> dict[str, Any]:
    """The jobs in two dimensions, by their standardized totals."""
    inputs = sklearn("preprocessing").StandardScaler().fit_transform(
        [gpumemnet.totals(each.features) for each in examples]
    )
    perplexity = min(30.0, (len(examples) - 1) / 3)
    return {
        "PCA": sklearn("decomposition").PCA(2, random_state=0).fit_transform(inputs),
        "t-SNE": sklearn("manifold").TSNE(2, perplexity=perplexity, random_state=0).fit_transform(inputs),
    }


def confusion_chart(plotly: Any, result: Result) -> Any:
    counts = result.confusion
    names = [class_name(i, result.class_bytes) for i in range(len(counts))]
    heat = plotly.Heatmap(z=counts, x=names, y=names, text=counts, texttemplate="%{text}", colorscale="Blues")
    return plotly.Figure(heat).update_layout(xaxis_title="answer", yaxis_title="truth", width=560, height=480)


def points_chart(plotly: Any, points: Any, truth: Sequence[int], class_bytes: int) -> Any:
    figure = plotly.Figure()
    for each in sorted(set(truth)):
        own = [point for point, true in zip(points, truth, strict=True) if true == each]
        figure.add_scatter(
            x=[point[0] for point in own], y=[point[1] for point in own], mode="markers", marker={"size": 5},
            name=class_name(each, class_bytes),
        )  # fmt: skip
    return figure.update_layout(width=760, height=520)


def class_name(number: int, class_bytes: int) -> str:
    """The class after the largest is running out of memory, where the set has such runs."""
    return f"from {format_bytes(number * class_bytes)}"


if __name__ == "__main__":
    sys.exit(main())
