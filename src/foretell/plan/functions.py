"""The searches as Python functions: `foretell.max_batch`, `foretell.maximum`, `foretell.sweep`, `foretell.scale`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from foretell import api, gpus
from foretell.errors import UsageError
from foretell.jobs import Job
from foretell.plan.knobs import Argument, ConfigKey, Knob, LoaderBatch, Setting, Variable, WorldSize
from foretell.plan.maximum import Maximum
from foretell.plan.maximum import maximum as search
from foretell.plan.scale import MOST_GPUS, Scale
from foretell.plan.scale import scale as search_scale
from foretell.plan.sweep import Sweep
from foretell.plan.sweep import sweep as run_grid
from foretell.records import Gpu
from foretell.runs.pool import Workers
from foretell.units import format_bytes, parse_bytes

_NONE: Mapping[str, Sequence[object]] = MappingProxyType({})


def maximum(
    job: Job | Sequence[str],
    *,
    arg: str | None = None,
    env: str | None = None,
    config_key: str | None = None,
    dataloader: bool = False,
    gpu: str | Gpu = api.DEFAULT_GPU,
    cwd: str | Path | None = None,
    min: int = 1,
    max: int | None = None,
    multiple_of: int = 1,
    safety: str | int = 0,
    safe: bool = False,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Maximum:
    """Find the largest integer with which a job fits on a GPU (`.value`, None if nothing fits; `.estimate`).

    `job` is a command (`["train.py"]`, as after `foretell run`), or a `Job` if it needs more than a GPU and a folder.
    One of `arg` (an option of the script: "--batch-size"), `env` (an environment variable), `config_key`
    ("train.yaml:data.batch_size") and `dataloader` names what is searched for; the options are those of `foretell max`.
    Raises `UsageError` if the script does not accept the knob or ignores it, and `ScriptError` if it always fails.
    """
    found = job if isinstance(job, Job) else job_of(job, gpu, cwd)
    return search(
        found, knob_of(arg=arg, env=env, config_key=config_key, dataloader=dataloader), low=min, high=max,
        multiple_of=multiple_of, safety_bytes=safety_bytes(safety, found), is_request=safe, workers=workers, say=say,
    )  # fmt: skip


max_batch = maximum
"""The same, by the name of the command: a batch size is what is mostly searched for."""


def sweep(
    job: Job | Sequence[str],
    *,
    arg: Mapping[str, Sequence[object]] = _NONE,
    env: Mapping[str, Sequence[object]] = _NONE,
    config_key: Mapping[str, Sequence[object]] = _NONE,
    world_size: Sequence[int] = (),
    dataloader: Sequence[int] = (),
    optimizer: Sequence[str] = (),
    precision: Sequence[str] = (),
    gpu: str | Gpu = api.DEFAULT_GPU,
    cwd: str | Path | None = None,
    need: bool = True,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """Find out what a job needs with each combination of values (`.points`), and whether it fits on a GPU.

    `arg={"--batch-size": [8, 16], "--seq-len": [512, 1024]}`, `env` and `config_key` map names to values; the options
    are those of `foretell sweep`. What does not fit is run again on a larger card, unless `need` is False.
    """
    others: list[tuple[Knob, Sequence[object]]] = [
        (WorldSize(), world_size), (LoaderBatch(), dataloader), (Setting("optimizer"), optimizer),
        (Setting("precision"), precision),
    ]  # fmt: skip
    grid = grid_of(arg=arg, env=env, config_key=config_key)
    grid += [(knob, [str(value) for value in values]) for knob, values in others if values]
    found = job if isinstance(job, Job) else job_of(job, gpu, cwd)
    return run_grid(found, grid, finds_need=need, workers=workers, say=say)


def scale(
    job: Job | Sequence[str],
    *,
    sizes: Sequence[int] | None = None,
    min: int = 1,
    max: int = MOST_GPUS,
    safe: bool = False,
    gpus_per_node: int | None = None,
    arg: Mapping[str, Sequence[object]] = _NONE,
    env: Mapping[str, Sequence[object]] = _NONE,
    config_key: Mapping[str, Sequence[object]] = _NONE,
    gpu: str | Gpu = api.DEFAULT_GPU,
    cwd: str | Path | None = None,
    need: bool = True,
    workers: Workers | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Scale:
    """Find the smallest number of GPUs with which a job fits (`.smallest`, None if none does; `.estimate`), with each
    combination of other values (`.ways`; all that was run: `.sweep.points`). The options are those of `foretell scale`.
    """
    found = job if isinstance(job, Job) else job_of(job, gpu, cwd)
    if gpus_per_node is not None:
        found = replace(found, gpus_per_node=gpus_per_node)
    grid = grid_of(arg=arg, env=env, config_key=config_key)
    return search_scale(
        found, grid, sizes=sizes, low=min, high=max, is_request=safe, finds_need=need, workers=workers, say=say
    )


def grid_of(
    *,
    arg: Mapping[str, Sequence[object]],
    env: Mapping[str, Sequence[object]],
    config_key: Mapping[str, Sequence[object]],
) -> list[tuple[Knob, list[str]]]:
    named: list[tuple[Knob, Sequence[object]]] = [
        *((Argument(name), values) for name, values in arg.items()),
        *((Variable(name), values) for name, values in env.items()),
        *((ConfigKey(name), values) for name, values in config_key.items()),
    ]
    return [(knob, [str(value) for value in values]) for knob, values in named]


def job_of(command: Sequence[str], gpu: str | Gpu, cwd: str | Path | None) -> Job:
    if isinstance(command, str):
        raise UsageError(f"a command must be a list of words: {command.split()!r}")
    return Job(
        command=tuple(map(str, command)),
        gpu=gpus.find(gpu) if isinstance(gpu, str) else gpu,
        cwd=None if cwd is None else Path(cwd),
    )


def knob_of(*, arg: str | None, env: str | None, config_key: str | None, dataloader: bool) -> Knob:
    """The only one that is given."""
    given: list[Knob] = []
    if arg is not None:
        given.append(Argument(arg))
    if env is not None:
        given.append(Variable(env))
    if config_key is not None:
        given.append(ConfigKey(config_key))
    if dataloader:
        given.append(LoaderBatch())
    if len(given) != 1:
        what = f"{len(given)} knobs given" if given else "no knob given"
        raise UsageError(
            f"{what}. Give one of --arg=--batch-size, --env BATCH_SIZE, --config-key train.yaml:data.batch_size and "
            "--dataloader."
        )
    return given[0]


def safety_bytes(safety: str | int, job: Job) -> int:
    """Of a size, or a part of the card: `5%`."""
    text = str(safety)
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", text)
    size = parse_bytes(text) if percent is None else round(float(percent[1]) / 100 * job.gpu.total_bytes)
    left = job.available_bytes
    if size >= left:
        raise UsageError(f"--safety {text}: {job.gpu.name} has only {format_bytes(left)}.")
    return size
