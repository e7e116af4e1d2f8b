"""The table on the terminal, the JSON and docs/coverage.md, all made from the results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch
from benchmarks.coverage import libraries, timm_models
from benchmarks.coverage.jobs import OUTCOMES, WRONG, Job, Outcome, Result
from rich.table import Table

INTRODUCTION = """\
# Coverage: which models run on the virtual GPU exactly as on the CPU

`make coverage` generates this file. Every job runs two training steps (forward, loss, backward, optimizer) of a small
model twice, with the same seed and inputs: on the CPU, where every number is computed, and on the virtual GPU with all
hooks of `foretell run`. Both runs are recorded operator by operator (`tests/zoo/recorder.py`): names, shapes, dtypes,
integers returned to Python, modules, backward passes, steps. The peaks are read as `foretell run` reads them.

    make coverage                                     everything; --resume continues an interrupted run
    make coverage ARGS="--only timm --limit 50"       a part; also --match PATTERN, --sample N, --json FILE
"""
MODELS = f"""\
## Models

- **torchvision**: every model except the quantized ones, at full width, with ten classes and the smallest of a list of
  image sizes at which it trains on the CPU (detection: 128 pixels, with targets, and one evaluation).
- **timm**: the smallest architecture of every file of `timm.models` by number of parameters (counted on the meta
  device), then round by round the next smallest of each with at most {timm_models.MOST_PARAMETERS // 1_000_000} million
  parameters, until there are {timm_models.WANTED} or more. The image is the smallest it accepts, from 64 pixels up.
- **transformers**: every architecture in the auto mappings of the heads above. The default configuration is made small
  by rules on the names of its attributes (`benchmarks/coverage/tiny_configs.py`); all kinds of layers are kept. Texts
  are padded. One architecture with one head is one job. Speech models that are language models get only text.
- The optimizer is AdamW, or plain SGD from 100 million parameters on, to save host memory. The GPU is an A100 80 GB.

The one difference from `foretell run`: a job is a fork of a process that has already imported the libraries, so the
hooks are installed after the import instead of before it.
"""


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, **libraries.versions()}


def totals(results: Sequence[Result]) -> dict[str, Counter[Outcome]]:
    """By library, and by head within transformers."""
    found: dict[str, Counter[Outcome]] = {}
    for result in results:
        job = Job.of(result.job)
        for row in filter(None, (job.library, job.head)):
            found.setdefault(row, Counter())[result.outcome] += 1
    found["all"] = Counter(result.outcome for result in results)
    return found


def share(counts: Counter[Outcome]) -> str:
    """Of those that can run at all: those that ran, in per cent."""
    can_run = counts["ran"] + sum(counts[outcome] for outcome in WRONG)
    return f"{100 * counts['ran'] / can_run:.1f} %" if can_run else "-"


def shown_outcomes(results: Sequence[Result]) -> list[Outcome]:
    seen = {result.outcome for result in results}
    return [outcome for outcome in OUTCOMES if outcome in seen or outcome == "ran" or outcome in WRONG]


def table(results: Sequence[Result]) -> Table:
    shown = shown_outcomes(results)
    made = Table("", *shown, "ran, of possible")
    for row, counts in totals(results).items():
        made.add_row(row, *(str(counts[outcome] or "") for outcome in shown), share(counts))
    return made


def as_json(results: Sequence[Result]) -> str:
    rows = {row: dict(counts) for row, counts in totals(results).items()}
    return json.dumps({"versions": versions(), "totals": rows, "results": [asdict(r) for r in results]}, indent=1)


def document(results: Sequence[Result]) -> str:
    parts = [INTRODUCTION, "\n".join(summary(results)), "\n".join(meanings(results)), MODELS]
    return "\n".join([*parts, *("\n".join(section(outcome, results)) for outcome in OUTCOMES if outcome != "ran")])


def summary(results: Sequence[Result]) -> Iterator[str]:
    counts = totals(results)["all"]
    architectures = {Job.of(result.job).name for result in results if Job.of(result.job).head}
    yield "## Results"
    yield ""
    yield ", ".join(f"{library} {version}" for library, version in versions().items()) + "."
    can_run = counts["ran"] + sum(counts[outcome] for outcome in WRONG)
    yield f"{len(results)} jobs, among them {len(architectures)} transformers architectures."
    yield f"Of the jobs that can run at all, **{share(counts)}** ran: {counts['ran']} of {can_run}."
    yield ""
    shown = shown_outcomes(results)
    yield f"| | {' | '.join(shown)} | ran, of possible |"
    yield "|---|" + "---:|" * (len(shown) + 1)
    for row, of_row in totals(results).items():
        yield f"| {row} | {' | '.join(str(of_row[outcome] or '') for outcome in shown)} | {share(of_row)} |"
    yield ""


def meanings(results: Sequence[Result]) -> Iterator[str]:
    yield "## Outcomes"
    yield ""
    for outcome, meaning in OUTCOMES.items():
        yield f"- **{outcome}**: {meaning}."
    yield ""
    lines = sum(result.num_lines for result in results if result.outcome == "ran")
    yield f"The records of the jobs that ran have {lines:,} lines in total, all equal on both sides."
    yield ""


def section(outcome: Outcome, results: Sequence[Result]) -> Iterator[str]:
    found = [result for result in results if result.outcome == outcome]
    if not found:
        return
    yield f"## {outcome[0].upper()}{outcome[1:]}: {len(found)}"
    yield ""
    if outcome in WRONG:
        yield "Unknown values: how many were read that the virtual GPU does not know. `foretell run` reports each"
        yield "line in a caveat."
        yield ""
    yield "| job | unknown values | reason |"
    yield "|---|---:|---|"
    for result in sorted(found, key=lambda each: each.job):
        reason = " ".join(result.reason.split()).replace("|", "\\|")
        yield f"| {result.job} | {result.num_unknown_reads or ''} | {reason} |"
    yield ""
