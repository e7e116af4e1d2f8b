"""The CPU engine against the virtual GPU, on one torch: every workload of the zoo and the examples on both.

    python -m benchmarks.engines [--markdown docs/engines.md] [NAME ...]
    python -m benchmarks.engines --torchvision --gpu a100-40gb rtx-3060
    python -m benchmarks.engines --models 100      of torchvision, timm and transformers, tiny: jobs of `make coverage`
    python -m benchmarks.engines --workers 4       or ray, or ray://HOST:PORT

The virtual GPU runs PyTorch's own allocator and the host side of its CUDA kernels; what it shows is what a card would
be asked for. Compared are the peaks, and the sequence of allocations above 64 KiB. Workspaces of convolutions count
where both engines asked cuDNN for them, which from 9.8 on can be asked, and not where one of them has a rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from foretell import api, gpus
from foretell.analysis.verdict import counters_of
from foretell.errors import ForetellError
from foretell.jobs import CaptureOptions, Job
from foretell.records import Engine
from foretell.runs import Pool, Warm, parse_workers
from foretell.trace import ACTIONS, Trace

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "tests" / "zoo"
HELPERS = {"common", "recorder"}
EXAMPLES_FOLDER = ROOT / "examples"
EXAMPLES = {
    "train_resnet.py": "--model resnet50 --batch-size 64 --steps-per-epoch 4 --validation-steps 1 --amp",
    "train_gpt2.py": "--size small --batch-size 8 --seq-len 512 --steps 4 --precision bf16",
    "train_trainer.py": "--hidden-size 512 --layers 4 --heads 8 --batch-size 8 --seq-len 256 --steps 4",
}
TORCHVISION = ROOT / "src" / "foretell" / "evaluation" / "workloads" / "torchvision_cnn.py"
CNNS = ("resnet18", "resnet50", "vgg11", "mobilenet_v2", "densenet121", "convnext_tiny", "efficientnet_b0")
BATCH_SIZE = 32
LARGE = 64 << 10
ALLOCATED_LIMIT, RESERVED_LIMIT = 0.01, 0.02
GPU = "a100-40gb"
_ALLOC = ACTIONS.index("alloc")


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
    has_rule = any(each.has_ruled_workspaces for each in (virtual, cpu))
    tables = (virtual.convolutions, cpu.convolutions) if has_rule else ()
    workspaces = {size for table in tables for size in table.workspace_bytes}
    ours, theirs = ([size for size in _large(each) if size not in workspaces] for each in (cpu, virtual))
    matched = sum(block.size for block in SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks())
    counted, by_cpu = counters_of(virtual), counters_of(cpu)
    return Comparison(
        allocated=by_cpu.peak_allocated_bytes / counted.peak_allocated_bytes - 1,
        reserved=by_cpu.peak_reserved_bytes / counted.peak_reserved_bytes - 1,
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


class Workload(NamedTuple):
    name: str
    script: Path
    arguments: tuple[str, ...]
    gpu: str = GPU


class Found(NamedTuple):
    comparison: Comparison | str
    """Or why there is none."""
    torch: str


def work(workload: Workload, warm: Warm) -> Found:
    """Both engines, in forks of one process."""
    try:
        virtual, cpu = (run(engine, workload, warm) for engine in ("virtual", "cpu"))
        return Found(compare(virtual, cpu), virtual.torch_version or "")
    except ForetellError as error:
        return Found(str(error).splitlines()[0].replace(f"{ROOT}/", ""), "")


def run(engine: Engine, workload: Workload, warm: Warm) -> Trace:
    options = CaptureOptions(steps="all", engine=engine, timeout_seconds=300, stdout="file")
    done = api.run(
        Job(command=(str(workload.script), *workload.arguments), gpu=gpus.find(workload.gpu), options=options),
        # What the examples save is written past Python, which is watched only if imported after the hooks.
        warm=None if workload.script.parent == EXAMPLES_FOLDER else warm,
    )
    assert done.estimate
    return done.trace


def torchvision_workloads(names: list[str]) -> list[Workload]:
    words = f"--optimizer SGD --batch-size {BATCH_SIZE} --model"
    return [Workload(name, TORCHVISION, (*words.split(), name)) for name in CNNS if not names or name in names]


def model_workloads(count: int) -> list[Workload]:
    from benchmarks.coverage import libraries
    from benchmarks.coverage.sampling import sample

    chosen = sample(libraries.jobs(ROOT / "build" / "coverage"), count)
    return [Workload(job.key, ROOT / "benchmarks" / "coverage" / "on_cuda.py", (job.key,)) for job in chosen]


def workloads(names: list[str]) -> list[Workload]:
    zoo = [Workload(path.stem, path, ()) for path in sorted(ZOO.glob("*.py")) if path.stem not in HELPERS]
    examples = [Workload(name, EXAMPLES_FOLDER / name, tuple(words.split())) for name, words in EXAMPLES.items()]
    return [each for each in [*examples, *zoo] if not names or each.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads of the zoo, or examples (default: all)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--gpu", nargs="+", default=[GPU], help=f"default: {GPU}")
    words = f"{len(CNNS)} models of torchvision at batch size {BATCH_SIZE} instead, {', '.join(CNNS)}"
    parser.add_argument("--torchvision", action="store_true", help=words)
    parser.add_argument("--models", type=int, metavar="N", help="N jobs of `make coverage` instead, spread evenly")
    parser.add_argument(
        "--workers", type=parse_workers, default=1, metavar="N|ray|ray://HOST:PORT",
        help="at once on this machine, or a Ray cluster (default: 1)",
    )  # fmt: skip
    options = parser.parse_args()
    console = Console()
    if options.models:
        chosen = model_workloads(options.models)
    else:
        chosen = (torchvision_workloads if options.torchvision else workloads)(options.names)
    several = len(options.gpu) > 1
    wanted = [
        each._replace(name=f"{each.name}, {gpu}" if several else each.name, gpu=gpu)
        for gpu, each in product(options.gpu, chosen)
    ]
    found: dict[Workload, Found] = {}
    with Pool(options.workers) as pool:
        for each, result in pool.map(work, wanted):
            found[each] = result
            console.print(f"{each.name} ({len(found)} of {len(wanted)})", style="dim")
    rows = [(each.name, found[each].comparison) for each in wanted]
    torch = next((result.torch for result in found.values() if result.torch), "")
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
        "# The CPU engine compared with the virtual GPU",
        "",
        "Generated by `make engines`: the error of the CPU engine on the same torch. Large means above 64 KiB.",
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
