"""Compares two runs, given as traces or estimates."""

from foretell.diff.compare import BlockChange, Change, Difference, FactChange, compare, folded, grown_over, sentence
from foretell.diff.summary import Held, Summary, summary_of

__all__ = [
    "BlockChange",
    "Change",
    "Difference",
    "FactChange",
    "Held",
    "Summary",
    "compare",
    "folded",
    "grown_over",
    "sentence",
    "summary_of",
]
