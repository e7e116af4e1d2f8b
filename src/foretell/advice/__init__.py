"""Advice: reruns a job with changes, and compares the peaks."""

from foretell.advice.advise import Findings, advise
from foretell.advice.held import release_earlier

__all__ = ["Findings", "advise", "release_earlier"]
