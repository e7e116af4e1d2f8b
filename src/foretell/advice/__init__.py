"""Turns a job into advice: what could be changed about it is run with the change, and the peaks are compared."""

from foretell.advice.advise import Findings, advise
from foretell.advice.held import release_earlier
from foretell.advice.trials import Job

__all__ = ["Findings", "Job", "advise", "release_earlier"]
