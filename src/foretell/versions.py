"""Versions of torch: the only version parser, and the only table of differences between versions.

A `Difference` is a behaviour of torch, or of a library shipped with it, that holds from one version on. If the versions
in between were not inspected, the first one is a guess and marked as such; docs/torch-versions.md shows the table.
Standard library only: the user's process reads it, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]
OLDEST_TORCH: Version = (2, 6)
"""Oldest supported version."""
NEWEST_TORCH: Version = (2, 15)
"""Newest version inspected; newer ones are assumed to behave the same."""


def parse_version(text: str) -> Version | None:
    """The first two numbers of `2.6.0+cu124`; None if the text does not begin with a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    since: Version
    what: str
    """The behaviour from `since` on."""
    before: str
    seen_before: tuple[str, ...] = ()
    """Inspected versions that behave as described in `before`."""
    seen_since: tuple[str, ...] = ()
    """Inspected versions that behave as described in `what`."""

    def holds_in(self, version: Version | None) -> bool:
        """Whether the difference applies. None: an unknown version, assumed to be the newest."""
        return version is None or version >= self.since

    @property
    def is_guessed(self) -> bool:
        """Whether the first version with the behaviour, or the last one without it, was not inspected."""
        major, minor = self.since
        last = f"{major}.{minor - 1}"
        return f"{major}.{minor}" not in self.seen_since or (last not in self.seen_before and self.since > OLDEST_TORCH)


# --- the caching allocator --------------------------------------------------------------------------------------------

LAST_DIVISION_STAYS = Difference(
    since=(2, 9),
    what="in `roundup_power2_divisions`, `>` leaves the last entry before it as it is",
    before="`>` overwrites that entry, too",
    seen_before=("2.6",),
    seen_since=("2.15",),
)
PRIVATE_POOL_IS_NO_CAPTURE = Difference(
    since=(2, 9),
    what="a private pool in use does not keep others from being given back",
    before="it is taken for the capture of a CUDA graph",
    seen_before=("2.6",),
    seen_since=("2.15",),
)
OLDER_SEGMENTS_FIRST = Difference(
    since=(2, 9),
    what="of free blocks of one size the one in the older segment is taken",
    before="the one with the lowest address",
    seen_before=("2.6",),
    seen_since=("2.15",),
)
ALLOC_CONF_RENAMED = Difference(
    since=(2, 9),
    what="the allocator is set by `PYTORCH_ALLOC_CONF`",
    before="by `PYTORCH_CUDA_ALLOC_CONF` alone",
    seen_since=("2.15",),
)

# --- cuBLAS -----------------------------------------------------------------------------------------------------------

WORKSPACE_PER_CALL = Difference(
    since=(2, 15),
    what="cuBLAS gets a workspace for each call",
    before="each thread keeps one",
    seen_before=("2.6", "2.12", "2.14"),
    seen_since=("2.15",),
)
SHARED_WORKSPACE = Difference(
    since=(2, 7),
    what="cuBLASLt works in the workspace that a thread keeps for cuBLAS, as long as it keeps one",
    before="it has one of its own",
    seen_before=("2.6",),
    seen_since=("2.12", "2.14"),
)
LARGE_WORKSPACE_AFTER_HOPPER = Difference(
    since=(2, 7),
    what="cards newer than Hopper have a workspace as large as its 32 MiB",
    before="they have that of older cards",
    seen_since=("2.15",),
)
ANY_BIAS_IN_CUBLASLT = Difference(
    since=(2, 15),
    what="cuBLASLt adds any contiguous bias to a product",
    before="it adds one row",
    seen_since=("2.15",),
)

# --- cuDNN and kernels ------------------------------------------------------------------------------------------------

PLANNED_CONVOLUTIONS = Difference(
    since=(2, 8),
    what="workspaces of convolutions follow the rule read off cuDNN's answers (cuDNN 9.10 and newer)",
    before="they follow the rule fitted to runs on an A100",
    seen_before=("2.6",),
    seen_since=("2.15",),
)
GROUPED_EFFICIENT_ATTENTION = Difference(
    since=(2, 14),
    what="memory-efficient attention takes groups of queries (`enable_gqa`)",
    before="it takes as many keys as queries",
    seen_since=("2.15",),
)
GROUP_NORM_SUMS_IN_FLOAT = Difference(
    since=(2, 9),
    what="group norm in half precision has mean and deviation in single precision as well",
    before="it has them in half precision alone",
    seen_before=("2.6",),
    seen_since=("2.15",),
)
CHUNKS_OF_EACH_NORM = Difference(
    since=(2, 15),
    what="`_foreach_norm` has a partial sum for each chunk of each tensor",
    before="it has as many for each tensor as the largest has chunks",
    seen_since=("2.15",),
)

DIFFERENCES: dict[str, Difference] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Difference)
}
"""By name, in the order of definition."""


def as_table() -> str:
    """The table as Markdown, for docs/torch-versions.md."""
    lines = ["| from | seen | what | before | looked at |", "|---|---|---|---|---|"]
    for each in DIFFERENCES.values():
        since = ".".join(map(str, each.since))
        looked_at = ", ".join((*each.seen_before, *each.seen_since))
        sure = "guessed" if each.is_guessed else "seen"
        lines.append(f"| {since} | {sure} | {each.what} | {each.before} | {looked_at} |")
    return "\n".join(lines) + "\n"
