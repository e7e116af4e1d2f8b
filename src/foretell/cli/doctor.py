"""`foretell doctor`: is everything here that is needed? It runs a training step on the virtual GPU to find out."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from foretell import __version__, api, gpus
from foretell.capture import CaptureOptions, Command, TorchInstall, find_torch
from foretell.capture.command import refuse_platform, refuse_torch
from foretell.cli.terminal import console, readers_may_leave
from foretell.errors import ForetellError, UnsupportedError
from foretell.trace import Trace, load
from foretell.units import format_bytes
from foretell.verdict import format_cudnn, why_no_cudnn_is_asked
from foretell.virtual import library_paths
from foretell.virtual.symbols import cuda_imports, dynamic_symbols

State = Literal["ok", "warning", "failed"]
_TIMEOUT_SECONDS = 120.0

_SELF_TEST = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
torch.nn.functional.conv2d(torch.ones(8, 16, 32, 32, device="cuda"), torch.ones(16, 16, 3, 3, device="cuda"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: str
    state: State
    detail: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="the Python your scripts run with")
    parser.add_argument("--json", action="store_true", help="the findings as JSON")


def execute(options: argparse.Namespace) -> int:
    findings = []
    for finding in examine(shutil.which(options.python) or options.python):
        findings.append(finding)
        if not options.json:
            _print(finding)
    is_well = all(finding.state != "failed" for finding in findings)
    if options.json:
        print(json.dumps({"is_well": is_well, "findings": [asdict(finding) for finding in findings]}, indent=2))
    elif is_well:
        print("\nAll that is needed is here. Try: foretell run --gpu rtx-3060 YOUR_SCRIPT.py")
    return 0 if is_well else 2


def examine(python: str) -> Iterator[Finding]:
    """Each finding as soon as it is known; ends at the first that makes the rest pointless."""
    yield Finding(what="foretell", state="ok", detail=f"{__version__}, Python {platform.python_version()}")
    torch = find_torch(python)
    is_without_cuda = torch is not None and torch.cuda is None and not torch.is_rocm
    try:
        refuse_platform(sys.platform, platform.machine())
    except UnsupportedError as error:
        state: State = "warning" if is_without_cuda else "failed"
        yield Finding(what="system", state=state, detail=str(error))
        if not is_without_cuda:
            return
    else:
        yield Finding(what="system", state="ok", detail=f"{platform.system()} {platform.machine()}")
    try:
        refuse_torch(torch, python, engine="auto")
    except UnsupportedError as error:
        yield Finding(what="torch", state="failed", detail=str(error))
        return
    assert torch is not None
    if is_without_cuda:
        detail = f"{torch.version} without CUDA, in {torch.folder}: the CPU engine is taken"
        yield Finding(what="torch", state="ok", detail=detail)
        yield from _self_test(python)
        return
    yield Finding(what="torch", state="ok", detail=f"{torch.version} for CUDA {torch.cuda}, in {torch.folder}")
    try:
        paths = library_paths()
    except UnsupportedError as error:
        compiler = shutil.which("cc") or shutil.which("gcc")
        advice = f"A compiler is here ({compiler})." if compiler else "There is no C compiler here (cc, gcc)."
        yield Finding(what="virtual GPU", state="failed", detail=str(error), advice=advice)
        return
    yield Finding(what="virtual GPU", state="ok", detail=str(paths.cuda.parent))
    yield _check_symbols(torch)
    yield from _self_test(python)


def _check_symbols(torch: TorchInstall) -> Finding:
    paths = library_paths()
    offered = dynamic_symbols(paths.cuda)[1] | dynamic_symbols(paths.nvml)[1]
    wanted = cuda_imports(sorted((torch.folder / "lib").glob("*.so*")))
    missing = sorted(wanted - offered)
    if not missing:
        return Finding(
            what="CUDA functions", state="ok", detail=f"all {len(wanted)} that this torch imports are answered"
        )
    shown = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
    return Finding(
        what="CUDA functions",
        state="warning",
        detail=f"{len(missing)} of {len(wanted)} that this torch imports are not answered: {shown}",
        advice="A script that calls one of them fails. Is this torch newer than foretell? Update foretell.",
    )


def _self_test(python: str) -> Iterator[Finding]:
    started = time.monotonic()
    gpu = gpus.find("rtx-3060")
    options = CaptureOptions(steps="all", timeout_seconds=_TIMEOUT_SECONDS, stdout="stderr")
    with tempfile.TemporaryDirectory(prefix="foretell-doctor-") as folder:
        path = Path(folder) / "trace"
        command = Command(argv=(python, "-c", _SELF_TEST), python=python)
        try:
            found = api.run(command, gpu=gpu, options=options, trace_path=path)
        except ForetellError as error:
            advice = "The lines above say more. Please report them, with this list."
            yield Finding(what="self-test", state="failed", detail=str(error), advice=advice)
            return
        trace = load(path)
    seconds = time.monotonic() - started
    reserved = format_bytes(found.peak.reserved_bytes)
    yield Finding(
        what="self-test",
        state="ok" if len(found.steps) == 2 and found.verdict == "fits" else "failed",
        detail=f"{len(found.steps)} training steps on a {gpu.name} ({found.engine} engine): {reserved} reserved, "
        f"{seconds:.1f} s",
    )
    yield _check_cudnn(trace)


def _check_cudnn(trace: Trace) -> Finding:
    if "cudnnBackendExecute (by rule)" not in trace.library_functions():
        detail = f"{format_cudnn(trace.cudnn_version)} is asked for the workspaces of convolutions"
        return Finding(what="cuDNN", state="ok", detail=detail)
    detail = f"{why_no_cudnn_is_asked(trace)}: the workspaces of convolutions follow a rule."
    return Finding(what="cuDNN", state="warning", detail=detail)


def _print(finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    mark, colour = {"ok": ("ok", "green"), "warning": ("!!", "yellow"), "failed": ("no", "red")}[finding.state]
    table = Table.grid(padding=(0, 2))
    table.add_column(width=2)
    table.add_column(width=14, style="bold")
    table.add_column(overflow="fold")
    detail = finding.detail + (f" {finding.advice}" if finding.advice else "")
    table.add_row(Text(mark, style=colour), finding.what, Text(detail))
    with readers_may_leave():
        console().print(table)
