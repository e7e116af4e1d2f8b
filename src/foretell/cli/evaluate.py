"""`foretell evaluate`: compares estimates with measured runs."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from foretell.cli.terminal import say
from foretell.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.evaluation.metrics import CauseFigures, Figures, Judged, RunFigures
    from foretell.evaluation.pairs import SpeedFigures
    from foretell.evaluation.records import Answer, Case
    from foretell.evaluation.statistics import Draws, Factor
    from foretell.runs import Store

_Any = TypeVar("_Any")
_BEGIN, _END = "<!-- begin: foretell evaluate -->", "<!-- end: foretell evaluate -->"
_FILE_WIDTH = 180
_EPILOG = """FOLDER contains CSV files of measured runs, one per set. Every run is repeated on the virtual GPU with the
torch of this environment, and the estimate is compared with the measurement. An interrupted evaluation resumes
where it stopped; answers from another version of the code are not reused.

The constants of the intervals were calibrated on measured runs. --hold-out judges each run by constants that its
campaign (who measured, and when) or its family (the architecture) had no part in; --fit writes the constants that
these runs support, as `make calibration` does.

examples:
  foretell evaluate ../shared/ground_truth
  foretell evaluate ../shared/ground_truth --sets cnn_rtx,transformer --html accuracy.html
  foretell evaluate ../shared/ground_truth --sample 200 --hold-out family --json -
  foretell evaluate ../shared/ground_truth --sets time_collocation
  foretell evaluate ../shared/ground_truth --estimators guess,formula,horus,dnnmem --sample 100
  foretell evaluate ../shared/ground_truth --estimators gpumemnet,schedtune --sets mlp_a100,cnn_a100
  foretell evaluate ../shared/ground_truth --estimators schedtune --model mine   (of foretell train --method schedtune)

gpumemnet, schedtune and dnnperf have to be trained. Without a --model, they are trained on the runs that are judged, in
three folds: each run is judged by an estimator that has not seen its model. They need foretell[train] and torch.

columns: errors are |estimate - measured| / measured; PEF: share of runs that fail if given only the estimate;
MCP: memory saved compared with reserving the whole GPU; inside: share of runs within the interval; width: its median;
over: excess of the request over the truth (median); holds: share of runs that need no more than the request
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="measured runs: cnn_rtx.csv, transformer.csv, ...")
    parser.add_argument("--sets", metavar="A,B", help="evaluate only these sets (default: all in the folder)")
    parser.add_argument("--sample", metavar="N", type=int, help="a random sample of at most N runs per set")
    parser.add_argument(
        "--rows", choices=["all", "kept", "fitted"], default="all",
        help="which rows to evaluate; kept: those with odd line numbers, fitted: with even ones (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--memory-only", action="store_true", help="do not judge times and utilization; recording them takes longer"
    )
    parser.add_argument(
        "--hold-out", choices=["campaign", "family"],
        help="judge each run by intervals calibrated without its campaign or family (default: the shipped constants)",
    )  # fmt: skip
    parser.add_argument("--fit", metavar="FILE", type=Path, help="write the constants that these runs support (TOML)")
    parser.add_argument(
        "--runs", metavar="N", type=int, default=0,
        help="also list the N runs of each set with the largest errors, and what their intervals are made of",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--engine", choices=["virtual", "cpu"], default="virtual", help="cpu also works without a CUDA build of torch"
    )
    parser.add_argument(
        "--estimators", metavar="A,B",
        help="judge instant estimators instead of an engine, without running a step: guess, horus, dnnmem, llmem, "
        "faketensor, memtracker, zero1 to zero3, accelerate, by-hand, formula, gpumemnet, schedtune, dnnperf",
    )  # fmt: skip
    parser.add_argument(
        "--write-rows", metavar="FILE", type=Path,
        help="with --estimators: write the measured runs as a data set, for `foretell train --fine-tune`",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="FILE", type=Path, action="append", default=[],
        help="with --estimators: a model of `foretell train`, for the estimator it was trained as; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--labels", metavar="FILE", type=Path,
        help="with --estimators guess: train on this data set, for each run without the labels of its architecture",
    )  # fmt: skip
    parser.add_argument(
        "--fine-tune", metavar="FILE", type=Path, help="with --labels: measured runs, as for `foretell train`"
    )
    parser.add_argument(
        "--workers", metavar="N|ray|ray://HOST:PORT", default=str(os.cpu_count() or 1),
        help="runs at a time on this machine, or a Ray cluster (default: one per CPU)",
    )  # fmt: skip
    parser.add_argument("--answers", metavar="FILE", type=Path, help="where to keep answers (default: in ~/.cache)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write an HTML page with charts")
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - for standard output")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables, between its markers if any")
    parser.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell.cli.files import write
    from foretell.evaluation import cases, instant, intervals, metrics, pairs, statistics, times
    from foretell.report.static_page import plotly_objects

    _check(options)
    if options.estimators:
        known = cases.read(options.folder, _sets(options))
        known = [case for case in known if instant.is_judged(case)]
        return _instant(_choose(known, options), options)
    speed_figures = _pairs(options)
    if _sets(options) == [pairs.SET]:
        return _show_pairs_alone(options, speed_figures)
    statistics.statsmodels_and_pandas()  # report missing packages before anything runs
    if options.html:
        plotly_objects()
    chosen = _choose(cases.read(options.folder, [name for name in _sets(options) if name != pairs.SET]), options)
    answers = _answers(chosen, options)
    judged = metrics.judge(chosen, answers, intervals.held_out(chosen, answers, options.hold_out))
    figures = [*metrics.figures(judged), *times.figures(chosen, answers)]
    if not figures:
        raise UnsupportedError(f"no run could be estimated. First problem: {_first_problem(answers)}")
    factors = statistics.anova(judged)
    draws = statistics.monte_carlo(judged, seed=options.seed)
    if options.fit:
        write(options.fit, intervals.render(intervals.fit(chosen, answers)), is_private=False)
    _show(options, answers, judged, figures, factors, draws, speed_figures)
    return 0


