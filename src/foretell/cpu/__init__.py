"""The second way: a job recorded on the CPU, rewritten as a card would have had it, and played on PyTorch's allocator
written again in Python. Nothing here imports torch."""

from foretell.cpu.analysis import Job, analyse
from foretell.cpu.card import NEWEST_TORCH, Card
from foretell.cpu.explain import PassResult
from foretell.cpu.passes import PASSES, apply
from foretell.cpu.profile import Profile, read
from foretell.cpu.recorded import Imported, import_profile
from foretell.cpu.simulation import simulate

__all__ = [
    "NEWEST_TORCH",
    "PASSES",
    "Card",
    "Imported",
    "Job",
    "PassResult",
    "Profile",
    "analyse",
    "apply",
    "import_profile",
    "read",
    "simulate",
]
