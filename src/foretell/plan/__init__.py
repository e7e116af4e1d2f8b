"""Decisions from many runs of a job: which card, how large a batch, inside which budget."""

from foretell.plan.variants import Outcome, Variants

__all__ = ["Outcome", "Variants"]
