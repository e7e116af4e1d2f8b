"""Runs variants of a job: several at a time, each once, in forks if a fork gives what a process of its own gives."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from foretell import api
from foretell.errors import ForetellError, ScriptError, TraceError, UnsupportedError
from foretell.jobs import Job
from foretell.plain import from_plain, to_plain
from foretell.protocol.journal import lines_of
from foretell.records import Estimate, Performance
from foretell.runs import OUTPUT, Pool, Store, Warm, state_of_code
from foretell.runs.environment import private_cache
from foretell.runs.pool import Workers
from foretell.time import Work, work_of

_CHANGES_A_RESULT = (".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini")
_NOT_ENTERED = ("node_modules", "build")
_MOST_FILES = 5_000
_GARBAGE_BYTES = 1 << 20
_MOST_AT_ONCE = 4
"""So many workers start their warm processes at once."""
_CHANGING_VARIABLES = ("_", "SHLVL", "OLDPWD", "PWD", "COLUMNS", "LINES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one variant: an estimate, or why there is none."""

    estimate: Estimate | None = None
    problem: str | None = None
    is_failure: bool = False
    """There is no estimate because the script itself failed; otherwise foretell cannot estimate it."""
    arch_list: tuple[str, ...] = ()
    """What the script's torch has kernels for: `sm_80`; empty with the CPU engine, which needs none."""
    card_queries: tuple[str, ...] = ()
    """What the script has asked about the card that can decide what it does: `the card's memory, at train.py:12`."""
    work: Work | None = None
    """Of a step, if its time was asked for and it was recorded."""

    @property
    def kind(self) -> Literal["fits", "oom", "failed", "unsupported"]:
        if self.estimate is not None:
            return self.estimate.verdict
        return "failed" if self.is_failure else "unsupported"

    @property
    def why_unknown(self) -> str | None:
        """Why it is not known whether the variant fits; None if it is. A run that was stopped may need more."""
        if self.estimate is None:
            return self.problem or "there is no estimate"
        ended_by = self.estimate.ended_by
        is_stopped = ended_by is not None and ended_by.kind != "early_end" and self.estimate.verdict == "fits"
        return ended_by.message if ended_by is not None and is_stopped else None


class Variants:
    """Variants of a job, and their outcomes. An interrupted search finds the outcomes it had when it is repeated."""

    def __init__(
        self,
        job: Job,
        *,
        workers: Workers | None = None,
        say: Callable[[str], None] = lambda text: None,
        on_outcome: Callable[[Job, Outcome], None] = lambda job, outcome: None,
    ) -> None:
        """`workers`: as of `Pool`; one per CPU if not given. `on_outcome` is called as each new outcome arrives."""
        self._pool = Pool(workers or os.cpu_count() or 1)
        self._say = say
        self._on_outcome = on_outcome
        self._can_fork: bool | None = None
        self._known: dict[str, Outcome] = {}
        self._path = _store_path(job)
        self._store = None if self._path is None else Store(self._path, state=state_of_code())

    def __enter__(self) -> Variants:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends what still runs. Only what an interrupted search has found is kept."""
        self._pool.close()
        if self._store is not None and self._path is not None:
            self._store.close()
            if kind is None or not issubclass(kind, KeyboardInterrupt):
                self._path.unlink(missing_ok=True)

    @property
    def num_workers(self) -> int:
        return self._pool.num_workers

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes, in the order of the jobs."""
        jobs = [recorded_briefly(job) for job in jobs]
        missing = list({job.key: job for job in jobs if self._find(job.key) is None}.values())
        if missing and self._can_fork is None:
            self._can_fork = self._try_fork(missing[0])
            missing = missing[1:]
        items = [(job, bool(self._can_fork)) for job in missing]
        for (job, _), outcome in self._pool.map(_run, items):
            self._add(job, outcome)
        return [self._known[job.key] for job in jobs]

    def _try_fork(self, job: Job) -> bool:
        """Runs the job twice, and adds its outcome. A script may notice that it is forked: modules it imports may have
        been imported, and may have read the environment, before."""
        if job.call:
            self._add(job, _run((job, False), None))
            return False
        # All workers start their warm processes while the job runs alone.
        forked = [self._pool.submit(_run, (job, True)) for _ in range(min(self.num_workers, _MOST_AT_ONCE))]
        outcome = _run((job, False), None)
        self._add(job, outcome)
        if all(_is_alike(each.result(), outcome) for each in forked):
            return True
        self._say("in a fork of a process that has imported torch, the script behaves differently: no forks")
        return False

    def _find(self, key: str) -> Outcome | None:
        if key not in self._known and self._store is not None and key in self._store:
            outcome = _read(self._store[key])
            if outcome is not None:
                self._known[key] = outcome
        return self._known.get(key)

    def _add(self, job: Job, outcome: Outcome) -> None:
        self._known[job.key] = outcome
        if self._store is not None:
            self._store.add(job.key, _written(outcome))
        self._on_outcome(job, outcome)


