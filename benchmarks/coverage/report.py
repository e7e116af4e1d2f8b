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
# Coverage: which models run on the virtual GPU as they do where all is computed

`make coverage` writes this file. Every job takes two training steps (forward, loss, backward, optimizer) of a small
model twice, from the same seed and inputs: on the CPU, where every number is really computed, and on the virtual GPU
with all hooks of `foretell run`. Both runs are recorded operator by operator (`tests/zoo/recorder.py`): names, shapes,
dtypes, integers that come back to Python, modules, backwards, steps. The peaks are read as `foretell run` reads them.

    make coverage                                     everything; --resume goes on with what is missing
    make coverage ARGS="--only timm --limit 50"       a part; also --match PATTERN, --sample N, --json FILE
"""
MODELS = f"""\
## Which models

- **torchvision**: every model but the quantized ones, at full width, ten classes, the smallest of a list of image
  sizes at which it trains on the CPU (detection: 128 pixels, with targets, and one evaluation).
- **timm**: the smallest architecture of every file of `timm.models` by number of parameters (counted on the meta
  device), then round by round the next smallest of each with at most {timm_models.MOST_PARAMETERS // 1_000_000} million
  parameters, until there are {timm_models.WANTED} or more. The image is the smallest from 64 pixels up that it accepts.
- **transformers**: every architecture in the auto mappings of the heads above. The default configuration is made small
  by rules on the names of its attributes (`benchmarks/coverage/tiny_configs.py`); all kinds of layers stay. Texts are
  padded. One architecture with one head is one job. Speech models that are language models get text only.
- AdamW; plain SGD from 100 million parameters on, for the sake of the machine's memory. The card is an A100 80 GB.

The one difference from `foretell run`: a job is a fork of a process that has imported the libraries before, so the
hooks are installed after the import and not before it.
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
    made = Table("", *shown, "ran, of those that can")
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
    yield "## Result"
    yield ""
    yield ", ".join(f"{library} {version}" for library, version in versions().items()) + "."
    can_run = counts["ran"] + sum(counts[outcome] for outcome in WRONG)
    yield f"{len(results)} jobs, among them {len(architectures)} architectures of transformers."
    yield f"Of those that can run at all, **{share(counts)}** ran: {counts['ran']} of {can_run}."
    states = {result.code for result in results}
    if len(states) > 1 or "" in states:
        yield "**Put together with --resume from several states of the code**: not one run of one state."
    yield ""
    shown = shown_outcomes(results)
    yield f"| | {' | '.join(shown)} | ran, of those that can |"
    yield "|---|" + "---:|" * (len(shown) + 1)
    for row, of_row in totals(results).items():
        yield f"| {row} | {' | '.join(str(of_row[outcome] or '') for outcome in shown)} | {share(of_row)} |"
    yield ""


def meanings(results: Sequence[Result]) -> Iterator[str]:
    yield "## How each verdict is known"
    yield ""
    for outcome, meaning in OUTCOMES.items():
        yield f"- **{outcome}**: {meaning}."
    yield ""
    lines = sum(result.num_lines for result in results if result.outcome == "ran")
    yield f"The records of those that ran have {lines:,} lines in all, each equal on both sides."
    yield ""


def section(outcome: Outcome, results: Sequence[Result]) -> Iterator[str]:
    found = [result for result in results if result.outcome == outcome]
    if not found:
        return
    yield f"## {outcome[0].upper()}{outcome[1:]}: {len(found)}"
    yield ""
    if outcome in WRONG:
        yield "Unknown values: how often one was read that a virtual GPU does not know. `foretell run` says so with the"
        yield "line, as a caveat of its estimate."
        yield ""
    yield "| job | unknown values | reason |"
    yield "|---|---:|---|"
    for result in sorted(found, key=lambda each: each.job):
        reason = " ".join(result.reason.split()).replace("|", "\\|")
        yield f"| {result.job} | {result.num_unknown_reads or ''} | {reason} |"
    yield ""
