"""Estimates from a CPU profile: rewrites a job recorded on the CPU as a card would run it, and replays it on a Python
implementation of PyTorch's allocator. Nothing here imports torch."""

from foretell.engines.imported.analysis import RecordedJob, analyse
from foretell.engines.imported.card import Card
from foretell.engines.imported.cpu_profile import CpuProfile, read
from foretell.engines.imported.explain import PassResult
from foretell.engines.imported.passes import PASSES, apply
from foretell.engines.imported.recorded import Imported, import_profile
from foretell.engines.imported.simulation import simulate
from foretell.versions import NEWEST_TORCH

__all__ = [
    "NEWEST_TORCH",
    "PASSES",
    "Card",
    "CpuProfile",
    "Imported",
    "PassResult",
    "RecordedJob",
    "analyse",
    "apply",
    "import_profile",
    "read",
    "simulate",
]
