"""What foretell costs, as ratios of one run on one machine (`make bench`).

Absolute times depend on the machine, so each number stands beside one measured in the same minutes on the same machine:
the command beside importing what its script imports, training on the virtual GPU beside the same steps really computed
on the CPU, host memory beside that of the import. Times are the smallest of several runs taken in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from foretell import gpus
from foretell.records import LibraryBytes
from foretell.runs import host_memory
from foretell.runs.command import find_torch
from foretell.units import GIB, MIB, format_bytes
from foretell.virtual import environment

HERE = Path(__file__).resolve().parent
WORKLOADS = HERE / "workloads.py"
RANKS = HERE / "ranks.py"
# What a job imports, and nothing else; then what torch imports by itself with the first optimizer of a process.
IMPORTS = {
    "resnet50": "import torch, torchvision",
    "gpt2": "import torch; from transformers import GPT2Config, GPT2LMHeadModel",
}
# `foretell run`, with one part of it (values of small tensors, attribution) or without.
WITH_OR_WITHOUT = """
import sys
from foretell import api, gpus
from foretell.jobs import CaptureOptions, Job
options = CaptureOptions(steps="all", **{sys.argv[1]: sys.argv[2] == "with"})
assert api.run(Job(command=tuple(sys.argv[3:]), gpu=gpus.find("a100-40gb"), options=options)).estimate
"""
# A program in a capture folder of its own.
IN_ISOLATION = """
import sys
from foretell import api, gpus
from foretell.jobs import CaptureOptions, Job
from foretell.runs import launch
with api.scratch() as folder:
    options = CaptureOptions(isolation=sys.argv[1])
    launch(Job(command=tuple(sys.argv[2:]), gpu=gpus.find("a100-40gb"), options=options), folder)
"""
# The stack without CUDA has a torchvision made for it, which then does not import.
COMPLETES_TORCHVISION = """
import torch
from foretell.engines.python_cuda.packages import complete_torchvision
complete_torchvision(torch)
"""
FIRST_OPTIMIZER = "; torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])"


@dataclass(frozen=True)
class Finished:
    seconds: float
    cpu_seconds: float
    """Of the command and all that it started: another job on the machine changes it less than the time of day."""
    peak_rss: int
    """Of the largest process of the command."""
    output: str
    peak_of_all: int = 0
    """Of all processes of the command together, if it was asked for; what they share counts once."""

    def bench(self) -> dict[str, float]:
        for line in self.output.splitlines():
            if line.startswith("BENCH "):
                return json.loads(line.removeprefix("BENCH "))
        raise SystemExit(f"the job did not finish:\n{self.output[-3000:]}")


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    aim: str
    is_met: bool | None
    """None: shown to explain, without an aim of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="number of runs; the fastest counts (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    console = Console()
    rows: list[Row] = []
    installed = find_torch(sys.executable)
    has_cuda = installed is not None and installed.cuda is not None
    for job in IMPORTS if has_cuda else ():
        console.print(f"{job}: the whole command compared with the import ...", style="dim")
        rows += command_against_import(job, options.repeat)
        console.print(f"{job}: four steps on the virtual GPU compared with one computed on the CPU ...", style="dim")
        rows.append(training_against_cpu(job))
        rows.append(hooks_change_nothing(job))
        for part in ("values", "attribution"):
            console.print(f"{job}: with {part} compared with without ...", style="dim")
            rows.append(cost_of(part, job, options.repeat))
        console.print(f"{job}: with the time of a step compared with without ...", style="dim")
        rows.append(cost_of("time", job, options.repeat, most=0.2))
    if has_cuda:
        console.print("resnet50: with cudnn.benchmark compared with without ...", style="dim")
        rows.append(cost_of_cudnn_benchmark(options.repeat))
    if has_cuda:
        console.print("gpt2: `foretell fit` on all cards compared with one command ...", style="dim")
        rows.append(fit_on_all_cards(options.repeat))
        console.print("gpt2: 20 batch sizes compared with one command ...", style="dim")
        rows.append(twenty_evaluations(options.repeat))
    console.print("a program in namespaces of its own compared with one without ...", style="dim")
    rows.append(cost_of_isolation(options.repeat))
    console.print("what holds up purpose-made scripts ...", style="dim")
    rows += [held_up()] if has_cuda else []
    console.print("llama-7b ...", style="dim")
    rows += seven_billion() if has_cuda else []
    console.print("8 billion parameters on 8 and on 1,024 GPUs ...", style="dim")
    rows += many_gpus(options.repeat) if has_cuda else []
    console.print("the CPU engine ...", style="dim")
    rows += cpu_engine(options.repeat)
    console.print("20,000 steps ...", style="dim")
    rows.append(after_a_long_run())
    table = Table("what", "measured", "aim", "", title="foretell, as ratios of this run")
    for row in rows:
        table.add_row(
            row.what, row.measured, row.aim, {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.is_met]
        )
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps([row.__dict__ for row in rows], indent=1))
    return 0


