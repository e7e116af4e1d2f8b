"""Installs the hooks: some after torch is imported, others when CUDA is initialised."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..capture import Capture
from ..change import alternatives, deepspeed_kernels, skip_init
from ..guard import architectures
from ..ranks.joining import Ranks
from ..stop.autograd_threads import wait_for_autograd
from ..stop.leaving import Leaving
from ..stop.loaders import Loaders
from ..stop.stopping import Stopping
from ..stop.trainers import Trainers
from ..stop.worst_batches import WorstBatches
from ..values import hooks as values_hooks
from ..values import warned_lines
from ..watch import allocator, oom
from ..watch.backward_steps import BackwardSteps
from ..watch.batches import Batches
from ..watch.card_queries import CardQueries
from ..watch.history import History
from ..watch.keepers import Keepers
from ..watch.labels import Labels
from ..watch.modules import Modules
from ..watch.operators import Operators
from ..watch.owners import Owners
from ..watch.peaks import Peaks
from ..watch.phases import Phases
from ..watch.process_end import ProcessEnd
from ..watch.steps import Steps
from ..watch.survey import Survey
from ..watch.unimplemented import Unimplemented


def install_torch_hooks(capture: Capture, torch: Any, end: ProcessEnd) -> None:
    is_fake = capture.options.engine == "cpu" or (capture.options.engine == "auto" and torch.version.cuda is None)
    engine = "cpu" if is_fake else "virtual"
    cuda, cudnn = torch.version.cuda, _cudnn_version(torch)
    capture.journal.write("torch", version=torch.__version__, cuda=cuda, cudnn=cudnn, engine=engine)
    if is_fake:
        from ...engines.python_cuda import device

        device.install(capture, torch)
    peaks, phases, trainers = Peaks(), Phases(capture), Trainers(capture)
    steps, loaders, batches = Steps(capture, peaks), Loaders(capture, peaks, phases), Batches(capture)
    worst = WorstBatches(capture, batches, phases)
    queries = CardQueries(capture, torch)
    options = capture.options
    hooks: list[tuple[str, bool, Callable[[], None]]] = [
        ("peaks", True, lambda: peaks.install(capture, torch)),
        ("optimizer steps", True, steps.install),
        ("backward passes", True, lambda: BackwardSteps(capture, steps).install(torch)),
        ("phases", options.phases, lambda: phases.install(torch)),
        ("questions about the card", True, queries.install),
        ("CUDA initialization", True, lambda: _when_cuda_starts(capture, torch, phases, batches, queries, engine)),
        ("batches", True, lambda: batches.install(torch)),  # before those that may ask for other batches, or none
        ("trainers", options.steps != "all", trainers.install),
        ("the largest batches", options.steps == "worst", lambda: worst.install(torch)),
        ("DataLoaders", options.steps != "all", lambda: loaders.install(torch)),
        ("the end of training", options.steps != "all", Stopping(capture, peaks, loaders, trainers, worst).install),
        ("weight initialization", options.skip_init, lambda: skip_init.install(capture, torch)),
        ("DeepSpeed's optimizers", True, lambda: deepspeed_kernels.install(capture, torch)),
        ("torch.distributed", True, lambda: Ranks(capture, end).install(torch, is_virtual=not is_fake)),
        ("values", options.values and not is_fake, lambda: values_hooks.install(capture, torch)),
        ("the lines of warnings", options.values, lambda: warned_lines.install(capture)),
        ("unimplemented functions", not is_fake, lambda: Unimplemented(capture, torch).install()),
        ("the survey of alternatives", options.survey, lambda: Survey(capture, torch, peaks).install()),
        ("the description of the job", options.describe, lambda: _describe(capture)),
        ("alternatives", bool(options.alternatives), lambda: alternatives.install(capture, torch)),
    ]
    for name, is_on, install in hooks:
        if is_on:  # a hook that does not fit this torch must not disable the others
            capture.guarded(name, install)
    capture.before_end.append(lambda: wait_for_autograd(torch))


def _describe(capture: Capture) -> None:
    from .. import describe  # it imports torch

    leaving = Leaving(capture)

    def caught(description: dict[str, Any]) -> None:
        capture.journal.write("features", features=description)
        leaving.leave("the rest of the training: its job has been described")

    describe.Catcher(caught).install()


def _when_cuda_starts(
    capture: Capture, torch: Any, phases: Phases, batches: Batches, queries: CardQueries, engine: str
) -> None:
    def cuda_starts() -> None:
        # Not earlier: querying it makes CUDA unusable in children forked later, initialised or not.
        arch_list = _arch_list(torch)
        capture.journal.write(
            "cuda",
            device_count=torch.cuda.device_count(),
            arch_list=arch_list,
            cublas_workspace_config=os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        )
        capture.guarded("the allocator's settings", lambda: allocator.install(capture, torch))
        if capture.options.guards:
            architectures.refuse_card_without_kernels(capture, torch, arch_list)
        batches.cuda_starts()
        phases.cuda_starts()
        capture.guarded("questions about the card", queries.cuda_starts)
        if torch.cuda.get_allocator_backend() != "native":
            text = "PyTorch's allocator was replaced, so peaks are known only for the whole run, not per step"
            capture.caveat(text)
            return
        oom.install(capture, torch)
        if capture.options.history:
            History(capture).install(torch)
        if capture.options.history and capture.options.attribution:
            capture.guarded("attribution", lambda: _attribute(capture, torch, engine))
        if capture.options.time:  # after the others, to begin and end next to the script
            capture.guarded("operators", lambda: Operators(capture).install(torch))

    # torch.cuda._lazy_init runs the queue right after the driver is up, before the script's first allocation. This does
    # what torch.cuda._lazy_call does, without formatting a stack for each call.
    queued: tuple[Any, list[str]] = (lambda: capture.guarded("CUDA initialization", cuda_starts), [])
    torch.cuda._queued_calls.append(queued)
    calls = torch.cuda._queued_calls
    capture.patches.added("a call queued for the start of CUDA", lambda: queued in calls and calls.remove(queued))


def _attribute(capture: Capture, torch: Any, engine: str) -> None:
    owners = Owners(capture)
    labels = Labels(capture, owners)
    owners.install(torch)
    labels.install(torch)
    Keepers(capture).install(torch)
    Modules(capture, owners, labels, marks_nodes=engine == "virtual").install(torch)


def _arch_list(torch: Any) -> list[str]:
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return flags.split() if flags else []


def _cudnn_version(torch: Any) -> int | None:
    # Not torch.backends.cudnn.version(): on torch 2.15 it initialises CUDA.
    cudnn = getattr(torch._C, "_cudnn", None)
    return int(cudnn.getVersionInt()) if cudnn is not None else None
