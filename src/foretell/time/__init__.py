"""How long a step takes on a card, and how busy it keeps it: from the work in a trace, by a model and a simulation."""

from foretell.time.chrome import chrome_trace
from foretell.time.performance import (
    performance,
    performance_of,
    performance_where_known,
    plain_milliseconds,
    plain_parts,
    why_unknown,
    why_work_unknown,
)
from foretell.time.work import LOOP_US, Work, work_of

__all__ = [
    "LOOP_US", "Work", "chrome_trace", "performance", "performance_of", "performance_where_known", "plain_milliseconds",
    "plain_parts", "why_unknown", "why_work_unknown", "work_of",
]  # fmt: skip
