"""Compares `foretell fit` with a run on each of some cards: `python -m benchmarks.fit_check [JOB ...]`.

For each job, `fit` looks at every card of the table and at four made-up ones around what the job needs: with too little
memory, with the peak of live tensors, with a little less than the peak of reserved memory, and with just enough. The
job then runs on the four and on a sample of the others. Verdicts must be equal and, where it fits, all bytes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foretell import api, gpus
from foretell.jobs import Job
from foretell.plan.fit import CardFit, Fit, fit_job
from foretell.plan.variants import Outcome, Variants
from foretell.records import Gpu
from foretell.units import MIB

ROOT = Path(__file__).resolve().parent.parent
JOBS = {
    **{
        name: (f"tests/zoo/{name}.py",)
        for name in (
            "gpt_sdpa", "hf_llama_gqa", "rnn_lstm", "norms", "recommender", "oom_retry", "vit", "cnn_resnet", "unet",
            "amp_bf16_cnn",
        )
    },
    "train_gpt2": ("examples/train_gpt2.py",),
    "train_resnet": ("examples/train_resnet.py", "--batch-size", "64"),
}  # fmt: skip
"""Attention, recurrent nets, norms, embeddings, a script that survives running out of memory, convolutions."""
LIKE = "rtx-a4500"
"""The made-up cards have its compute capability and its number of SMs, which is in the middle of the range."""


@dataclass(frozen=True)
class Compared:
    num_cards: int
    num_runs: int
    verdicts: dict[str, int]
    differences: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)} (default: all)")
    parser.add_argument("--sample", type=int, default=8, help="how many cards of the table to run on (default: 8)")
    options = parser.parse_args()
    num_different = 0
    print("| job | runs of `fit` | cards compared | fits, tight, does not | different |\n|---|---|---|---|---|")
    for name in options.jobs or JOBS:
        found = compare(Job(command=JOBS[name], gpu=gpus.find(LIKE), cwd=ROOT), options.sample)
        counts = ", ".join(str(found.verdicts.get(verdict, 0)) for verdict in ("fits", "tight", "oom"))
        print(f"| {name} | {found.num_runs} | {found.num_cards} | {counts} | {len(found.differences)} |", flush=True)
        for difference in found.differences:
            print(f"  {difference}", file=sys.stderr)
        num_different += len(found.differences)
    return 1 if num_different else 0


def compare(job: Job, sample: int) -> Compared:
    made_up = around_the_need(job)
    fit = fit_job(job, [*gpus.all_gpus(), *made_up])
    cards = chosen(fit, made_up, sample)
    with Variants(job) as variants:
        outcomes = variants.run([replace(job, gpu=card.gpu) for card in cards])
    different = [difference(card, outcome) for card, outcome in zip(cards, outcomes, strict=True)]
    verdicts = [card.verdict for card in cards]
    return Compared(
        num_cards=len(cards),
        num_runs=fit.num_runs,
        verdicts={verdict: verdicts.count(verdict) for verdict in set(verdicts)},
        differences=[each for each in different if each is not None],
    )


def around_the_need(job: Job) -> list[Gpu]:
    like = job.gpu
    options = replace(job.options, history=False, attribution=False, stdout="file")
    peak = api.run(replace(job, gpu=replace(like, total_bytes=1 << 40), options=options)).estimate.peak
    beside = peak.context_bytes + peak.library_bytes
    sizes = {
        "too-little": peak.allocated_bytes * 3 // 4 + beside,
        "live-tensors": peak.allocated_bytes + beside,
        "a-little-less": peak.reserved_bytes - 2 * MIB + beside,
        "just-enough": peak.reserved_bytes + beside,
    }
    return [replace(like, name=name, total_bytes=size) for name, size in sizes.items()]


def chosen(fit: Fit, made_up: Sequence[Gpu], sample: int) -> list[CardFit]:
    """Those that torch has kernels for; the sample prefers cards that `fit` has not run."""
    names = {gpu.name for gpu in made_up}
    others = [card for card in fit.cards if card.gpu.name not in names and card.verdict != "cannot_run"]
    random.Random(0).shuffle(others)
    others.sort(key=lambda card: card.is_run)
    return [*(card for card in fit.cards if card.gpu.name in names), *others[:sample]]


def difference(card: CardFit, outcome: Outcome) -> str | None:
    estimate = outcome.estimate
    if estimate is None:
        return f"{card.gpu.name}: {card.verdict}, but the run has no estimate: {outcome.problem}"
    if (card.verdict == "oom") != (estimate.verdict == "oom"):
        return f"{card.gpu.name}: {card.verdict}, but the run says {estimate.verdict}"
    request = estimate.peak.request_bytes + estimate.other_processes_bytes
    if estimate.verdict == "fits" and (card.device_bytes, card.request_bytes) != (estimate.device_bytes, request):
        return f"{card.gpu.name}: {card.device_bytes} bytes, but the run needs {estimate.device_bytes}"
    return None


if __name__ == "__main__":
    sys.exit(main())
