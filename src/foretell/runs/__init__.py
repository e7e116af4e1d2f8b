"""Runs jobs: one or ten thousand, in separate processes or in forks of warm ones."""

from foretell.runs.calls import pickled, result_of
from foretell.runs.command import Command, TorchInstall, find_torch, resolve
from foretell.runs.environment import OUTPUT
from foretell.runs.launch import launch, run_program
from foretell.runs.pool import Pool, parse_workers
from foretell.runs.store import Store, state_of_code
from foretell.runs.waiting import Ended, Program, Progress, Watch
from foretell.runs.warm import Warm

__all__ = [
    "OUTPUT",
    "Command",
    "Ended",
    "Pool",
    "Program",
    "Progress",
    "Store",
    "TorchInstall",
    "Warm",
    "Watch",
    "find_torch",
    "launch",
    "parse_workers",
    "pickled",
    "resolve",
    "result_of",
    "run_program",
    "state_of_code",
]