def _pairs(options: argparse.Namespace) -> list[SpeedFigures]:
    """Of pairs of jobs on one card, if they are wanted and in the folder."""
    from foretell.evaluation import pairs

    wanted, path = _sets(options), options.folder / f"{pairs.SET}.csv"
    if wanted and pairs.SET not in wanted:
        return []
    if not path.is_file():
        if wanted:
            raise UsageError(f"{options.folder} does not contain {path.name}.")
        return []
    measured, num_unknown = pairs.read(options.folder)
    if num_unknown and not options.quiet:
        say(f"{pairs.SET}: {num_unknown} pairs have no estimate: how busy their jobs are alone is not known")
    return pairs.figures(measured)


def _show_pairs_alone(options: argparse.Namespace, figures: list[SpeedFigures]) -> int:
    """Nothing has to run for them."""
    from foretell.cli.files import write
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.evaluation import tables

    if not figures:
        raise UnsupportedError("no pair could be estimated: how busy their jobs are alone is not known.")
    text = json.dumps({"schema": "foretell.evaluation/1", "figures": [asdict(each) for each in figures]}, indent=2)
    if options.json and options.json != "-":
        write(Path(options.json), text + "\n", is_private=False)
    if options.markdown:
        rows = tables.markdown(tables.SPEED_HEADINGS, [tables.speed_row(each) for each in figures])
        write(options.markdown, _between_markers(options.markdown, rows), is_private=False)
    with ignore_broken_pipe():
        if options.json == "-":
            print(text)
        else:
            tables.print_speeds(figures, _wide(console()))
    return 0


def _check(options: argparse.Namespace) -> None:
    from foretell.cli.files import check_targets
    from foretell.runs import parse_workers

    options.workers = parse_workers(options.workers)
    if options.sample is not None and options.sample < 1:
        raise UsageError(f"--sample {options.sample}: must be 1 or more.")
    if options.runs < 0:
        raise UsageError(f"--runs {options.runs}: must be 0 or more.")
    check_targets({f"--{name}": getattr(options, name) for name in ("answers", "html", "json", "markdown", "fit")})
    check_targets({"--write-rows": options.write_rows})
    for name in ("write_rows", "model", "labels"):
        if getattr(options, name) and not options.estimators:
            raise UsageError(f"--{name.replace('_', '-')} goes with --estimators.")
    if options.fine_tune and not options.labels:
        raise UsageError("--fine-tune goes with --labels.")
    for name in ("labels", "fine_tune"):
        path = getattr(options, name)
        if path is not None and not path.exists():
            raise UsageError(f"--{name.replace('_', '-')} {path}: no such file.")


