"""`foretell check`: the gate for CI. Runs a script and compares what it needs with a limit, a GPU and a baseline."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.cli.files import add_reports, check_targets, targets_of, write, write_reports
from foretell.cli.jobs import add_job, job_of, prepare, progress
from foretell.cli.terminal import ignore_broken_pipe, say
from foretell.errors import ForetellError, TraceError, UsageError

if TYPE_CHECKING:
    from foretell.jobs import Job
    from foretell.plan.check import Check

__all__ = ["add_arguments", "execute", "prepare"]

_EPILOG = """A baseline is an earlier run: a trace, which says in full what grew, or JSON (`foretell run --json`).

examples:
  foretell check --gpu a10g train.py --batch-size 64
  foretell check --limit 22GiB --of request train.py
  foretell check --gpu a10g --write-baseline main.trace train.py
  foretell check --baseline main.trace --max-growth 2% --markdown summary.md train.py

exit codes: 0 within all limits; 3 over a limit, or out of memory; 1 the script itself failed;
            2 wrong usage, an unsupported environment, an incomplete run, or a baseline that cannot be compared
"""
_EXIT_CODES = {"within": 0, "over": 3, "oom": 3, "incomplete": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "foretell check [options] [--] SCRIPT.py|-m MODULE|COMMAND [ARGS...]"
    parser.epilog = _EPILOG
    rules = parser.add_argument_group("rules (--gpu is one, too)")
    rules.add_argument("--limit", metavar="SIZE", help="the most memory the job may need, e.g. 22GiB")
    rules.add_argument(
        "--of", choices=["device", "request", "reserved", "allocated"], default="device",
        help="what --limit and --max-growth are about; with `request`, it must also fit on the GPU (default: device)",
    )  # fmt: skip
    rules.add_argument("--baseline", metavar="FILE", type=Path, help="compare with this run")
    rules.add_argument(
        "--max-growth", metavar="SIZE|PERCENT", help="the most it may need over the baseline, e.g. 200MiB or 2%%"
    )
    rules.add_argument(
        "--write-baseline", metavar="FILE", type=Path,
        help="keep this run for later checks, whatever the growth: a trace, or JSON if FILE ends with .json",
    )  # fmt: skip
    add_job(parser)
    result = parser.add_argument_group("output")
    result.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")
    result.add_argument("--markdown", metavar="FILE", help="write a summary for a pull request; - for standard output")
    result.add_argument("--github", action="store_true", help="append that summary to the page of a GitHub Actions job")
    add_reports(result)
    result.add_argument("--quiet", action="store_true", help="do not show progress")


def execute(options: argparse.Namespace) -> int:
    from foretell import api
    from foretell.plan.check import Gate, baseline_of, gpu_for, judge, require_a_rule, save_baseline

    _check_files(options)
    gate = Gate(
        of=options.of, limit=options.limit, max_growth=options.max_growth, baseline=baseline_of(options.baseline)
    )
    is_gpu_given = options.gpu is not None or options.profile is not None
    require_a_rule(gate, is_gpu_given=is_gpu_given, writes=options.write_baseline is not None)
    job = job_of(options, gpu=None if is_gpu_given else gpu_for(gate, None))
    gate.refuse_baseline(job.gpu)
    if not (is_gpu_given or options.quiet):
        say(f"no --gpu given; {'using that of the baseline' if gate.baseline else 'assuming'}: {job.gpu.name}")
    if "-" in (options.json, options.markdown):
        job = replace(job, options=replace(job.options, stdout="stderr"))
    show = None if options.quiet else progress()
    try:
        run = api.run(job, on_progress=show)
        run = api.follow_up(run, say=_quietly if options.quiet else say, on_progress=show)
        result = judge(run.estimate, gate)
    except ForetellError as error:
        _write_failure(options, error, job)
        raise
    _show(result, options)
    _write(result, options)
    write_reports(options, run.trace, run.estimate)
    if options.write_baseline:
        if save_baseline(result, run.trace, options.write_baseline):
            say(f"wrote {options.write_baseline}")
        else:
            why = "ran out of memory" if result.verdict == "oom" else "is incomplete"
            say(f"{options.write_baseline} was not written: a run that {why} is no baseline")
    return _EXIT_CODES[result.verdict]


def _quietly(text: str) -> None:
    """Say nothing (`--quiet`)."""


def _check_files(options: argparse.Namespace) -> None:
    if options.json == options.markdown == "-":
        raise UsageError("--json - and --markdown -: only one of them can go to standard output.")
    if options.github and not os.environ.get("GITHUB_STEP_SUMMARY"):
        raise UsageError(
            "--github works in a job of GitHub Actions, where GITHUB_STEP_SUMMARY is set. Elsewhere, use --markdown."
        )
    targets = {**targets_of(options), "--markdown": options.markdown, "--write-baseline": options.write_baseline}
    check_targets(targets, sources=[options.baseline] if options.baseline else [])


def _show(check: Check, options: argparse.Namespace) -> None:
    """The rules come last: the end of a log is what people see first."""
    from foretell.cli.show import show_text
    from foretell.cli.terminal import console
    from foretell.diff import text as diff_text
    from foretell.plan import check_text

    is_stdout_taken = "-" in (options.json, options.markdown)
    terminal = console(stderr=is_stdout_taken)
    if check.difference is None:
        show_text(check.estimate, is_json=is_stdout_taken)
    with ignore_broken_pipe():
        if check.difference is not None:
            diff_text.render(check.difference, terminal)
        check_text.render(check, terminal)


def _write(check: Check, options: argparse.Namespace) -> None:
    if options.json == "-":
        with ignore_broken_pipe():
            print(check.to_json(), flush=True)
    elif options.json:
        write(Path(options.json), check.to_json() + "\n")
    if options.markdown or options.github:
        _write_markdown(check.to_markdown(), options)


def _write_failure(options: argparse.Namespace, error: ForetellError, job: Job) -> None:
    from foretell.masking import mask_command
    from foretell.plan import check_markdown

    if options.markdown or options.github:
        _write_markdown(check_markdown.render_failure(error, mask_command(job.command)), options)


def _write_markdown(text: str, options: argparse.Namespace) -> None:
    if options.markdown == "-":
        with ignore_broken_pipe():
            sys.stdout.write(text)
    elif options.markdown:
        write(Path(options.markdown), text, is_private=False)
    if options.github:
        path = Path(os.environ["GITHUB_STEP_SUMMARY"])
        try:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text + "\n")
        except OSError as error:
            raise TraceError(f"--github: cannot write {path}: {error.strerror or error}.") from None
