"""From a profile file to the `Trace` of the same job on a card."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from foretell.engines.imported import parameters
from foretell.engines.imported.analysis import RecordedJob, analyse
from foretell.engines.imported.attention_calls import num_only_fused_here
from foretell.engines.imported.card import Card
from foretell.engines.imported.cpu_profile import CpuProfile, read
from foretell.engines.imported.explain import PassResult
from foretell.engines.imported.kernel_memory import unknown_operators
from foretell.engines.imported.library_calls import library_calls
from foretell.engines.imported.optimizers import unknown_optimizers
from foretell.engines.imported.passes import apply
from foretell.engines.imported.simulation import simulate
from foretell.errors import UsageError
from foretell.trace import Trace
from foretell.units import format_bytes
from foretell.versions import PLANNED_CONVOLUTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    trace: Trace
    passes: tuple[PassResult, ...]
    """Empty unless requested."""


def import_profile(path: Path, card: Card, *, context_bytes: int | None = None, explain: bool = False) -> Imported:
    started = time.monotonic()
    profile = read(path)
    try:
        return _imported(profile, path, card, context_bytes=context_bytes, explain=explain, started=started)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The rules rely on what operators have; in a profile that was changed by hand, they have anything.
        raise UsageError(
            f"{path} cannot be imported: an operator or a memory event is not as PyTorch records it "
            f"({type(error).__name__}: {error}). If torch.profiler wrote it, please open an issue with the file."
        ) from None


def _imported(
    profile: CpuProfile, path: Path, card: Card, *, context_bytes: int | None, explain: bool, started: float
) -> Imported:
    card = replace(card, cublas_config=profile.cublas_config or card.cublas_config)
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


def _caveats(profile: CpuProfile, job: RecordedJob, card: Card) -> Iterator[str]:
    if not profile.has_shapes:
        yield (
            "the profile has no shapes (record_shapes=True), so anything that depends on them is missing, such as "
            "workspaces and the attention kernel of the GPU"
        )
    trained = parameters.trained(job)
    frozen = parameters.frozen(job, trained)
    if not trained:
        yield "the recording accumulates no gradients, so parameters that are not used in matrix products are missing"
    if frozen:
        yield (
            f"{len(frozen)} weights get no gradient ({format_bytes(sum(tensor.num_bytes for tensor in frozen))}); a "
            "weight that is used twice in a forward pass is counted twice"
        )
    unlike = unknown_operators(job, card)
    if unlike:
        kinds = ", ".join(name.removeprefix("aten::") for name, _ in unlike.most_common(4))
        more = ", ..." if len(unlike) > 4 else ""
        yield f"{unlike.total()} operators ({kinds}{more}) are assumed to use as much memory as on the CPU"
    num_in_parts = num_only_fused_here(job, card)
    if num_in_parts:
        yield (
            f"{num_in_parts} attention calls are fused on the CPU but not on {card.gpu.name}, where they need more "
            "memory than is counted here"
        )
    for name in sorted(unknown_optimizers(job)):
        yield f"the optimizer {name} is assumed to behave as on the CPU; on a GPU it may need more temporary memory"
    if any(operator.name == "aten::convolution" for operator in job.operators):
        rule = "read off its answers" if PLANNED_CONVOLUTIONS.holds_in(card.torch) else "which knows the A100 only"
        yield (
            f"cuDNN is not queried for imports: convolution workspaces are estimated by a rule {rule}, and their sum "
            "may be off by a few hundred MiB"
        )
