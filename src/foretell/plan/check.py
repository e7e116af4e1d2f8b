"""The gate for CI: does a job fit on a card, stay below a limit, and close to a baseline?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from foretell import __version__, api, disk, gpus
from foretell import trace as traces
from foretell.diff import Difference, Summary, compare, summary_of
from foretell.diff.summary import summary_of_run
from foretell.errors import UnsupportedError, UsageError
from foretell.records import Estimate, Gpu
from foretell.trace import Trace
from foretell.units import format_bytes, parse_bytes, parse_growth

Measure = Literal["device", "request", "reserved", "allocated"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
"""Parts of an estimate that a limit can be about, by the terms of the README."""
_REWRITE = "Write a new baseline with --write-baseline."
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a job is checked against, besides the card it runs on."""

    of: Measure = "device"
    limit: str | None = None
    max_growth: str | None = None
    baseline: Summary | None = None

    def __post_init__(self) -> None:
        if self.of not in MEASURES:
            raise UsageError(f"--of {self.of}: must be one of {', '.join(MEASURES)}.")
        if self.max_growth is not None and self.baseline is None:
            raise UsageError("--max-growth is about the growth over a baseline: give --baseline FILE as well.")
        try:
            option = "--limit"
            _ = None if self.limit is None else parse_bytes(self.limit)
            option = "--max-growth"
            _ = None if self.max_growth is None else parse_growth(self.max_growth)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None

    def refuse_baseline(self, gpu: Gpu) -> None:
        """Raise if the growth over the baseline says nothing, as far as that is known before the job runs."""
        before = self.baseline
        if self.max_growth is None or before is None:
            return
        if before.foretell != __version__:
            by = f"foretell {before.foretell}" if before.foretell else "a foretell that did not note its version"
            _refuse(before, f"was written by {by}, this is {__version__}, and their numbers may differ", _REWRITE)
        if before.gpu != gpu.name:
            advice = f"Omit --gpu to use the baseline's, or write a baseline for {gpu.name} with --write-baseline."
            _refuse(before, f"is for {before.gpu}, not for {gpu.name}", advice)
        if before.verdict == "oom":
            _refuse(before, "is of a run that ran out of memory, so that what it needs is not known", _REWRITE)
        if f"{self.of}_bytes" not in before.peaks:
            _refuse(before, f"has no {self.of} memory", f"{_REWRITE[:-1]}, or use another --of.")

    def refuse_comparison(self, after: Summary) -> None:
        """The same, after the run."""
        before = self.baseline
        if self.max_growth is None or before is None:
            return
        if before.engine != after.engine:
            advice = f"Use --engine {before.engine}, or write a new baseline with --write-baseline."
            engines = f"the {before.engine} engine, this run by the {after.engine} engine"
            _refuse(before, f"was estimated by {engines}", advice)
        programs = program_of(before.command), program_of(after.command)
        if programs[0] != programs[1]:
            _refuse(before, f"is of another program: {programs[0]}, not {programs[1]}", _REWRITE)


