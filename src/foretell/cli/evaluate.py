"""`foretell evaluate`: estimates against measured runs."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from foretell.evaluation.metrics import Figures, Judged
    from foretell.evaluation.records import Answer, Case
    from foretell.evaluation.statistics import Draws, Factor

_BEGIN, _END = "<!-- begin: foretell evaluate -->", "<!-- end: foretell evaluate -->"
_FILE_WIDTH = 150
_EPILOG = """FOLDER holds CSV files of measured runs, one a set. Every run is trained again on the virtual GPU, with the
torch of this environment, and each estimate is compared with what the real card showed. An interrupted evaluation
goes on where it stopped; answers of another state of the code are not used.

The interval of convolutions was searched on rows of even line numbers (--rows fitted); other constants were set
with all rows in view, so the odd ones (--rows kept) are only partly held out.

examples:
  foretell evaluate ../shared/ground_truth
  foretell evaluate ../shared/ground_truth --sets cnn_rtx,transformer --html accuracy.html
  foretell evaluate ../shared/ground_truth --sample 200 --rows kept --json -

columns: errors are |estimate - measured| / measured; PEF: how often a run that gets only the estimate fails;
MCP: memory saved against reserving the whole card; inside: measured runs within the interval, width: its median
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="measured runs: cnn_rtx.csv, transformer.csv, ...")
    parser.add_argument("--sets", metavar="A,B", help="only these (default: all that the folder has)")
    parser.add_argument("--sample", metavar="N", type=int, help="at most N runs of each set, at random")
    parser.add_argument("--rows", choices=["all", "kept", "fitted"], default="all", help="which half of the rows")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the sample and the draws (default: 0)")
    parser.add_argument(
        "--engine", choices=["virtual", "cpu"], default="virtual", help="cpu: also with a torch without CUDA"
    )
    parser.add_argument("--workers", metavar="N", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--answers", metavar="FILE", type=Path, help="where answers are kept (default: in ~/.cache)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with figures")
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - is the standard output")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables, between marks if it has them")
    parser.add_argument("--quiet", action="store_true", help="no progress while it runs")