def _sets(options: argparse.Namespace) -> list[str]:
    return [name.strip() for name in options.sets.split(",") if name.strip()] if options.sets else []


def _choose(cases: list[Case], options: argparse.Namespace) -> list[Case]:
    """The rows asked for. The sample of a set does not depend on the other sets, and is part of any larger sample: what
    was run for it is used again."""
    if options.rows != "all":
        cases = [case for case in cases if case.is_kept_back == (options.rows == "kept")]
    if options.memory_only:
        cases = [replace(case, measured={}) for case in cases if case.has_memory]
    if options.sample is None:
        return cases
    by_set: dict[str, list[Case]] = {}
    for case in cases:
        by_set.setdefault(case.set, []).append(case)
    for own in by_set.values():
        random.Random(options.seed).shuffle(own)
    return [case for own in by_set.values() for case in own[: options.sample]]


# --- running ----------------------------------------------------------------------------------------------------------


def _answers(cases: Sequence[Case], options: argparse.Namespace) -> dict[str, Answer]:
    """One answer per case; identical runs are run once."""
    from foretell.evaluation.records import Answer
    from foretell.evaluation.runner import JUDGING, answer, key_of, modules_of
    from foretell.plain import from_plain, to_plain
    from foretell.runs import Pool, Store, find_torch, state_of_code
    from foretell.runs.command import refuse_torch

    installed = find_torch(sys.executable)
    refuse_torch(installed, sys.executable, engine=options.engine)
    state = f"{state_of_code(without=JUDGING)}-{installed.version if installed else ''}"
    store = Store(options.answers or _cache() / f"{options.engine}.jsonl", state=state)
    keys = {case.key: key_of(case, options.engine) for case in cases}
    first_of = {keys[case.key]: case for case in reversed(cases)}
    missing = [case for key, case in first_of.items() if not _has_answer(store, key)]
    if missing:
        workers = min(options.workers, len(missing)) if isinstance(options.workers, int) else options.workers
        with Pool(workers, modules=modules_of(missing)) as pool:
            asked = [(case, options.engine) for case in missing]
            for (case, _), found in _with_progress(pool.map(answer, asked), len(missing), options):
                store.add(keys[case.key], to_plain(found))
    store.close()
    return {case.key: replace(from_plain(Answer, store[keys[case.key]]), key=case.key) for case in cases}


