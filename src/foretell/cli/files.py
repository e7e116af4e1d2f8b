"""Output files: their options, whether they can be written, and writing them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from foretell import disk
from foretell.cli.terminal import ignore_broken_pipe, is_stdout_closed, say
from foretell.errors import UnsupportedError, UsageError
from foretell.units import format_bytes

if TYPE_CHECKING:
    from foretell.records import Estimate
    from foretell.trace import Trace


class ReportFile(NamedTuple):
    """An output file other than the JSON: an option, and what is written."""

    option: str
    metavar: str
    help: str
    render: Callable[[Trace, Estimate], str | bytes]


def _page(trace: Trace, estimate: Estimate) -> str:
    from foretell.analysis.verdict import estimates_of_others
    from foretell.report import html

    if estimate.attribution is None:
        reasons = " ".join(estimate.caveats)
        raise UnsupportedError(f"cannot write the HTML report: attribution is unavailable. {reasons}")
    return html.render(estimate, estimate.attribution, other_ranks=estimates_of_others(trace, estimate))


def _snapshot(trace: Trace, estimate: Estimate) -> bytes:
    from foretell.report import snapshot

    return snapshot.render(trace, estimate.attribution)


def _timeline(trace: Trace, estimate: Estimate) -> str:
    from foretell.time import chrome_trace, why_unknown

    why = why_unknown(trace) if trace.is_time_asked else "the run was recorded without --time"
    if estimate.performance is None:
        raise UnsupportedError(f"cannot write the timeline: {why or 'the job does not fit'}.")
    return chrome_trace(trace, estimate.gpu, host_factor=trace.host_factor)


REPORTS = (
    ReportFile(
        "--report", "FILE.html", "write a self-contained HTML page that shows what holds the memory, and when", _page
    ),
    ReportFile(
        "--snapshot", "FILE.pickle", "write a PyTorch memory snapshot, for https://pytorch.org/memory_viz", _snapshot
    ),
    ReportFile(
        "--timeline", "FILE.json",
        "write the kernels of one step as a Chrome trace, for Perfetto; implies `run --time`", _timeline,
    ),
)
"""The reports of `foretell run`, `report` and `what-if`: a new one is a row here."""


def add_files(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--json` and the options of REPORTS."""
    parser.add_argument("--json", metavar="FILE", help="write the estimate as JSON; - for standard output")
    add_reports(parser)


def add_reports(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    for each in REPORTS:
        parser.add_argument(each.option, metavar=each.metavar, type=Path, help=each.help)


def is_stdout_taken(options: argparse.Namespace) -> bool:
    """Whether a result goes to standard output, so that all else goes to standard error."""
    return options.json == "-" or getattr(options, "emit", None) is not None


def folder(text: str) -> Path:
    """For `type=` of an option: `Path("")` would be the working folder."""
    if not text:
        raise UsageError("the name of the folder is empty.")
    return Path(text)


def targets_of(options: argparse.Namespace) -> dict[str, str | Path | None]:
    """The files that the options of `add_files` name, for `check_targets`."""
    return {"--json": options.json} | {each.option: _path(options, each) for each in REPORTS}


def _path(options: argparse.Namespace, report: ReportFile) -> Path | None:
    path: Path | None = getattr(options, report.option.removeprefix("--").replace("-", "_"))
    return path


def check_targets(targets: dict[str, str | Path | None], *, sources: Sequence[Path] = ()) -> None:
    """Rejects targets that cannot be written, or that would overwrite an input, before any work is done."""
    taken = {disk.real(source): "is an input" for source in sources}
    for option, path in targets.items():
        if path == "-" and is_stdout_closed():
            raise UsageError(f"{option} -: standard output is closed. Give a file name.")
        if path is None or path == "-":
            continue
        if not str(path):
            raise UsageError(f"{option}: the file name is empty.")
        problem = disk.why_not_writable(Path(path))
        if problem is not None:
            raise UsageError(f"{option} {path}: {problem}.")
        target = disk.real(Path(path))
        if target in taken and not target.is_char_device():  # /dev/null may be given twice
            raise UsageError(f"{option} {path}: this file {taken[target]}. Give another file name.")
        taken[target] = f"is already the target of {option}"


def write_files(options: argparse.Namespace, trace: Trace, estimate: Estimate) -> None:
    if options.json:
        write_json(estimate, options.json)
    write_reports(options, trace, estimate)


def write_reports(options: argparse.Namespace, trace: Trace, estimate: Estimate) -> None:
    """Write every format except JSON. One that an incomplete run has too little for is left out, and said so."""
    for each in REPORTS:
        path = _path(options, each)
        if path is None:
            continue
        try:
            write(path, each.render(trace, estimate))
        except UnsupportedError as error:
            if estimate.complete:
                raise
            say(str(error))


def write_json(estimate: Estimate, target: str) -> None:
    from foretell.report import json

    if target != "-":
        write(Path(target), json.render(estimate) + "\n")
        return
    with ignore_broken_pipe():
        print(json.render(estimate), flush=True)


def write_trace(trace: Trace, path: Path) -> None:
    from foretell import trace as traces

    traces.save(trace, path)
    _say_written(path)


def write(path: Path, content: str | bytes, *, is_private: bool = True) -> None:
    disk.write(path, content, is_private=is_private)
    _say_written(path)


def _say_written(path: Path) -> None:
    say(f"wrote {path} ({format_bytes(path.stat().st_size)})" if path.is_file() else f"wrote {path}")
