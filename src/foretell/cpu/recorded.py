"""From the file of a profile to the `Trace` of the same job on a card."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foretell.cpu import parameters
from foretell.cpu.analysis import Job, analyse
from foretell.cpu.attention import num_only_fused_here
from foretell.cpu.card import Card
from foretell.cpu.explain import PassResult
from foretell.cpu.kernels import unknown_operators
from foretell.cpu.libraries import library_calls
from foretell.cpu.optimizers import unknown_optimizers
from foretell.cpu.passes import apply
from foretell.cpu.profile import Profile, read
from foretell.cpu.simulation import simulate
from foretell.overhead.convolutions import PLANS_FROM
from foretell.trace import Trace
from foretell.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    trace: Trace
    passes: tuple[PassResult, ...]
    """Empty unless asked for."""


def import_profile(path: Path, card: Card, *, context_bytes: int | None = None, explain: bool = False) -> Imported:
    started = time.monotonic()
    profile = read(path)
    recorded = analyse(profile)
    job, results = apply(recorded, card, with_peaks=explain)
    trace = simulate(
        job,
        card.gpu,
        calls=library_calls(job, card),
        context_bytes=context_bytes,
        command=(str(path),),
        caveats=tuple(_caveats(profile, job, card)),
        seconds={"total": time.monotonic() - started},
        torch_version=f"{card.torch[0]}.{card.torch[1]}",
    )
    return Imported(trace=trace, passes=results)


def _caveats(profile: Profile, job: Job, card: Card) -> Iterator[str]:
    if not profile.has_shapes:
        yield (
            "the profile has no shapes (record_shapes=True): what follows from them is missing, as workspaces and the "
            "attention kernel of the card are"
        )
    trained = parameters.trained(job)
    frozen = parameters.frozen(job, trained)
    if not trained:
        yield "no gradients were accumulated in the recording: parameters that are not used by products are missing"
    if frozen:
        yield (
            f"{len(frozen)} weights get no gradient ({format_bytes(sum(tensor.num_bytes for tensor in frozen))}): one "
            "that is used twice in a forward pass is counted twice"
        )
    unlike = unknown_operators(job, card)
    if unlike:
        kinds = ", ".join(name.removeprefix("aten::") for name, _ in unlike.most_common(4))
        more = ", ..." if len(unlike) > 4 else ""
        yield f"{unlike.total()} operators of kinds {kinds}{more} were taken as the CPU had them"
    num_in_parts = num_only_fused_here(job, card)
    if num_in_parts:
        yield (
            f"{num_in_parts} attention calls, fused on the CPU, are computed in parts on {card.gpu.name}: they take "
            "more than is counted here"
        )
    for name in sorted(unknown_optimizers(job)):
        yield f"the optimizer {name} was taken as the CPU had it: on a card it may hold lists of temporaries"
    if any(operator.name == "aten::convolution" for operator in job.operators):
        rule = "read off its answers" if card.torch >= PLANS_FROM else "which knows the A100 only"
        yield (
            f"cuDNN cannot be asked here: the workspaces of convolutions follow a rule, {rule}, and their sum may be "
            "off by some hundred MiB"
        )