def _refuse(baseline: Summary, why: str, advice: str) -> None:
    raise UnsupportedError(f"{baseline.path} cannot be the baseline: it {why}. {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, and whether it is kept."""

    kind: Literal["gpu", "limit", "growth"]
    given: str
    """As the user wrote it: `a10g`, `22GiB`, `2%`."""
    of: Measure
    allowed_bytes: int
    found_bytes: int | None
    """None: not known, because the job ran out of memory."""
    is_kept: bool

    def __str__(self) -> str:
        """For example: `device grew by 512 MiB, 72.1 MiB (2%) allowed`."""
        found, allowed = self.found_bytes, format_bytes(self.allowed_bytes)
        size = "unknown" if found is None else format_bytes(abs(found))
        if self.kind == "gpu":
            words = "fits on" if self.is_kept else "does not fit on"
            return f"{words} {self.given}: {self.of} {size} of {allowed}"
        if self.kind == "limit":
            return f"{self.of} {size}, {allowed} allowed"
        grew = f"grew by {size}" if found else "did not grow"
        if found is None or found < 0:
            grew = "growth unknown" if found is None else f"shrank by {size}"
        percent = f" ({self.given})" if self.given.endswith("%") else ""
        return f"{self.of} {grew}, {allowed}{percent} allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result: every rule, the estimate, and what changed since the baseline."""

    rules: tuple[Rule, ...]
    estimate: Estimate
    difference: Difference | None = None
    """None: no baseline was given."""
    caveats: tuple[str, ...] = ()
    """About the comparison; those about the estimate are in the estimate."""

    @property
    def verdict(self) -> Literal["within", "over", "oom", "incomplete"]:
        """incomplete: within, but the run was ended before its time, so that it may need more."""
        if self.estimate.oom is not None:
            return "oom"
        if not all(rule.is_kept for rule in self.rules):
            return "over"
        ended_by = self.estimate.ended_by
        return "within" if ended_by is None or ended_by.kind == "early_end" else "incomplete"

    def __str__(self) -> str:
        """The headline, and a line for each rule."""
        lines = [f"  {'ok  ' if rule.is_kept else 'over'}  {rule}" for rule in self.rules]
        return "\n".join([headline(self), *lines])

    def to_json(self) -> str:
        """Schema `foretell.check/1`, as `foretell check --json` writes it."""
        from foretell.plan import check_json

        return check_json.render(self)

    def to_markdown(self) -> str:
        """A summary for a pull request, as `foretell check --markdown` writes it."""
        from foretell.plan import check_markdown

        return check_markdown.render(self)


def check(
    job: Sequence[str] | Callable[..., object],
    *,
    gpu: str | Gpu | None = None,
    limit: str | int | None = None,
    of: Measure = "device",
    baseline: str | Path | None = None,
    max_growth: str | int | None = None,
    write_baseline: str | Path | None = None,
    **options: Any,
) -> Check:
    """Check the memory a job needs: that it fits on a GPU, is at most `limit`, and exceeds that of a baseline (a trace,
    or JSON of `foretell run`) by at most `max_growth` (`"2%"`, `"200MiB"`).

    `of` is what `limit` and `max_growth` are about. Without `gpu`, the GPU of the baseline is used. `write_baseline`
    keeps the run as a baseline, unless it runs out of memory or is incomplete: a trace, or JSON if the name ends with
    `.json`. The job, and the options of its run, are those of `foretell.estimate`, which also says what is raised if
    there is no estimate.
    """
    gate = Gate(of=of, limit=_text(limit), max_growth=_text(max_growth), baseline=baseline_of(baseline))
    given = gpu_for(gate, gpu)
    require_a_rule(gate, is_gpu_given=gpu is not None, writes=write_baseline is not None)
    gate.refuse_baseline(given)
    problem = disk.why_not_writable(Path(write_baseline)) if write_baseline is not None else None
    if problem is not None:
        raise UsageError(f"write_baseline={str(write_baseline)!r}: {problem}.")
    run = api.follow_up(api.run(api.make_job(job, gpu=given, **options)))
    result = judge(run.estimate, gate)
    if write_baseline is not None:
        save_baseline(result, run.trace, Path(write_baseline))
    return result


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def baseline_of(path: str | Path | None) -> Summary | None:
    return None if path is None else summary_of(Path(path))


def gpu_for(gate: Gate, gpu: str | Gpu | None) -> Gpu:
    """The GPU given; else that of the baseline, else the default."""
    if gpu is None:
        gpu = gate.baseline.gpu if gate.baseline is not None else api.DEFAULT_GPU
    return gpus.find(gpu) if isinstance(gpu, str) else gpu


def require_a_rule(gate: Gate, *, is_gpu_given: bool, writes: bool) -> None:
    if gate.limit is None and gate.max_growth is None and not (is_gpu_given or writes):
        raise UsageError(
            "nothing to check. Give --gpu NAME, --limit SIZE, or --baseline FILE with --max-growth SIZE|PERCENT; "
            "--write-baseline FILE alone writes a baseline."
        )


def judge(estimate: Estimate, gate: Gate) -> Check:
    """Apply the rules to an estimate. Raises `UnsupportedError` if a growth cannot be told."""
    rules = [_gpu_rule(estimate, gate)]
    found = size_of(estimate, gate.of)
    if gate.limit is not None:
        allowed = parse_bytes(gate.limit)
        rules.append(_rule("limit", gate.limit, gate.of, allowed, found))
    if gate.baseline is None:
        return Check(rules=tuple(rules), estimate=estimate)
    after = summary_of_run("this run", estimate)
    gate.refuse_comparison(after)
    if gate.max_growth is not None:
        before_bytes, growth = gate.baseline.peaks[f"{gate.of}_bytes"], parse_growth(gate.max_growth)
        allowed = round(growth * before_bytes) if isinstance(growth, float) else growth
        if estimate.oom is None:
            found = after.peaks[f"{gate.of}_bytes"]  # as in the baseline, of the largest process
        grown = None if found is None else found - before_bytes
        rules.append(_rule("growth", gate.max_growth, gate.of, allowed, grown))
    difference = compare(gate.baseline, after)
    caveats = _caveats(difference)
    if estimate.together is not None:
        caveats.append(f"the comparison is about the largest of {estimate.together.num_processes} processes")
    return Check(rules=tuple(rules), estimate=estimate, difference=difference, caveats=tuple(caveats))


def _gpu_rule(estimate: Estimate, gate: Gate) -> Rule:
    """Always about the device; where the limit is about the request, that must fit as well."""
    of: Measure = "request" if gate.of == "request" else "device"
    rule = _rule("gpu", estimate.gpu.name, of, estimate.available_bytes, size_of(estimate, of))
    assert rule.is_kept or of == "request" or estimate.verdict == "oom", rule
    return rule


def _rule(kind: Literal["gpu", "limit", "growth"], given: str, of: Measure, allowed: int, found: int | None) -> Rule:
    is_kept = found is not None and found <= allowed
    return Rule(kind=kind, given=given, of=of, allowed_bytes=allowed, found_bytes=found, is_kept=is_kept)


def size_of(estimate: Estimate, of: Measure) -> int | None:
    """What the job needs, all of its processes together; None if it ran out of memory and its need is not known."""
    if estimate.oom is not None:
        need = estimate.need
        sizes = {} if need is None else {
            "device": need.device_bytes, "request": need.request_bytes, "reserved": need.reserved_bytes
        }  # fmt: skip
        return sizes.get(of)
    peak, together = estimate.peak, estimate.together
    return {
        "device": estimate.device_bytes,
        "request": estimate.request_bytes,
        "reserved": peak.reserved_bytes if together is None else together.reserved_bytes,
        "allocated": peak.allocated_bytes,
    }[of]


def _caveats(difference: Difference) -> list[str]:
    """What besides the script may be a reason for a difference."""
    before, after = difference.before, difference.after
    caveats = []
    changed = {fact.name: (fact.before, fact.after) for fact in difference.facts}
    for name, (old, new) in changed.items():
        if name in ("torch", "CUDA", "card", "engine", "foretell"):
            caveats.append(f"part of the difference may come from {name}: {old} before, {new} now")
    if "command" in changed:
        old, new = changed["command"]
        caveats.append(f"the command has changed: {old} before, {new} now")
    if before.peaks["context_bytes"] != after.peaks["context_bytes"] and "card" not in changed:
        old, new = (format_bytes(summary.peaks["context_bytes"]) for summary in (before, after))
        caveats.append(f"the CUDA context is {new}, in the baseline {old} (--context, --profile)")
    if before.modules_floor_bytes or before.blocks_floor_bytes:
        caveats.append(f"{before.path} lists only its largest blocks: a trace as baseline shows small changes as well")
    return caveats


def program_of(command: Sequence[str]) -> str:
    """The script or module of a command, without folders: `train.py`, `-m package.train`."""
    words = list(command)
    if words and _PYTHON.fullmatch(PurePath(words[0]).name):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[1:]
    if words[:1] == ["-m"]:
        return shlex.join(words[:2])
    return PurePath(words[0]).name if words else ""


def save_baseline(check: Check, trace: Trace, path: Path) -> bool:
    """Keep a run for later checks: a trace, or JSON if the name ends with `.json`. Returns whether it was written: a
    run that ran out of memory, or is incomplete, is no baseline."""
    if check.verdict in ("oom", "incomplete"):
        return False
    if path.suffix == ".json":
        disk.write(path, check.estimate.to_json() + "\n")
    else:
        traces.save(trace, path)
    return True


def headline(check: Check) -> str:
    """For example: `over the limit: device grew by 512 MiB, 72.1 MiB (2%) allowed`."""
    broken = "; ".join(str(rule) for rule in check.rules if not rule.is_kept)
    estimate = check.estimate
    if check.verdict == "oom":
        needs = size_of(estimate, "device")
        need = "" if needs is None else f", needs {format_bytes(needs)}"
        return f"out of memory on {estimate.gpu.name}{need}"
    if check.verdict == "over":
        return f"over the limit: {broken}"
    needs_text = f"{format_bytes(estimate.device_bytes)} on {estimate.gpu.name}"
    if check.verdict == "incomplete":
        assert estimate.ended_by is not None
        return f"unknown: {needs_text} so far, but the run is incomplete ({estimate.ended_by.message})"
    return f"within limits, {needs_text}"
