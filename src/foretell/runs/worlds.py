"""A job of which not the launcher starts the ranks, but foretell: some of many, or those of several machines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from foretell.errors import UsageError

GPUS_PER_NODE = 8
MOST_RANKS = 65536
"""As in virtual/native/libraries/exchange.c."""
MOST_AT_ONCE = 64
"""Ranks that run on this machine at the same time: each is a process with torch."""
FILE = "world.json"
STARTER = Path(__file__).parent.parent / "inside" / "ranks" / "starter.py"
LOCAL_RANK = "%LOCAL_RANK%"
"""In the words of a command: the starter puts each rank's number there."""
Launcher = Literal["torchrun", "srun", "mpirun", "deepspeed", "accelerate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks of a job, and which of them are run."""

    size: int
    per_node: int
    first: tuple[int, ...]
    """Ranks to start with; others are started when one of these needs their data."""
    are_roles_wanted: bool
    """Also start a rank of each stage of a pipeline."""
    launcher: Launcher = "torchrun"
    """Whose environment the ranks find."""
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path, *, forks: bool, modules: Sequence[str] = ()) -> Path:
        """For the starter (inside/ranks/starter.py). `forks`: the ranks are Python scripts; `modules`: to import before
        them, once for all ranks."""
        path = directory / FILE
        path.write_text(
            json.dumps(
                {
                    "directory": str(directory),
                    "size": self.size,
                    "per_node": self.per_node,
                    "first": self.first,
                    "are_roles_wanted": self.are_roles_wanted,
                    "launcher": self.launcher,
                    "environment": self.environment,
                    "forks": forks,
                    "modules": modules,
                }
            )
        )
        return path


def world_of(
    *, size: int, per_node: int, ranks: str | None, launcher: Launcher = "torchrun",
    environment: dict[str, str] | None = None,
) -> World:  # fmt: skip
    check_size(size)
    wanted = "auto" if ranks is None else ranks
    first = ranks_of(wanted, size)
    if len(first) > MOST_AT_ONCE:
        raise UsageError(
            f"--ranks {wanted}: {len(first)} ranks at once, each a process with torch; at most {MOST_AT_ONCE} can run. "
            "Use --ranks auto, or name some of them."
        )
    return World(
        size=size, per_node=per_node, first=first, are_roles_wanted=wanted == "auto", launcher=launcher,
        environment=environment or {},
    )  # fmt: skip


def check_size(size: int) -> None:
    if not 1 <= size <= MOST_RANKS:
        raise UsageError(f"--world-size {size}: must be 1 to {MOST_RANKS}.")


def ranks_of(text: str, size: int) -> tuple[int, ...]:
    """`all`, `auto` (the first and the last, to begin with) or a list such as `0,7,64-71`."""
    if text == "all":
        return tuple(range(size))
    if text == "auto":
        return (0, size - 1) if size > 1 else (0,)
    check_ranks(text)
    found: set[int] = set()
    for part in text.split(","):
        first, _, end = part.partition("-")
        last = int(end or first)
        if last < int(first):
            raise UsageError(f"--ranks {text}: {part} is empty.")
        if last >= size:
            raise UsageError(f"--ranks {text}: the {size} ranks are numbered 0 to {size - 1}.")
        found.update(range(int(first), last + 1))
    return tuple(sorted(found))


def check_ranks(text: str) -> None:
    if text not in ("all", "auto") and not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text):
        raise UsageError(f"--ranks {text}: must be auto, all or a list of ranks, for example 0,7 or 0-3.")


def started_by(
    world: World, argv: Sequence[str], directory: Path, *, python: str | None, outer: str, modules: Sequence[str]
) -> tuple[str, ...]:
    """The command that starts the ranks, each of which runs `argv`. `python`: the interpreter of `argv`, if there is
    one; `outer`: any; `modules`: to import once for all ranks."""
    forks = python is not None and argv[0] == python and len(argv) > 1 and is_script(argv[1:])
    path = world.write(directory, forks=forks, modules=modules)
    if forks:
        return (argv[0], str(STARTER), str(path), *argv[1:])
    # Without hooks: it is no process of the job.
    return (outer, "-S", str(STARTER), str(path), *argv)


def ranks_run(words: Sequence[str]) -> Sequence[str]:
    """What each rank runs, of the words after the interpreter; the words themselves, if they do not start ranks."""
    return words[2:] if words[0] == str(STARTER) else words


def is_script(words: Sequence[str]) -> bool:
    """Of Python itself, without options of its own."""
    return not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1)
