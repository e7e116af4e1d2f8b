"""PYTORCH_CUDA_ALLOC_CONF: what of it changes blocks and segments, and how sizes are rounded."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from ..errors import UsageError
from ..units import MIB
from ..versions import (
    LAST_DIVISION_STAYS,
    OLDER_SEGMENTS_FIRST,
    PRIVATE_POOL_IS_NO_CAPTURE,
    Version,
    parse_version,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """What of PYTORCH_CUDA_ALLOC_CONF changes blocks and segments."""

    is_native: bool = True
    """PyTorch's own allocator, not cudaMallocAsync."""
    is_expandable: bool = False
    max_split_bytes: int = sys.maxsize
    power2_divisions: tuple[int, ...] = ()
    """Into how many parts a power of two is divided to round sizes up: below 2 MiB, below 4 MiB, and so on."""
    garbage_collection_threshold: float = 0.0
    """Of the memory a process may take; acts only where that is limited."""
    oversize_rounding_bytes: int = 20 * MIB
    """A free block that is never split may be so much larger than what is asked for."""
    large_segment_bytes: int = 20 * MIB
    prefers_older_segments: bool = True
    """Of free blocks of one size the one in the older segment is taken, else the one with the lowest address."""
    is_private_like_capture: bool = False
    """While a private pool is in use nothing is given back: no events are looked at, no cache is released."""

    @classmethod
    def parse(cls, text: str, torch_version: str | None = None) -> AllocatorSettings:
        """The variable's own syntax: `max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]`."""
        settings = {name.strip(): value.strip() for name, value in re.findall(r"(\w+)\s*:\s*(\[[^]]*\]|[^,]+)", text)}
        max_split = settings.get("max_split_size_mb", "")
        version = parse_version(torch_version or "")
        return cls(
            is_native=settings.get("backend", "native") == "native",
            is_expandable=settings.get("expandable_segments", "").lower() == "true",
            max_split_bytes=int(max_split) * MIB if max_split.isdecimal() else sys.maxsize,
            power2_divisions=_divisions(settings.get("roundup_power2_divisions", ""), version),
            garbage_collection_threshold=float(settings.get("garbage_collection_threshold", 0.0)),
            oversize_rounding_bytes=int(settings.get("max_non_split_rounding_mb", 20)) * MIB,
            large_segment_bytes=int(settings.get("large_segment_size_mb", 20)) * MIB,
            prefers_older_segments=OLDER_SEGMENTS_FIRST.holds_in(version),
            is_private_like_capture=not PRIVATE_POOL_IS_NO_CAPTURE.holds_in(version),
        )

    def round_size(self, size: int) -> int:
        """DeviceCachingAllocator::round_size."""
        if size < 512:
            return 512
        if self.power2_divisions:
            parts = self.power2_divisions[min(max(size.bit_length() - 21, 0), _NUM_DIVISIONS - 1)]
            if parts > 1 and size > 512 * parts:
                return _round_up_to_part_of_power_of_two(size, parts)
        return (size + 511) // 512 * 512


_SETTING = re.compile(r"\s*(\w+)\s*:\s*(\[[^]]*\]|[^,\[\]]+?)\s*(?:,|$)")
_MIB = (r"[0-9]{1,9}", "a whole number of MiB")
_POWER = "(0|1|2|4|8|16|32|64|128|256|512|1024)"
_ENTRY = rf"\s*([0-9]{{1,9}}|>)\s*:\s*{_POWER}\s*"
_SWITCH = (r"(?i:true|false)", "True or False")
_OPTIONS = {
    "backend": ("native|cudaMallocAsync", "native or cudaMallocAsync"),
    "expandable_segments": _SWITCH,
    "garbage_collection_threshold": (r"0?\.\d+|0|1(\.0*)?", "a number between 0 and 1, such as 0.8"),
    "large_segment_size_mb": _MIB,
    "max_non_split_rounding_mb": _MIB,
    "max_split_size_mb": _MIB,
    "roundup_power2_divisions": (
        rf"{_POWER}|\[{_ENTRY}(,{_ENTRY})*\]",
        "0 or a power of two, or a list of them such as [256:1,512:2,>:4]",
    ),
    # These change neither blocks nor segments.
    "pinned_num_register_threads": (r"[0-9]{1,9}", "a number"),
    "pinned_use_background_threads": _SWITCH,
    "pinned_use_cuda_host_register": _SWITCH,
    "release_lock_on_cudamalloc": _SWITCH,
}
"""Of each option, the pattern of its values and what to tell who gives another one."""


def check_alloc_conf(text: str) -> None:
    """Raise UsageError for settings that PyTorch, or a replay, would not take. `AllocatorSettings.parse` does not
    check: the settings of a recorded run come from PyTorch, which has accepted them."""
    at = 0
    while at < len(text) or not text:
        found = _SETTING.match(text, at)
        if found is None:
            raise UsageError(
                f"--alloc-conf {text}: expected NAME:VALUE[,NAME:VALUE...] at {text[at:]!r}, for example "
                "expandable_segments:True,max_split_size_mb:128."
            )
        name, value = found[1], found[2]
        if name not in _OPTIONS:
            raise UsageError(f"--alloc-conf: unknown option {name!r}. Known: {', '.join(sorted(_OPTIONS))}.")
        pattern, allowed = _OPTIONS[name]
        if not re.fullmatch(pattern, value):
            raise UsageError(f"--alloc-conf: {name} cannot be {value!r}; it takes {allowed}.")
        at = found.end()


_NUM_DIVISIONS = 16


def _divisions(value: str, version: Version | None) -> tuple[int, ...]:
    """One number for all, or entries for single sizes: below the first its own holds, between two nothing does."""
    if value.isdecimal():
        return (int(value),) * _NUM_DIVISIONS
    divisions, last = [0] * _NUM_DIVISIONS, -1
    for entry, parts in re.findall(r"(\d+|>)\s*:\s*(\d+)", value):
        if entry == ">":
            begin = last + 1 if LAST_DIVISION_STAYS.holds_in(version) else max(last, 0)
            divisions[begin:] = [int(parts)] * (_NUM_DIVISIONS - begin)
            continue
        index = min(max(int(entry).bit_length() - 1, 0), _NUM_DIVISIONS - 1)
        if last < 0:
            divisions[:index] = [int(parts)] * index
        divisions[index] = int(parts)
        last = index
    return tuple(divisions) if last >= 0 or any(divisions) else ()


def _round_up_to_part_of_power_of_two(size: int, parts: int) -> int:
    """roundup_power2_next_division: between 1024 and 2048 with 4 parts: 1280, 1536, 1792, 2048."""
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    part = floor // parts
    return floor * 2 if part == 0 else (size + part - 1) // part * part
