"""Output files: their options, whether they can be written, and writing them."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.errors import TraceError, UnsupportedError, UsageError
from foretell.units import format_bytes

if TYPE_CHECKING:
    from foretell.records import Estimate
    from foretell.trace import Trace


def add_files(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of `write_files`."""
    parser.add_argument("--json", metavar="FILE", help="write the estimate as JSON; - for standard output")
    parser.add_argument(
        "--report", metavar="FILE.html", type=Path,
        help="write a self-contained HTML page that shows what holds the memory, and when",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot", metavar="FILE.pickle", type=Path,
        help="write a PyTorch memory snapshot, for https://pytorch.org/memory_viz",
    )  # fmt: skip


def check_targets(targets: dict[str, str | Path | None], *, sources: Sequence[Path] = ()) -> None:
    """Rejects targets that cannot be written, or that would overwrite an input, before any work is done."""
    taken = {source.resolve(): "is an input" for source in sources}
    for option, path in targets.items():
        if path is None or path == "-":
            continue
        target = Path(path).resolve()
        if not target.parent.is_dir():
            raise UsageError(f"{option} {path}: no such folder: {target.parent}.")
        if target.is_dir():
            raise UsageError(f"{option} {path}: is a folder. Give a file name.")
        if target in taken and not target.is_char_device():  # /dev/null may be given twice
            raise UsageError(f"{option} {path}: this file {taken[target]}. Give another file name.")
        taken[target] = f"is already the target of {option}"


def write_files(options: argparse.Namespace, trace: Trace, estimate: Estimate) -> None:
    if options.json:
        write_json(estimate, options.json)
    write_reports(options, trace, estimate)


def write_reports(options: argparse.Namespace, trace: Trace, estimate: Estimate) -> None:
    """Write every format except JSON."""
    if options.report:
        from foretell.report import html

        if estimate.attribution is None:
            reasons = " ".join(estimate.caveats)
            raise UnsupportedError(f"cannot write the HTML report: attribution is unavailable. {reasons}")
        write(options.report, html.render(estimate, estimate.attribution))
    if options.snapshot:
        from foretell.report import snapshot

        write(options.snapshot, snapshot.render(trace, estimate.attribution))
    for path in (options.report, options.snapshot):
        if path:
            print(f"foretell: wrote {path} ({format_bytes(path.stat().st_size)})", file=sys.stderr)


def write_json(estimate: Estimate, target: str) -> None:
    from foretell.cli.terminal import ignore_broken_pipe
    from foretell.report import json

    if target != "-":
        write(Path(target), json.render(estimate) + "\n")
        return
    with ignore_broken_pipe():
        print(json.render(estimate), flush=True)


def write(path: Path, content: str | bytes) -> None:
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise TraceError(f"cannot write {path}: {'no space left on the disk' if full else error.strerror}.") from None
