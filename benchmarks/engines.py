"""The CPU engine against the virtual GPU, on one torch: every workload of the zoo and the examples on both.

    python -m benchmarks.engines [--markdown docs/engines.md] [NAME ...]
    python -m benchmarks.engines --torchvision --gpu a100-40gb rtx-3060
    python -m benchmarks.engines --models 100      of torchvision, timm and transformers, tiny: jobs of `make coverage`

The virtual GPU runs PyTorch's own allocator and the host side of its CUDA kernels; what it shows is what a card would
be asked for. Compared are the peaks, and the sequence of allocations above 64 KiB. Workspaces of convolutions count
where both engines asked cuDNN for them, which from 9.8 on can be asked, and not where one of them has a rule.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from foretell import api, gpus
from foretell.capture import CaptureOptions, Command, WarmProcess, launch
from foretell.errors import ForetellError
from foretell.records import Engine
from foretell.trace import ACTIONS, Trace, load
from foretell.verdict import estimate_of

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "tests" / "zoo"
HELPERS = {"common", "recorder", "reference"}
EXAMPLES_FOLDER = ROOT / "examples"
EXAMPLES = {
    "train_resnet.py": "--model resnet50 --batch-size 64 --steps-per-epoch 4 --validation-steps 1 --amp",
    "train_gpt2.py": "--size small --batch-size 8 --seq-len 512 --steps 4 --precision bf16",
    "train_trainer.py": "--hidden-size 512 --layers 4 --heads 8 --batch-size 8 --seq-len 256 --steps 4",
}
TORCHVISION = ROOT / "src" / "foretell" / "evaluation" / "workloads" / "torchvision_cnn.py"
CNNS = ("resnet18", "resnet50", "vgg11", "mobilenet_v2", "densenet121", "convnext_tiny", "efficientnet_b0")
BATCH_SIZE = 32
MODULES = ("torchvision", "transformers", "timm")
LARGE = 64 << 10
ALLOCATED_LIMIT, RESERVED_LIMIT = 0.01, 0.02
GPU = "a100-40gb"
_ALLOC = ACTIONS.index("alloc")
_BY_RULE = "cudnnBackendExecute (by rule)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    allocated: float
    """(CPU engine - virtual GPU) / virtual GPU."""
    reserved: float
    num_large: int
    """Allocations above 64 KiB on the virtual GPU."""
    num_equal: int
    """Of those, the ones the CPU engine has in the same order."""
    num_more: int
    """That only the CPU engine has."""
    has_rule: bool
    """For workspaces of convolutions, which are left out then."""

    @property
    def is_within(self) -> bool:
        return abs(self.allocated) <= ALLOCATED_LIMIT and abs(self.reserved) <= RESERVED_LIMIT

    @property
    def is_same_sequence(self) -> bool:
        return self.num_equal == self.num_large and not self.num_more


def compare(virtual: Trace, cpu: Trace) -> Comparison:
    has_rule = any(_BY_RULE in each.library_functions() for each in (virtual, cpu))
    workspaces = _workspaces(virtual) | _workspaces(cpu) if has_rule else set()
    ours, theirs = ([size for size in _large(each) if size not in workspaces] for each in (cpu, virtual))
    matched = sum(block.size for block in SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks())
    peak, cpu_peak = estimate_of(virtual).peak, estimate_of(cpu).peak
    return Comparison(
        allocated=cpu_peak.allocated_bytes / peak.allocated_bytes - 1,
        reserved=cpu_peak.reserved_bytes / peak.reserved_bytes - 1,
        num_large=len(theirs),
        num_equal=matched,
        num_more=len(ours) - matched,
        has_rule=has_rule,
    )


def _large(trace: Trace) -> Iterator[int]:
    events = trace.memory
    for action, size, device in zip(events.action, events.size, events.device, strict=True):
        if action == _ALLOC and size > LARGE and device == 0:
            yield size


def _workspaces(trace: Trace) -> set[int]:
    numbers = {number for number, name in enumerate(trace.names) if name.startswith("cudnnBackendExecute")}
    calls = trace.library
    rows = zip(calls.name, calls.workspace_bytes, strict=True)
    return {size for name, size in rows if name in numbers}


class Engines:
    """Both engines, each with a warm process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._warm = {engine: WarmProcess(self._made(engine), modules=MODULES) for engine in ("virtual", "cpu")}
        self._num_runs = 0

    def run(self, engine: Engine, script: Path, *arguments: str, gpu: str = GPU) -> Trace:
        self._num_runs += 1
        directory = self._made(f"run-{self._num_runs}")
        path = directory / "trace"
        api.run(
            Command(argv=(sys.executable, str(script), *arguments), python=sys.executable),
            gpu=gpus.find(gpu),
            options=CaptureOptions(steps="all", engine=engine, timeout_seconds=300, stdout="stderr"),
            trace_path=path,
            directory=directory,
            # What the examples save is written past Python, which is watched only if imported after the hooks.
            launcher=launch if script.parent == EXAMPLES_FOLDER else self._warm[engine].launch,
        )
        return load(path)

    def close(self) -> None:
        for process in self._warm.values():
            process.close()

    def _made(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder


def torchvision_jobs(names: list[str]) -> list[tuple[str, Path, list[str]]]:
    words = f"--optimizer SGD --batch-size {BATCH_SIZE} --model"
    return [(name, TORCHVISION, [*words.split(), name]) for name in CNNS if not names or name in names]


def model_jobs(count: int) -> list[tuple[str, Path, list[str]]]:
    from benchmarks.coverage import libraries
    from benchmarks.coverage.sampling import sample

    chosen = sample(libraries.jobs(ROOT / "build" / "coverage"), count)
    return [(job.key, ROOT / "benchmarks" / "coverage" / "on_cuda.py", [job.key]) for job in chosen]


def jobs(names: list[str]) -> list[tuple[str, Path, list[str]]]:
    zoo = [(path.stem, path, []) for path in sorted(ZOO.glob("*.py")) if path.stem not in HELPERS]
    examples = [(name, EXAMPLES_FOLDER / name, words.split()) for name, words in EXAMPLES.items()]
    return [job for job in [*examples, *zoo] if not names or job[0] in names]  # type: ignore[list-item]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads of the zoo, or examples (default: all)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--gpu", nargs="+", default=[GPU], help=f"default: {GPU}")
    words = f"{len(CNNS)} models of torchvision at batch size {BATCH_SIZE} instead, {', '.join(CNNS)}"
    parser.add_argument("--torchvision", action="store_true", help=words)
    parser.add_argument("--models", type=int, metavar="N", help="N jobs of `make coverage` instead, spread evenly")
    options = parser.parse_args()
    console = Console()
    rows: list[tuple[str, Comparison | str]] = []
    torch = ""
    with tempfile.TemporaryDirectory(prefix="foretell-engines-", ignore_cleanup_errors=True) as scratch:
        engines = Engines(Path(scratch))
        if options.models:
            chosen = model_jobs(options.models)
        else:
            chosen = (torchvision_jobs if options.torchvision else jobs)(options.names)
        for gpu, (name, script, words) in product(options.gpu, chosen):
            console.print(f"{name} ...", style="dim")
            if len(options.gpu) > 1:
                name = f"{name}, {gpu}"
            try:
                virtual, cpu = (engines.run(each, script, *words, gpu=gpu) for each in ("virtual", "cpu"))
                torch = virtual.torch_version or torch
                rows.append((name, compare(virtual, cpu)))
            except ForetellError as error:
                rows.append((name, str(error).splitlines()[0].replace(f"{ROOT}/", "")))
        engines.close()
    table = Table("job", "allocated", "reserved", "large allocations", "equal, in order", "more", box=None)
    for row in rows:
        table.add_row(*_cells(*row))
    console.print(table)
    summary = _summary(rows, torch, ", ".join(options.gpu))
    console.print(summary)
    if options.markdown:
        options.markdown.write_text(_markdown(rows, summary))
    return 0


def _cells(name: str, found: Comparison | str) -> list[str]:
    if isinstance(found, str):
        return [name, "", "", "", "", found]
    more = f"{found.num_more}" + (" (workspaces by rule)" if found.has_rule else "")
    return [
        name, f"{found.allocated:+.2%}", f"{found.reserved:+.2%}", str(found.num_large), str(found.num_equal), more,
    ]  # fmt: skip


def _summary(rows: list[tuple[str, Comparison | str]], torch: str, gpu: str) -> str:
    found = [each for _, each in rows if isinstance(each, Comparison)]
    within = sum(each.is_within for each in found)
    same = sum(each.is_same_sequence for each in found)
    return (
        f"torch {torch}, {gpu}: {len(rows)} jobs, {len(found)} ran on both engines; {within} within 1 % (allocated) "
        f"and 2 % (reserved); {same} with the same sequence of allocations above 64 KiB."
    )


def _markdown(rows: list[tuple[str, Comparison | str]], summary: str) -> str:
    lines = [
        "# The CPU engine against the virtual GPU",
        "",
        "Written by `make engines`. Both engines on one torch; what the CPU engine is off by. Large: above 64 KiB.",
        "",
        summary,
        "",
        "| job | allocated | reserved | large allocations | equal, in order | only on the CPU engine |",
        "|---|---:|---:|---:|---:|---|",
        *("| " + " | ".join(_cells(*row)) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