def command_against_import(job: str, repeat: int) -> list[Row]:
    command, bare, with_optimizer = [], [], []
    for _ in range(repeat):  # in turns, so that a busy moment hits all alike
        command.append(finish(foretell_command(job, "a100-40gb")))
        bare.append(finish([sys.executable, "-c", IMPORTS[job]]))
        with_optimizer.append(finish([sys.executable, "-c", IMPORTS[job] + FIRST_OPTIMIZER]))
    seconds = min(run.seconds for run in command)
    of_import, of_optimizer = (min(run.seconds for run in runs) for runs in (bare, with_optimizer))
    memory = max(run.peak_rss for run in command) - max(run.peak_rss for run in bare)

    def ratio(of: float) -> str:
        return f"{seconds / of:.2f}x ({seconds:.1f} s / {of:.1f} s)"

    return [
        Row(f"{job}: `foretell run`, 4 steps / import", ratio(of_import), "<= 1.5x", seconds <= 1.5 * of_import),
        Row(f"{job}: the same / import and first optimizer", ratio(of_optimizer), "", None),
        Row(f"{job}: host memory over the import", format_bytes(memory), "< 300 MiB", memory < 300 * MIB),
    ]


def training_against_cpu(job: str) -> Row:
    virtual = finish(foretell_command(job, "a100-40gb")).bench()
    real = finish([sys.executable, str(WORKLOADS), job, "--steps", "1", "--device", "cpu"]).bench()
    on_gpu, on_cpu = virtual["seconds"] / virtual["steps"], real["seconds"] / real["steps"]
    measured = f"{on_cpu / on_gpu:.0f}x faster ({1000 * on_gpu:.0f} ms / {on_cpu:.1f} s a step)"
    return Row(f"{job}: a step on the virtual GPU / on the CPU", measured, ">= 100x", on_cpu >= 100 * on_gpu)


def hooks_change_nothing(job: str) -> Row:
    """The same card without anything of foretell in the process: only the preloaded library."""
    gpu = gpus.find("a100-40gb")
    bare = environment(
        gpu, context_bytes=gpu.context_bytes, libraries=LibraryBytes(cublas=0, cudnn=0, nccl=0), log_prefix=""
    )
    without = finish([sys.executable, str(WORKLOADS), job], bare).bench()["max_reserved"]
    hooked = finish(foretell_command(job, "a100-40gb")).bench()["max_reserved"]
    difference = int(hooked - without)
    return Row(
        f"{job}: reserved with hooks - without",
        f"{difference} B of {format_bytes(int(without))}",
        "0 B",
        difference == 0,
    )


def cost_of(part: str, job: str, repeat: int, most: float = 0.05) -> Row:
    costs: dict[str, list[float]] = {"with": [], "without": []}
    for turn in range(2 * repeat):
        for how in sorted(costs, reverse=turn % 2 == 0):  # neither always goes first
            command = [sys.executable, "-c", WITH_OR_WITHOUT, part, how, str(WORKLOADS), job]
            costs[how].append(finish(command).cpu_seconds)
    slower = min(costs["with"]) / min(costs["without"]) - 1
    measured = f"{slower:+.1%} ({min(costs['with']):.1f} s / {min(costs['without']):.1f} s of CPU)"
    return Row(f"{job}: the whole command with {part} / without", measured, f"<= {most:+.0%}", slower <= most)


