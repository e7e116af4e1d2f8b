"""Where the card's memory was when it ran out, from the numbers of the message."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.postmortem.message import OomMessage
from foretell.units import GIB, KIB, MIB

_KEPT_BYTES = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The memory of the card. The parts and `missing_bytes` sum to `total_bytes`."""

    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    unallocated_bytes: int
    others_bytes: int
    """Of the other processes that the message lists."""
    outside_bytes: int
    """Of this process but not of PyTorch: CUDA context and libraries."""
    is_outside_known: bool
    """False: the message does not tell context and libraries from processes that it does not list."""
    missing_bytes: int
    """Positive: used, but by nothing that the message names. Negative: the parts are more than the card has."""
    rounding_bytes: int
    """How far the sums may be off because PyTorch prints two decimals."""
    own_process: int | None = None
    """The listed process that must be this one: in a container it has another number than outside."""

    @property
    def is_complete(self) -> bool:
        return abs(self.missing_bytes) <= self.rounding_bytes

    @property
    def neighbour_bytes(self) -> int:
        """Of other processes, listed or not. A small rest is a desktop's, or kept by the driver."""
        is_some = self.missing_bytes > max(_KEPT_BYTES, self.total_bytes // 20)
        return self.others_bytes + (self.missing_bytes if is_some else 0)

    @property
    def is_spilled(self) -> bool:
        """PyTorch has more than the card: the driver has lent it memory of the machine, as it does under Windows."""
        return self.allocated_bytes + self.unallocated_bytes > self.total_bytes + self.rounding_bytes

    def parts(self) -> list[Part]:
        """For a table, largest owner first."""
        outside = (
            "this process outside PyTorch: CUDA context, libraries"
            if self.is_outside_known
            else "CUDA context, libraries, and processes that are not listed"
        )
        rows = [
            ("allocated by PyTorch: tensors", self.allocated_bytes),
            ("reserved by PyTorch but not allocated", self.unallocated_bytes),
            (outside, self.outside_bytes),
            ("other processes", self.others_bytes),
            ("not listed: a desktop, other containers, the driver", max(0, self.missing_bytes)),
            ("free", self.free_bytes),
        ]
        is_shown = {"free", "allocated by PyTorch: tensors"}
        if self.is_complete:
            rows = [row for row in rows if not row[0].startswith("not listed")]
        return [Part(name=name, bytes=size) for name, size in rows if size or name in is_shown]


def balance_of(message: OomMessage) -> Balance | None:
    """None if the message does not say enough, as when it is cut off."""
    total, free, allocated = message.total_bytes, message.free_bytes, message.allocated_bytes
    if total is None or free is None or allocated is None:
        return None
    unallocated = message.unallocated_bytes or 0
    reserved = allocated + unallocated
    listed = dict(message.processes)
    rounding = sum(map(rounding_of, (total, free, allocated, unallocated, message.own_bytes or 0, *listed.values())))
    own, own_process = message.own_bytes, None
    if own is None and sum(listed.values()) + reserved + free > total + rounding:
        # There is no room for PyTorch's memory beside the listed processes, so one of them is this one.
        large_enough = {pid: size for pid, size in listed.items() if size >= reserved - rounding}
        if large_enough:
            own_process = min(large_enough, key=large_enough.__getitem__)
            own = listed.pop(own_process)
    others = sum(listed.values())
    rest = total - free - reserved - others
    outside = max(0, rest if own is None else own - reserved)
    return Balance(
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        others_bytes=others,
        outside_bytes=outside,
        is_outside_known=own is not None,
        missing_bytes=rest - outside,
        rounding_bytes=rounding,
        own_process=own_process,
    )


def rounding_of(size: int) -> int:
    """How far a size may be off that PyTorch printed: it shows two decimals, and changes units above 1024."""
    unit = next((unit for unit in (GIB, MIB, KIB) if size > unit), 0)
    return unit // 200 + 1 if unit else 0
