"""What is written down in the words of each tool: how much memory to ask for, on which card, with which batch."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import DoesNotFitError, UnsupportedError, UsageError
from foretell.masking import mask, mask_command
from foretell.records import Estimate
from foretell.units import GIB, MIB, format_bytes

_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An estimate that is complete and fits. Sizes are rounded up, never down."""

    estimate: Estimate
    batch_size: int | None = None
    """The largest that fits, if it was searched for."""
    effective_batch: int | None = None
    """The number of samples of an optimizer step that is wanted."""
    shard_bytes: int = GIB

    def __post_init__(self) -> None:
        for name, value in (("batch size", self.batch_size), ("effective batch", self.effective_batch)):
            if value is not None and value < 1:
                raise UsageError(f"the {name} is {value}: must be 1 or more.")
        if self.shard_bytes < MIB:
            raise UsageError(f"a shard of {self.shard_bytes} bytes: must be 1 MiB or more.")

    @property
    def request_bytes(self) -> int:
        return self.estimate.request_bytes

    @property
    def request_mib(self) -> int:
        return ceil(self.request_bytes, MIB)

    @property
    def is_whole_card(self) -> bool:
        """The request exceeds the card, although the job fits: asked for that much, a scheduler would wait for ever."""
        return self.request_bytes > self.estimate.available_bytes

    def comments(self) -> list[str]:
        """What the settings are based on, and how certain that is."""
        estimate, peak = self.estimate, self.estimate.peak
        others, card = estimate.other_processes_bytes, estimate.gpu
        needs, low, high, request, context = (
            format_bytes(size)
            for size in (
                estimate.device_bytes, peak.device_low_bytes + others, peak.device_high_bytes + others,
                self.request_bytes, peak.context_bytes,
            )
        )  # fmt: skip
        words = [Path(word).name if number == 0 else word for number, word in enumerate(mask_command(estimate.command))]
        command = textwrap.shorten(shlex.join(words), _LONGEST, placeholder=" ...")
        source = "" if estimate.is_context_given else " (estimated)"
        lines = [
            f"foretell: {command or 'a job'}",
            f"on {card.name} ({format_bytes(card.total_bytes)}) with torch {estimate.torch_version}",
            f"Needs {needs} ({low} to {high}), with a CUDA context of {context}{source}.",
            f"The request is {request}: enough for 99 % of runs.",
        ]
        if self.is_whole_card:
            lines.append(f"That is more than {card.name} has available: in some runs the job may not fit.")
        return [comment(line) for line in (*lines, *(f"Caveat: {mask(caveat)}" for caveat in estimate.caveats))]


def comment(text: str) -> str:
    """One line, whatever the text: it must not end the comment and become a setting."""
    return "# " + "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def ceil(size: int, unit: int) -> int:
    return -(-size // unit)


def refuse(tool: str, estimate: Estimate) -> None:
    """Raise if the estimate is not one to plan by."""
    if estimate.verdict == "oom":
        what = f"--emit {tool}: the job does not fit on {estimate.gpu.name}"
        need = estimate.need
        if need is None:
            raise DoesNotFitError(f"{what}. Choose a larger GPU with --gpu, or make the job smaller.")
        where = f"Try --gpu {need.smallest_gpus[0]}" if need.smallest_gpus else "No GPU of `foretell gpus` has as much"
        raise DoesNotFitError(f"{what}. It needs {format_bytes(need.device_bytes)}. {where}, or make the job smaller.")
    if estimate.ended_by is not None:
        hint = " Give it more time." if estimate.ended_by.kind == "time_limit" else ""
        hint = " `--steps all` does not end the training early." if estimate.ended_by.kind == "early_end" else hint
        raise UnsupportedError(
            f"--emit {tool}: the run is incomplete, so the job may need more than was seen: "
            f"{estimate.ended_by.message}.{hint}"
        )
