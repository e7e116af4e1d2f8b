"""`foretell doctor`: checks the installation, up to two training steps on the virtual GPU."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from foretell import __version__, api, gpus
from foretell.analysis.caveats import format_cudnn, why_no_cudnn_is_asked
from foretell.cli.terminal import console, ignore_broken_pipe
from foretell.errors import ForetellError, UnsupportedError
from foretell.inside.watch.operators import loop_us
from foretell.jobs import CaptureOptions, Job
from foretell.records import Isolation
from foretell.runs import TorchInstall, find_torch
from foretell.runs.command import refuse_platform, refuse_torch
from foretell.runs.contained import remedy
from foretell.runs.patches import list_patches
from foretell.time import LOOP_US
from foretell.trace import Trace
from foretell.units import format_bytes
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
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="the interpreter your scripts use")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--patches", action="store_true", help="list every function that foretell replaces in the observed process"
    )


def execute(options: argparse.Namespace) -> int:
    if options.patches:
        return _list_patches(shutil.which(options.python) or options.python, as_json=options.json)
    findings = []
    for finding in examine(shutil.which(options.python) or options.python):
        findings.append(finding)
        if not options.json:
            _print(finding)
    is_well = all(finding.state != "failed" for finding in findings)
    with ignore_broken_pipe():
        if options.json:
            print(json.dumps({"is_well": is_well, "findings": [asdict(finding) for finding in findings]}, indent=2))
        elif is_well:
            print("\nforetell is ready. Try: foretell run --gpu rtx-3060 YOUR_SCRIPT.py")
    return 0 if is_well else 2


def _list_patches(python: str, *, as_json: bool) -> int:
    patches = list_patches(python, gpus.find("rtx-3060"))
    rows = sorted({(each["what"], each["by"]) for each in patches})
    width = max(len(what) for what, _ in rows)
    with ignore_broken_pipe():
        if as_json:
            print(json.dumps(patches, indent=2))
            return 0
        for what, by in rows:
            print(f"{what:<{width}}  {by}")
    return 0


def examine(python: str) -> Iterator[Finding]:
    """Yields each finding as soon as it is known; stops at the first that makes the rest pointless."""
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
    factor = loop_us() / LOOP_US
    detail = f"if the GPU is in this machine: --host-factor {factor:.2g}"
    yield Finding(what="CPU", state="ok", detail=detail)
    try:
        refuse_torch(torch, python, engine="auto")
    except UnsupportedError as error:
        yield Finding(what="torch", state="failed", detail=str(error))
        return
    assert torch is not None
    if is_without_cuda:
        detail = f"{torch.version} without CUDA, in {torch.folder}; using the CPU engine"
        yield Finding(what="torch", state="ok", detail=detail)
        yield from _self_test(python)
        return
    yield Finding(what="torch", state="ok", detail=f"{torch.version} for CUDA {torch.cuda}, in {torch.folder}")
    try:
        paths = library_paths()
    except UnsupportedError as error:
        compiler = shutil.which("cc") or shutil.which("gcc")
        advice = f"Found a C compiler: {compiler}." if compiler else "No C compiler found (cc, gcc)."
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
            what="CUDA functions", state="ok", detail=f"all {len(wanted)} imported by this torch are available"
        )
    shown = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
    return Finding(
        what="CUDA functions",
        state="warning",
        detail=f"{len(missing)} of {len(wanted)} imported by this torch are not available: {shown}.",
        advice="A script that calls one of them fails. If this torch is newer than foretell, update foretell.",
    )


def _self_test(python: str) -> Iterator[Finding]:
    started = time.monotonic()
    gpu = gpus.find("rtx-3060")
    options = CaptureOptions(steps="all", timeout_seconds=_TIMEOUT_SECONDS, stdout="stderr")
    try:
        run = api.run(Job(command=(python, "-c", _SELF_TEST), gpu=gpu, options=options))
        found = run.estimate
    except ForetellError as error:
        advice = "Please open an issue with this list and the output above."
        yield Finding(what="self-test", state="failed", detail=str(error), advice=advice)
        return
    seconds = time.monotonic() - started
    reserved = format_bytes(found.peak.reserved_bytes)
    yield Finding(
        what="self-test",
        state="ok" if len(found.steps) == 2 and found.verdict == "fits" else "failed",
        detail=f"{len(found.steps)} training steps on {gpu.name} ({found.engine} engine): {reserved} reserved, "
        f"{seconds:.1f} s",
    )
    yield _check_cudnn(run.trace)
    if run.trace.isolation is not None:
        yield _check_isolation(run.trace.isolation)


def _check_cudnn(trace: Trace) -> Finding:
    if not trace.has_ruled_workspaces:
        detail = f"{format_cudnn(trace.cudnn_version)}, queried for convolution workspaces"
        return Finding(what="cuDNN", state="ok", detail=detail)
    detail = f"{why_no_cudnn_is_asked(trace)}, so convolution workspaces are estimated."
    return Finding(what="cuDNN", state="warning", detail=detail)


def _check_isolation(isolation: Isolation) -> Finding:
    if isolation.mode != "kernel":
        detail = f"by replaced Python functions only, because the kernel refuses namespaces: {isolation.reason}."
        advice = f"Files written by native code and other programs are not protected. {remedy()}"
        return Finding(what="isolation", state="warning", detail=detail, advice=advice)
    detail = "by the kernel: a script changes none of your files and reaches no network"
    if isolation.read_only:
        detail += f"; it cannot write to {', '.join(isolation.read_only)}"
    if isolation.is_in_memory:
        advice = "Set TMPDIR to a folder on a local disk: where it is now cannot hold a layer, so files take memory."
        return Finding(what="isolation", state="warning", detail=f"{detail}.", advice=advice)
    return Finding(what="isolation", state="ok", detail=detail)


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
    with ignore_broken_pipe():
        console().print(table)
