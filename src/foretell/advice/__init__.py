"""Advice: reruns a job with changes, and compares the peaks."""

from foretell.advice.advise import Findings, advise
from foretell.advice.alternatives import Alternative, expandable_segments
from foretell.advice.held import release_earlier
from foretell.advice.trials import Trial, Trials

__all__ = ["Alternative", "Findings", "Trial", "Trials", "advise", "expandable_segments", "release_earlier"]