def recorded_briefly(job: Job) -> Job:
    """Without what costs time and does not change the peaks."""
    return replace(job, options=replace(job.options, attribution=False, stdout="file"))


def _run(item: tuple[Job, bool], warm: Warm | None) -> Outcome:
    """The task of a worker of the pool."""
    job, is_fork = item
    known = Outcome()
    with api.scratch() as folder:
        try:
            run = api.run(job, directory=folder, warm=warm if is_fork else None)
            arch_list = run.trace.arch_list if run.trace.engine == "virtual" else ()
            known = Outcome(arch_list=arch_list, card_queries=run.trace.card_queries)
            estimate = run.estimate
            if job.options.time and estimate.verdict == "fits":
                known = replace(known, work=work_of(run.trace))
            not_made = _wanted_changes(job) - {line["name"] for line in lines_of(folder, "alternative")}
            if not_made and estimate.verdict == "fits":  # a run out of memory may not have come to the optimizer
                names = ", ".join(sorted(not_made))
                raise UnsupportedError(f"the script has nothing that {names} could be applied to.")
            return replace(known, estimate=estimate)
        except ForetellError as error:
            output = folder / OUTPUT
            lines = output.read_text(errors="replace").splitlines()[-3:] if output.exists() else []
            problem = "\n".join([str(error), *(f"  {line}" for line in lines)])
            return replace(known, problem=problem, is_failure=isinstance(error, ScriptError))


def _wanted_changes(job: Job) -> set[str]:
    return {word.partition("=")[0] for word in job.options.alternatives}


def _is_alike(fork: Outcome, own: Outcome) -> bool:
    """Whether a fork gave what a process of its own gave, but for garbage that was not yet collected when allocated
    memory was highest. That is chance, and changes no verdict if reserved memory stays as it is."""
    one, other = fork.estimate, own.estimate
    if one is None or other is None:
        return fork.kind == own.kind
    difference = abs(one.peak.allocated_bytes - other.peak.allocated_bytes)
    return difference <= _GARBAGE_BYTES and _summary(fork.kind, one) == _summary(own.kind, other)


def _summary(kind: str, estimate: Estimate) -> object:
    peak = estimate.peak
    return (kind, len(estimate.steps), peak.reserved_bytes, peak.library_bytes, peak.context_bytes, peak.request_bytes)


def _written(outcome: Outcome) -> object:
    estimate = outcome.estimate
    document = to_plain(replace(outcome, estimate=None))
    if estimate is None:
        return document
    return {**document, "estimate": estimate.to_json(), "performance": to_plain(estimate.performance)}


def _read(document: object) -> Outcome | None:
    """None: a damaged line."""
    try:
        if isinstance(document, dict) and isinstance(document.get("estimate"), str):
            performance = from_plain(Performance, found) if (found := document.pop("performance", None)) else None
            estimate = replace(Estimate.from_json(document["estimate"]), performance=performance)
            return replace(from_plain(Outcome, {**document, "estimate": None}), estimate=estimate)
        return from_plain(Outcome, document)
    except (ValueError, TraceError):
        return None


def _store_path(job: Job) -> Path | None:
    """The file of all searches that start from this job, these files of the user and this environment."""
    folder = private_cache("plans", os.environ)
    if folder is None:
        return None
    digest = hashlib.sha256(job.key.encode())
    for name, value in sorted(job.variables().items()):
        if name not in _CHANGING_VARIABLES:
            digest.update(f"{name}={value}\0".encode(errors="surrogateescape"))
    for line in _state_of_files(job):
        digest.update(line.encode(errors="surrogateescape"))
    return folder / f"{digest.hexdigest()[:24]}.jsonl"


def _state_of_files(job: Job) -> Iterator[str]:
    """Names, sizes and times of the code and configuration in the working folder and beside the script."""
    scripts = (job.folder / word for word in job.command if word.endswith(".py"))
    folders = dict.fromkeys(path.resolve() for path in (job.folder, *(script.parent for script in scripts)))
    num_files = 0
    for folder in folders:
        for where, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if not name.startswith(".") and name not in _NOT_ENTERED)
            for file in sorted(files):
                if file.endswith(_CHANGES_A_RESULT) and num_files < _MOST_FILES:
                    num_files += 1
                    path = Path(where, file)
                    status = path.stat()
                    yield f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0"