def cost_of_cudnn_benchmark(repeat: int) -> Row:
    """With it, torch makes a plan of every engine of cuDNN for every convolution."""
    with_it, without = [], []
    for _ in range(repeat):
        with_it.append(finish([*foretell_command("resnet50", "rtx-4090"), "--cudnn-benchmark"]).cpu_seconds)
        without.append(finish(foretell_command("resnet50", "rtx-4090")).cpu_seconds)
    ratio = min(with_it) / min(without)
    measured = f"{ratio:.2f}x ({min(with_it):.1f} s / {min(without):.1f} s of CPU)"
    return Row("resnet50: the whole command with cudnn.benchmark / without", measured, "<= 1.2x", ratio <= 1.2)


def twenty_evaluations(repeat: int) -> Row:
    """What a search for the largest batch takes at most, as a sweep, whose number of runs is fixed."""
    sizes = ",".join(str(size) for size in range(1, 21))
    words = ["sweep", "--quiet", "--no-need", "--gpu", "a100-40gb", "--steps", "all", f"--arg=--batch={sizes}"]
    command = [sys.executable, "-m", "foretell", *words, "--", str(WORKLOADS), "gpt2"]
    one, twenty = [], []
    for _ in range(repeat):
        one.append(finish(foretell_command("gpt2", "a100-40gb")))
        twenty.append(finish(command))
    ratio = min(run.seconds for run in twenty) / min(run.seconds for run in one)
    cpu = min(run.cpu_seconds for run in twenty) / min(run.cpu_seconds for run in one)
    measured = f"{ratio:.2f}x ({min(run.seconds for run in twenty):.1f} s; {cpu:.2f}x the CPU time)"
    return Row("gpt2: 20 batch sizes / one", measured, "<= 3x", ratio <= 3)


def fit_on_all_cards(repeat: int) -> Row:
    """Of the table, about 80."""
    all_cards, one_card = [], []
    words = [sys.executable, "-m", "foretell", "fit", "--quiet", "--steps", "all", "--", str(WORKLOADS), "gpt2"]
    for _ in range(repeat):
        one_card.append(finish(foretell_command("gpt2", "a100-40gb")).seconds)
        all_cards.append(finish(words).seconds)
    ratio = min(all_cards) / min(one_card)
    measured = f"{ratio:.2f}x ({min(all_cards):.1f} s / {min(one_card):.1f} s)"
    return Row(f"gpt2: `foretell fit` on {len(gpus.all_gpus())} cards / on one", measured, "<= 2x", ratio <= 2)


def cost_of_isolation(repeat: int) -> Row:
    """Of a program that does nothing, so that nothing else is measured."""
    taken: dict[str, list[Finished]] = {"kernel": [], "none": []}
    for _ in range(3 * repeat):
        for mode, runs in taken.items():
            runs.append(finish([sys.executable, "-c", IN_ISOLATION, mode, sys.executable, "-c", ""]))
    more = min(run.seconds for run in taken["kernel"]) - min(run.seconds for run in taken["none"])
    busy = min(run.cpu_seconds for run in taken["kernel"]) - min(run.cpu_seconds for run in taken["none"])
    measured = f"{more:.2f} s ({busy:.2f} s of CPU time)"
    return Row("isolation by the kernel, more than without", measured, "at most 0.2 s", more <= 0.2)


def held_up() -> Row:
    words = finish([sys.executable, "-m", "benchmarks.bound_by"]).output.rpartition("right: ")[2].split()
    right, total = int(words[0]), int(words[2])
    measured = f"{right / total:.0%} ({right} of {total} scripts and cards)"
    return Row("bound by GPU, host or loader: judged rightly", measured, ">= 95 %", right >= 0.95 * total)


def seven_billion() -> list[Row]:
    run = finish(foretell_command("llama-7b", "b200"))
    reserved = int(run.bench()["max_reserved"])
    return [
        Row("llama-7b, AdamW: reserved on the device", format_bytes(reserved), "> 100 GB", reserved > 100 * 10**9),
        Row("llama-7b: host memory", format_bytes(run.peak_rss), "< 3 GiB", run.peak_rss < 3 * GIB),
        Row("llama-7b: the whole command", f"{run.seconds:.1f} s", "< 20 s", run.seconds < 20),
    ]


