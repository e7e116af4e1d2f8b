"""From pasted text to an explanation: what ran out, why, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from foretell import gpus
from foretell.errors import UsageError
from foretell.jobs import Job
from foretell.postmortem.balance import Balance, balance_of
from foretell.postmortem.diagnosis import Diagnosis, Surroundings, diagnose, surroundings_of
from foretell.postmortem.message import OomMessage, find_messages
from foretell.postmortem.reenact import Reenactment, reenact
from foretell.records import Gpu
from foretell.runs import Warm
from foretell.units import format_bytes

_MOST_CARDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why memory ran out, and what helps."""

    message: OomMessage
    number: int
    """Which of the messages in the text, from 1 on."""
    num_messages: int
    balance: Balance | None
    """Where the memory was; None if the message does not say."""
    cards: tuple[str, ...]
    """Names of known cards with the memory of the message, nearest first."""
    diagnosis: Diagnosis
    """From the message alone."""
    reenactment: Reenactment | None = None
    """With the script: what runs on the virtual GPU have shown."""

    def to_json(self) -> str:
        """Schema `foretell.explain-oom/1`."""
        from foretell.postmortem import json

        return json.render(self)

    def __str__(self) -> str:
        found = self.diagnosis
        return f"{found.cause}: {found.why}\nhelps: {found.helps}, because {found.because}"


def explain_oom(
    text: str,
    *,
    job: Job | Sequence[str] | None = None,
    gpu: str | Gpu | None = None,
    message: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Explain the out-of-memory message in a text: a log, a traceback, a notebook's output.

    With `job`, a command as after `foretell run` or a `Job`, the script is run on a virtual GPU as well: on `gpu`, or
    on a card with the memory that the message names. Raises `UsageError` if the text has no such message."""
    explanation = read_oom(text, expected=_card(gpu) if gpu is not None else None, message=message)
    if job is None:
        return explanation
    if isinstance(job, str):
        raise UsageError(f"a command must be a list of words: explain_oom(text, job={job.split()!r})")
    if not isinstance(job, Job):
        card = _card(gpu) if gpu is not None else card_of(explanation)
        job = Job(command=tuple(map(str, job)), gpu=card)
    return with_script(explanation, job, say=say)


def read_oom(text: str, *, expected: Gpu | None = None, message: int = 1) -> Explanation:
    """The explanation from the message alone. `expected`: the card on which the person says it was."""
    messages = find_messages(text)
    if not messages:
        raise UsageError(
            "no out-of-memory message found. Looked for PyTorch's `CUDA out of memory. Tried to allocate ...` (also "
            "HIP, XPU, "
            "MPS, cudaMallocAsync), `CUDA error: out of memory`, and what cuBLAS, cuDNN, NCCL, bitsandbytes, Triton "
            "and vLLM "
            "say. Paste the whole error, or the log that contains it."
        )
    if not 1 <= message <= len(messages):
        raise UsageError(
            f"--message {message}: the text has {len(messages)}, so give a number from 1 to {len(messages)}."
        )
    chosen = messages[message - 1]
    balance = balance_of(chosen)
    around = _expecting(surroundings_of(text, messages, chosen), expected or _named_card(text))
    is_nvidia = chosen.backend == "CUDA" and chosen.total_bytes is not None
    cards = gpus.with_memory(chosen.total_bytes) if is_nvidia and chosen.total_bytes else []
    return Explanation(
        message=chosen,
        number=message,
        num_messages=len(messages),
        balance=balance,
        cards=tuple(card.name for card in cards[:_MOST_CARDS]),
        diagnosis=diagnose(chosen, balance, around),
    )


def with_script(
    explanation: Explanation, job: Job, *, say: Callable[[str], None] = lambda text: None, warm: Warm | None = None
) -> Explanation:
    """Also with what runs of the script show; `warm` as of `reenact`."""
    found = reenact(explanation.message, explanation.balance, job, say=say, warm=warm)
    return replace(explanation, reenactment=found)


def card_of(explanation: Explanation) -> Gpu:
    """The card to run the script on: the known one with the memory that the message names."""
    message = explanation.message
    if explanation.cards:
        return gpus.find(explanation.cards[0])
    if message.backend != "CUDA":
        why = f"the message is from {message.backend}, and virtual GPUs are NVIDIA's"
    elif message.total_bytes is None:
        why = "the message does not say how much memory the GPU has"
    else:
        why = f"no known GPU has the {format_bytes(message.total_bytes)} of the message"
    raise UsageError(
        f"on which GPU should the script run? {why[0].upper()}{why[1:]}. Give --gpu NAME, or --gpu 24GiB,sm89."
    )


def _expecting(around: Surroundings, card: Gpu | None) -> Surroundings:
    if card is None:
        return around
    return replace(around, expected=card.device_name, expected_bytes=card.total_bytes)


def _named_card(text: str) -> Gpu | None:
    """The one card that the text names in full, as nvidia-smi and collect_env print it; the smallest of several."""
    lower = text.lower()
    named = [gpu for gpu in gpus.all_gpus() if gpu.device_name.lower() in lower]
    whole = [gpu for gpu in named if not any(gpu.device_name in each.device_name and each is not gpu for each in named)]
    return min(whole, key=lambda gpu: gpu.total_bytes, default=None)


def _card(gpu: str | Gpu) -> Gpu:
    return gpus.find(gpu) if isinstance(gpu, str) else gpu
