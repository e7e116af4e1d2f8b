"""The files a result is written to: which options there are, whether they can be written, and writing them."""

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
    """The options of `write_files`."""
    parser.add_argument("--json", metavar="FILE", help="write the estimate as JSON; - is the standard output")
    parser.add_argument(
        "--report", metavar="FILE.html", type=Path,
        help="write a page to look at and to send: who holds the memory, when; it needs no network",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot", metavar="FILE.pickle", type=Path,
        help="write a memory snapshot as PyTorch's own, for https://pytorch.org/memory_viz",
    )  # fmt: skip


def check_targets(targets: dict[str, str | Path | None], *, sources: Sequence[Path] = ()) -> None:
    """A result that could not be written, or would be written over another file, is said before the work."""
    taken = {source.resolve(): "is the one to read" for source in sources}
    for option, path in targets.items():
        if path is None or path == "-":
            continue
        target = Path(path).resolve()
        if not target.parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {target.parent}.")
        if target.is_dir():
            raise UsageError(f"{option} {path} is a folder; give the name of a file.")
        if target in taken and not target.is_char_device():  # /dev/null takes everything
            raise UsageError(f"{option} {path}: that file {taken[target]}; give another name.")
        taken[target] = f"is what {option} writes"


def write_files(options: argparse.Namespace, trace: Trace, estimate: Estimate) -> None:
    if options.json:
        write_json(estimate, options.json)
    if options.report:
        from foretell.report import html

        if estimate.attribution is None:
            raise UnsupportedError(f"there is no page without who holds the memory. {' '.join(estimate.caveats)}")
        write(options.report, html.render(estimate, estimate.attribution))
    if options.snapshot:
        from foretell.report import snapshot

        write(options.snapshot, snapshot.render(trace, estimate.attribution))
    for path in (options.report, options.snapshot):
        if path:
            print(f"foretell: wrote {path} ({format_bytes(path.stat().st_size)})", file=sys.stderr)


def write_json(estimate: Estimate, target: str) -> None:
    from foretell.cli.terminal import readers_may_leave
    from foretell.report import json

    if target != "-":
        write(Path(target), json.render(estimate) + "\n")
        return
    with readers_may_leave():
        print(json.render(estimate), flush=True)


def write(path: Path, content: str | bytes) -> None:
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise TraceError(f"cannot write {path}: {'no room on the disk' if full else error.strerror}.") from None