def many_gpus(repeat: int) -> list[Row]:
    """One rank of many, all ranks of a machine, and many process groups."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8", str(RANKS), "fsdp2"]
    in_shell = ["bash", "-c", shlex.join(torchrun)]
    few, many, plain, pairs = [], [], [], []
    for _ in range(repeat):
        few.append(finish(ranks_command(8, "fsdp2")))
        many.append(finish(ranks_command(1024, "fsdp2")))
        plain.append(finish(ranks_command(64, "none")).cpu_seconds)
        pairs.append(finish(ranks_command(64, "pairs")).cpu_seconds)
    node = finish(foretell_on_h100("--", *torchrun), is_all_measured=True)
    itself = finish(foretell_on_h100("--", *in_shell), is_all_measured=True)
    of_itself = f"{itself.cpu_seconds:.0f} s of CPU, {format_bytes(itself.peak_of_all)}"
    of_few, of_many = (min(run.cpu_seconds for run in runs) for runs in (few, many))
    memory, for_pairs = max(run.peak_rss for run in many), min(pairs) - min(plain)
    ratio = f"{of_many / of_few:.2f}x ({of_many:.1f} s / {of_few:.1f} s of CPU)"
    return [
        Row("llama-8b, FSDP2: one rank of 1,024 / one of 8", ratio, "<= 1.3x", of_many <= 1.3 * of_few),
        Row("the same: host memory", format_bytes(memory), "< 1.5 GiB", memory < 1.5 * GIB),
        Row("the same, 8 ranks: host memory", format_bytes(node.peak_of_all), "< 10 GiB", node.peak_of_all < 10 * GIB),
        Row("the same, 8 ranks: CPU time", f"{node.cpu_seconds:.0f} s", "<= 60 s", node.cpu_seconds <= 60),
        Row("the same, 8 ranks that torchrun itself starts", of_itself, "", None),
        Row("a process group for each pair of 64 ranks", f"{for_pairs:.1f} s of CPU", "< 10 s", for_pairs < 10),
    ]


def ranks_command(world_size: int, job: str) -> list[str]:
    return foretell_on_h100("--world-size", str(world_size), "--ranks", "0", "--", str(RANKS), job)


def foretell_on_h100(*words: str) -> list[str]:
    return [sys.executable, "-m", "foretell", "run", "--quiet", "--gpu", "h100-sxm", *words]


def cpu_engine(repeat: int) -> list[Row]:
    command, bare = [], []
    for _ in range(repeat):
        command.append(finish(foretell_command("gpt2", "a100-40gb", "cpu")))
        bare.append(finish([sys.executable, "-c", COMPLETES_TORCHVISION + IMPORTS["gpt2"]]))
    seconds, of_import = (min(run.seconds for run in runs) for runs in (command, bare))
    large = finish(foretell_command("llama-7b", "b200", "cpu"))
    measured = f"{seconds / of_import:.2f}x ({seconds:.1f} s / {of_import:.1f} s)"
    memory = format_bytes(large.peak_rss)
    return [
        Row("gpt2: `foretell run --engine cpu`, 4 steps / import", measured, "<= 3x", seconds <= 3 * of_import),
        Row("llama-7b: host memory, CPU engine", memory, "< 1 GiB", large.peak_rss < GIB),
        Row("llama-7b: the whole command, CPU engine", f"{large.seconds:.1f} s", "", None),
    ]


def after_a_long_run() -> Row:
    """What foretell does after the script, without the script."""
    words = finish([sys.executable, str(HERE / "long_run.py")]).output.split("both")[1].split()
    return Row("20,000 steps: reading the run and the estimate", f"{words[0]} s of CPU", "<= 5 s", float(words[0]) <= 5)


def foretell_command(job: str, gpu: str, engine: str = "auto") -> list[str]:
    return [
        sys.executable,
        "-m",
        "foretell",
        "run",
        "--quiet",
        "--engine",
        engine,
        "--gpu",
        gpu,
        "--steps",
        "all",
        "--",
        str(WORKLOADS),
        job,
    ]


def finish(command: list[str], extra: dict[str, str] | None = None, *, is_all_measured: bool = False) -> Finished:
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(extra or {})}
        )
        peak_of_all = peak_until_its_end(process.pid) if is_all_measured else 0
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{text[-3000:]}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Finished(seconds, cpu_seconds, usage.ru_maxrss * 1024, text, peak_of_all)


def peak_until_its_end(pid: int) -> int:
    """Of the host memory of a process and all it has started, from samples."""
    peak = 0
    end = os.pidfd_open(pid)
    try:
        while not select.select([end], [], [], 1.0)[0]:
            peak = max(peak, host_memory.used_by(pid))
    finally:
        os.close(end)
    return peak


if __name__ == "__main__":
    sys.exit(main())