def execute(options: argparse.Namespace) -> int:
    from foretell.evaluation import cases, metrics, page, statistics

    _check(options)
    statistics.statsmodels_and_pandas()  # what is missing is told before anything runs
    if options.html:
        page.plotly_objects()
    chosen = _choose(cases.read(options.folder, _sets(options)), options)
    answers = _answers(chosen, options)
    judged = metrics.judge(chosen, answers)
    if not judged:
        raise UnsupportedError(f"no run could be estimated. The first: {_first_problem(answers)}")
    figures = metrics.figures(judged)
    factors = statistics.anova(judged)
    draws = statistics.monte_carlo(judged, seed=options.seed)
    _show(options, answers, judged, figures, factors, draws)
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("sample", "workers"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: 1 or more.")
    for name in ("answers", "html", "json", "markdown"):
        path = getattr(options, name)
        if path is not None and str(path) != "-" and not Path(path).resolve().parent.is_dir():
            raise UsageError(f"--{name} {path}: there is no folder {Path(path).resolve().parent}.")


def _sets(options: argparse.Namespace) -> list[str]:
    return [name.strip() for name in options.sets.split(",") if name.strip()] if options.sets else []


def _choose(cases: list[Case], options: argparse.Namespace) -> list[Case]:
    if options.rows != "all":
        cases = [case for case in cases if case.is_kept_back == (options.rows == "kept")]
    if options.sample is None:
        return cases
    by_set: dict[str, list[Case]] = {}
    for case in cases:
        by_set.setdefault(case.set, []).append(case)
    generator = random.Random(options.seed)
    return [case for own in by_set.values() for case in generator.sample(own, min(options.sample, len(own)))]


# --- running ----------------------------------------------------------------------------------------------------------


def _answers(cases: Sequence[Case], options: argparse.Namespace) -> dict[str, Answer]:
    """One for every case; runs that are the same are run once."""
    from foretell.capture.command import find_torch, refuse_torch
    from foretell.evaluation.runner import Pool, state_of_code

    installed = find_torch(sys.executable)
    refuse_torch(installed, sys.executable, engine=options.engine)
    state = f"{state_of_code()}-{installed.version if installed else ''}"
    path = options.answers or _cache() / f"{options.engine}.jsonl"
    known = {answer.key: answer for answer in _read_answers(path) if answer.state == state}
    first_of = {case.run_key: case for case in reversed(cases)}
    missing = [case for case in first_of.values() if case.key not in known]
    pool = Pool(num_workers=options.workers, engine=options.engine, state=state)
    with path.open("a", encoding="utf-8") as file:
        for answer in _with_progress(pool.run(missing) if missing else iter(()), len(missing), options):
            known[answer.key] = answer
            file.write(answer.to_json() + "\n")
            file.flush()
    return {case.key: replace(known[first_of[case.run_key].key], key=case.key) for case in cases}


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "foretell" / "evaluations"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _read_answers(path: Path) -> Iterator[Answer]:
    """Half a line at the end is what an interrupted evaluation leaves."""
    from foretell.evaluation.records import Answer

    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Answer.from_json(line)
        except (ValueError, TypeError):
            continue


def _with_progress(answers: Iterator[Answer], total: int, options: argparse.Namespace) -> Iterator[Answer]:
    if options.quiet or not total:
        yield from answers
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from foretell.cli.terminal import console

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task(f"training ({options.engine} engine)", total=total)
        for answer in answers:
            progress.advance(task)
            yield answer


def _first_problem(answers: dict[str, Answer]) -> str:
    return next((f"{answer.key}: {answer.problem}" for answer in answers.values() if answer.problem), "none was chosen")


# --- showing ----------------------------------------------------------------------------------------------------------


def _show(
    options: argparse.Namespace,
    answers: dict[str, Answer],
    judged: list[Judged],
    figures: list[Figures],
    factors: list[Factor],
    draws: list[Draws],
) -> None:
    from foretell.cli.terminal import console, readers_may_leave
    from foretell.evaluation import page, tables

    problems = [answer for answer in answers.values() if answer.problem]
    about = _about(options, answers, problems)
    document = {
        "schema": "foretell.evaluation/1",
        "about": about,
        "figures": [asdict(each) for each in figures],
        "anova": [asdict(each) for each in factors],
        "monte_carlo": [asdict(each) for each in draws],
        "problems": {answer.key: answer.problem for answer in problems},
    }
    if options.html:
        title = "foretell against measured runs"
        options.html.write_text(page.render(judged, figures, factors, draws, title=title, about=about), "utf-8")
    if options.markdown:
        _write_markdown(options.markdown, _markdown(about, figures, factors, draws))
    if options.json == "-":
        with readers_may_leave():
            print(json.dumps(document, indent=2))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=2), "utf-8")
    with readers_may_leave():
        terminal = console()
        if not terminal.is_terminal:
            terminal.width = max(terminal.width, _FILE_WIDTH)
        tables.print_figures(figures, terminal)
        terminal.print(f"\n{about}")
        explaining = sorted((each for each in factors if each.p_value < 0.01), key=lambda each: -each.share)
        for each in explaining[:5]:
            terminal.print(f"  {each.set}: {each.name} explains {each.share:.0%} of the variance of the error")
        for answer in problems[:5]:
            terminal.print(f"  [yellow]![/] {answer.key} has no estimate: {(answer.problem or '')[:200]}", markup=True)


def _about(options: argparse.Namespace, answers: dict[str, Answer], problems: Sequence[Answer]) -> str:
    versions = sorted({answer.torch for answer in answers.values() if answer.torch})
    rows = {"all": "all rows", "kept": "odd line numbers", "fitted": "even line numbers"}[options.rows]
    sample = f", at most {options.sample} of each set (seed {options.seed})" if options.sample else ""
    missing = f"; {len(problems)} could not be estimated" if problems else ""
    return f"{len(answers)} measured runs, {rows}{sample}; torch {', '.join(versions)}{missing}."


def _markdown(about: str, figures: Sequence[Figures], factors: Sequence[Factor], draws: Sequence[Draws]) -> str:
    from foretell.evaluation import tables
    from foretell.evaluation.metrics import OURS

    explaining = [each for each in factors if each.p_value < 0.01]
    parts = [
        about,
        tables.markdown(tables.HEADINGS, [tables.figure_row(each) for each in figures]),
        "What explains the error (ANOVA, type II, factors with p < 0.01):",
        tables.markdown(tables.FACTOR_HEADINGS, [tables.factor_row(each) for each in explaining]),
        "Random configurations (every model drawn alike; bootstrap):",
        tables.markdown(tables.DRAWS_HEADINGS, [tables.draws_row(each) for each in draws if each.tool == OURS]),
    ]
    return "\n\n".join(parts)


def _write_markdown(path: Path, text: str) -> None:
    """A file that has the marks keeps all that is around them."""
    before, begin, rest = path.read_text("utf-8").partition(_BEGIN) if path.exists() else ("", "", "")
    _, end, after = rest.partition(_END)
    if begin and end:
        path.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}", "utf-8")
    else:
        path.write_text(f"{_BEGIN}\n\n{text}\n\n{_END}\n", "utf-8")