def _instant(cases: Sequence[Case], options: argparse.Namespace) -> int:
    """Judges instant estimators; jobs are described once and kept, with the torch of this environment."""
    from rich.progress import Progress

    from foretell.cli.files import write
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.evaluation import instant, tables
    from foretell.learn import dataset
    from foretell.learn.processes import state_of_description
    from foretell.runs import Store

    for name in ("html", "markdown"):
        if getattr(options, name):
            raise UsageError(f"--{name} does not go with --estimators; use --json.")
    estimators = instant.parse_estimators(options.estimators, models=options.model)
    store = Store(options.answers or _cache() / "descriptions.jsonl", state=state_of_description(of_any_script=True))
    with Progress(console=console(stderr=True), disable=options.quiet, transient=True) as progress:
        task = progress.add_task("describing jobs", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        jobs = instant.describe(cases, store, workers=options.workers, on_progress=show)
        labels, measured = ([] if path is None else dataset.read(path) for path in (options.labels, options.fine_tune))
        trainings = instant.num_trainings(cases, estimators, has_labels=bool(labels))
        if trainings:
            task = progress.add_task("training estimators", total=trainings)
        estimators = instant.trained_on(
            cases, jobs, estimators, labels=labels, measured=measured, on_fold=lambda: progress.advance(task)
        )
    store.close()
    if options.write_rows:
        dataset.write(options.write_rows, instant.measured_rows(cases, jobs))
    judged, bounds = instant.judge(cases, jobs, estimators)
    figures, classes = instant.instant_figures(judged + bounds), list(instant.class_figures(judged + bounds))
    timed = instant.speed_figures(cases, jobs, estimators)
    problems = {key: job for key, job in jobs.items() if isinstance(job, str)}
    document = {
        "schema": "foretell.evaluation/1",
        "about": f"{len(cases)} measured runs; {len(problems)} could not be described.{instant.about(estimators)}",
        "figures": [asdict(each) for each in [*figures, *timed]],
        "classes": [asdict(each) for each in classes],
        "problems": problems,
    }
    if options.json and options.json != "-":
        write(Path(options.json), json.dumps(document, indent=2) + "\n", is_private=False)
    with ignore_broken_pipe():
        if options.json == "-":
            print(json.dumps(document, indent=2))
            return 0
        terminal = console()
        if not terminal.is_terminal:
            terminal.width = max(terminal.width, _FILE_WIDTH)
        tables.print_instant(figures, classes, timed, terminal)
        terminal.print(f"\n{document['about']}")
        for key, problem in list(problems.items())[:5]:
            terminal.print(f"  ! {key}: {problem[:200]}")
    return 0


def _has_answer(store: Store, key: str) -> bool:
    """Whether there is an answer that can be read: a line of the file may be damaged."""
    from foretell.evaluation.records import Answer
    from foretell.plain import from_plain

    try:
        return key in store and isinstance(from_plain(Answer, store[key]), Answer)
    except ValueError:
        return False


def _cache() -> Path:
    from foretell.runs.environment import private_cache

    folder = private_cache("evaluations", os.environ)
    if folder is None:
        raise UsageError("there is no cache folder to keep the answers in (~/.cache). Name a file: --answers FILE.")
    return folder


def _with_progress(answers: Iterator[_Any], total: int, options: argparse.Namespace) -> Iterator[_Any]:
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
    return next((f"{answer.key}: {answer.problem}" for answer in answers.values() if answer.problem), "no run selected")


# --- showing ----------------------------------------------------------------------------------------------------------


def _show(
    options: argparse.Namespace,
    answers: dict[str, Answer],
    judged: list[Judged],
    figures: list[Figures],
    factors: list[Factor],
    draws: list[Draws],
    speed_figures: list[SpeedFigures],
) -> None:
    from rich.text import Text

    from foretell.cli.files import write
    from foretell.cli.terminal import console, ignore_broken_pipe
    from foretell.evaluation import metrics, page, tables

    causes, runs = metrics.cause_figures(judged), metrics.largest_errors(judged, options.runs)
    problems = [answer for answer in answers.values() if answer.problem]
    about = _about(options, answers, problems) + about_versions(judged, answers)
    document = {
        "schema": "foretell.evaluation/1",
        "about": about,
        "figures": [*map(asdict, figures), *map(asdict, speed_figures)],
        "causes": [asdict(each) for each in causes],
        "runs": [asdict(each) for each in runs],
        "anova": [asdict(each) for each in factors],
        "monte_carlo": [asdict(each) for each in draws],
        "problems": {answer.key: answer.problem for answer in problems},
    }
    if options.html:
        title = "foretell compared with measured runs"
        write(options.html, page.render(judged, figures, factors, draws, title=title, about=about), is_private=False)
    if options.markdown:
        text = _between_markers(options.markdown, _markdown(about, figures, causes, runs, factors, draws))
        write(options.markdown, text, is_private=False)
    if options.json == "-":
        with ignore_broken_pipe():
            print(json.dumps(document, indent=2))
        return
    if options.json:
        write(Path(options.json), json.dumps(document, indent=2) + "\n", is_private=False)
    with ignore_broken_pipe():
        terminal = _wide(console())
        tables.print_figures(figures, terminal)
        if speed_figures:
            tables.print_speeds(speed_figures, terminal)
        tables.print_causes(causes, terminal)
        if runs:
            tables.print_runs(runs, terminal)
        terminal.print(f"\n{about}")
        explaining = sorted((each for each in factors if each.p_value < 0.01), key=lambda each: -each.share)
        for each in explaining[:5]:
            terminal.print(f"  {each.set}: {each.name} explains {each.share:.0%} of the variance of the error")
        for answer in problems[:5]:
            problem = f" {answer.key} has no estimate: {(answer.problem or '')[:200]}"
            terminal.print(Text.assemble("  ", ("!", "yellow"), problem))


def _wide(terminal: Console) -> Console:
    """In a file, tables need not fit a screen."""
    if not terminal.is_terminal:
        terminal.width = max(terminal.width, _FILE_WIDTH)
    return terminal


def _about(options: argparse.Namespace, answers: dict[str, Answer], problems: Sequence[Answer]) -> str:
    versions = sorted({answer.torch for answer in answers.values() if answer.torch})
    rows = {"all": "all rows", "kept": "odd line numbers", "fitted": "even line numbers"}[options.rows]
    sample = f", at most {options.sample} of each set (seed {options.seed})" if options.sample else ""
    held_out = f"; intervals calibrated without the {options.hold_out} of each run" if options.hold_out else ""
    missing = f"; {len(problems)} could not be estimated" if problems else ""
    return f"{len(answers)} measured runs, {rows}{sample}; torch {', '.join(versions)}{held_out}{missing}."


def about_versions(judged: Sequence[Judged], answers: dict[str, Answer]) -> str:
    """Names the sets that were measured with another torch than that of this environment."""
    from foretell.evaluation.cases import TORCH_OF_CAMPAIGNS

    others: dict[str, str] = {}
    for each in judged:
        measured, ours = TORCH_OF_CAMPAIGNS.get(each.case.campaign), answers[each.case.key].torch.split(".")[:2]
        if measured and ".".join(ours) not in measured:
            others[each.case.set] = " to ".join(dict.fromkeys((measured[0], measured[-1])))
    if not others:
        return ""
    sets = ", ".join(f"{name} (torch {versions})" for name, versions in others.items())
    return f" Measured with other versions, whose differences count as errors: {sets}."


def _markdown(
    about: str,
    figures: Sequence[Figures],
    causes: Sequence[CauseFigures],
    runs: Sequence[RunFigures],
    factors: Sequence[Factor],
    draws: Sequence[Draws],
) -> str:
    from foretell.evaluation import tables
    from foretell.evaluation.metrics import OURS

    explaining = [each for each in factors if each.p_value < 0.01]
    memory = [each for each in figures if each.metric == "memory" and not tables.is_decision(each)]
    decisions = [each for each in figures if tables.is_decision(each)]
    decision_table = tables.markdown(tables.DECISION_HEADINGS, [tables.decision_row(each) for each in decisions])
    timed = [each for each in figures if each.metric != "memory"]
    time_table = tables.markdown(tables.TIME_HEADINGS, [tables.time_row(each) for each in timed])
    run_table = tables.markdown(tables.RUN_HEADINGS, [tables.run_row(each) for each in runs])
    if not (memory or decisions):
        return f"{about}\n\n{time_table}"
    parts = [
        about,
        tables.markdown(tables.HEADINGS, [tables.figure_row(each) for each in memory]),
        *([decision_table, tables.DECISION_NOTE.strip()] if decisions else []),
        *([time_table] if timed else []),
        "What the intervals are made of (medians, relative to the measured value, over the runs that have the cause):",
        tables.markdown(tables.CAUSE_HEADINGS, [tables.cause_row(each) for each in causes]),
        *([tables.RUN_NOTE, run_table] if runs else []),
        "Factors that explain the error (ANOVA, type II, p < 0.01):",
        tables.markdown(tables.FACTOR_HEADINGS, [tables.factor_row(each) for each in explaining]),
        "Random configurations (bootstrap; every model equally likely):",
        tables.markdown(tables.DRAWS_HEADINGS, [tables.draws_row(each) for each in draws if each.tool == OURS]),
    ]
    return "\n\n".join(parts)


def _between_markers(path: Path, text: str) -> str:
    """The file with the text; if it has the markers, everything around them is kept."""
    before, begin, rest = path.read_text("utf-8").partition(_BEGIN) if path.is_file() else ("", "", "")
    _, end, after = rest.partition(_END)
    if not (begin and end):
        before, after = "", "\n"
    return f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}"
