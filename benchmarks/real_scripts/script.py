"""What a row of the table is, and what running it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The script trains: an estimate is expected."""

    verdict: Literal["fits", "oom"] = "fits"
    exit_code: int = 0
    """Not 0 where the script fails after its training."""
    is_complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """There can be no number, and foretell must say why, in these words."""

    words: str
    exit_code: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A row of the table."""

    name: str
    origin: str
    """Whose script it is: repository and file, or package and command."""
    command: str
    """As after `foretell run --gpu GPU`. `NAME.py` is a stand-in of `standins/`; anything else comes with a package."""
    gpu: str = "rtx-3060"
    data: tuple[str, ...] = ()
    """What must be in the working folder: functions of data.py."""
    environment: dict[str, str] = field(default_factory=dict)
    expected: Number | Reason = Number()
    timeout_seconds: int = 120
    remark: str = ""
    """What a reader of the table should know."""

    @property
    def is_stand_in(self) -> bool:
        return ".py" in self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a user would have seen."""

    name: str
    exit_code: int
    seconds: float
    verdict: str | None = None
    """None: no number."""
    num_steps: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    said_bytes: int | None = None
    """The script's own `torch.cuda.max_memory_allocated()`, if it prints that at its end."""
    needed_bytes: int | None = None
    """If it runs out of memory: device memory on a card that is large enough."""
    ended_by: str | None = None
    """What ended the run before it was complete, so that the number is a lower bound."""
    message: str = ""
    """foretell's last words, if there is no number."""
    caveats: tuple[str, ...] = ()
    changed_files: tuple[str, ...] = ()
    """Files of the user that are not as they were before the run; there must be none."""


def problem(script: Script, result: Result) -> str | None:
    """What is not as expected, or None."""
    expected = script.expected
    if result.changed_files:
        return f"changed files: {', '.join(result.changed_files)}"
    if result.exit_code != expected.exit_code:
        return f"exit code {result.exit_code} instead of {expected.exit_code}: {result.message}"
    if isinstance(expected, Reason):
        if result.verdict is not None:
            return f"a number ({result.verdict}) where none can be known"
        is_said = expected.words.lower() in result.message.lower()
        return None if is_said else f"the reason is not “{expected.words}”: {result.message}"
    if result.verdict != expected.verdict:
        return f"{result.verdict or 'no number'} instead of {expected.verdict}: {result.message}"
    if expected.is_complete != (result.ended_by is None):
        return f"incomplete: {result.ended_by}" if expected.is_complete else "complete, though it cannot be"
    if result.verdict == "oom" and result.needed_bytes is None:
        return "out of memory, but not how much it needs"
    if result.said_bytes is not None and result.said_bytes != result.allocated_bytes:
        return f"allocated {result.allocated_bytes}, but the script says {result.said_bytes}"
    return None
