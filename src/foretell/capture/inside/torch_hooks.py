"""Turns "torch has been imported" and "CUDA is being initialised" into installed hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import alternatives, distributed, fake_cuda, kernels, oom, skip_init, values_hooks
from .autograd_threads import wait_for_autograd
from .history import History
from .keepers import Keepers
from .labels import Labels
from .loaders import Loaders
from .modules import Modules
from .owners import Owners
from .peaks import Peaks
from .phases import Phases
from .run import Run
from .steps import Steps
from .stopping import Stopping
from .survey import Survey
from .trainers import Trainers
from .unimplemented import Unimplemented


def install_torch_hooks(run: Run, torch: Any) -> None:
    is_fake = run.options.engine == "cpu" or (run.options.engine == "auto" and torch.version.cuda is None)
    engine = "cpu" if is_fake else "virtual"
    cuda, cudnn = torch.version.cuda, _cudnn_version(torch)
    run.journal.write("torch", version=torch.__version__, cuda=cuda, cudnn=cudnn, engine=engine)
    if is_fake:
        fake_cuda.install(run, torch)
    peaks, phases, trainers = Peaks(), Phases(run), Trainers(run)
    loaders = Loaders(run, peaks, phases)
    options = run.options
    hooks: list[tuple[str, bool, Callable[[], None]]] = [
        ("peaks", True, lambda: peaks.install(run, torch)),
        ("optimizer steps", True, lambda: Steps(run, peaks).install()),
        ("phases", options.phases, lambda: phases.install(torch)),
        ("the start of CUDA", True, lambda: _when_cuda_starts(run, torch, phases, engine)),
        ("trainers", options.steps != "all", trainers.install),
        ("DataLoaders", options.steps != "all", lambda: loaders.install(torch)),
        ("the end of training", options.steps != "all", Stopping(run, peaks, loaders, trainers).install),
        ("weight initialisation", options.skip_init, lambda: skip_init.install(run, torch)),
        ("torch.distributed", options.guards, lambda: distributed.install(run, torch)),
        ("values", options.values and not is_fake, lambda: values_hooks.install(run, torch)),
        ("unimplemented functions", not is_fake, lambda: Unimplemented(run, torch).install()),
        ("what could be done otherwise", options.survey, lambda: Survey(run, torch, peaks).install()),
        ("what is done otherwise", bool(options.alternatives), lambda: alternatives.install(run, torch)),
    ]
    for name, is_on, install in hooks:
        if is_on:  # one hook that does not fit this torch must not take the others with it
            run.guarded(name, install)
    run.before_end.append(lambda: wait_for_autograd(torch))


def _when_cuda_starts(run: Run, torch: Any, phases: Phases, engine: str) -> None:
    def cuda_starts() -> None:
        # Not before: asking torch for it makes CUDA unusable in children forked later, initialised or not.
        arch_list = _arch_list(torch)
        run.journal.write("cuda", device_count=torch.cuda.device_count(), arch_list=arch_list)
        if run.options.guards:
            kernels.refuse_card_without_kernels(run, torch, arch_list)
        phases.cuda_starts()
        if torch.cuda.get_allocator_backend() != "native":
            run.caveat("PyTorch's own allocator was replaced: the peaks are those of the whole run, not of each step")
            return
        oom.install(run, torch)
        if run.options.history:
            History(run).install(torch)
        if run.options.history and run.options.attribution:
            run.guarded("who holds the memory", lambda: _attribute(run, torch, engine))

    # torch.cuda._lazy_init runs what is queued right after the driver is up, before the script's first allocation. This
    # is what torch.cuda._lazy_call does, less the stack it formats for each call.
    torch.cuda._queued_calls.append((lambda: run.guarded("the start of CUDA", cuda_starts), []))


def _attribute(run: Run, torch: Any, engine: str) -> None:
    owners = Owners(run)
    labels = Labels(run, owners)
    owners.install(torch)
    labels.install(torch)
    Keepers(run).install(torch)
    Modules(run, owners, labels, marks_nodes=engine == "virtual").install(torch)


def _arch_list(torch: Any) -> list[str]:
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return flags.split() if flags else []


def _cudnn_version(torch: Any) -> int | None:
    # Not torch.backends.cudnn.version(): on torch 2.15 it initialises CUDA.
    cudnn = getattr(torch._C, "_cudnn", None)
    return int(cudnn.getVersionInt()) if cudnn is not None else None
