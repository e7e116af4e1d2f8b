"""Finds the pages of a CPU tensor that exist.

Anonymous memory that was never written has no pages and reads as zeros. So an uninitialised weight costs nothing, and
copying or casting only the pages that exist gives the same result as a full copy. `/proc/self/pagemap` says which pages
exist, in memory or swapped out.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re

PAGE = mmap.PAGESIZE
_MADV_DONTNEED = 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_pagemap: int | None = None
_pagemap_pid = 0
_os_open, _os_pread = os.open, os.pread  # bypass the overlay


def release(address: int, num_bytes: int) -> None:
    """Zero the bytes by releasing their pages. Only for private anonymous memory (such as malloc returns)."""
    first, end = _whole_pages(address, num_bytes)
    if end <= first:
        ctypes.memset(address, 0, num_bytes)
        return
    ctypes.memset(address, 0, first - address)
    ctypes.memset(end, 0, address + num_bytes - end)
    if _libc.madvise(first, end - first, _MADV_DONTNEED) != 0:
        ctypes.memset(first, 0, end - first)


def existing_ranges(address: int, num_bytes: int) -> list[tuple[int, int]] | None:
    """(offset, length) in bytes of the parts of the range that have pages; None if the kernel does not tell."""
    first = address // PAGE
    num_pages = (address + num_bytes + PAGE - 1) // PAGE - first
    entries = _pagemap_entries(first, num_pages)
    if entries is None:
        return None
    # Bit 63 of an entry: present; 62: swapped out. Both are in its last byte, which is zero for a page never touched.
    inside = []
    for match in re.finditer(rb"[^\0]+", entries[7::8]):
        low = max(0, (first + match.start()) * PAGE - address)
        high = min(num_bytes, (first + match.end()) * PAGE - address)
        inside.append((low, high - low))
    return inside


def _pagemap_entries(first: int, num_pages: int) -> bytes | None:
    global _pagemap, _pagemap_pid
    try:
        if _pagemap is None or _pagemap_pid != os.getpid():
            _pagemap, _pagemap_pid = _os_open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        data = b""
        while len(data) < num_pages * 8:
            part = _os_pread(_pagemap, num_pages * 8 - len(data), first * 8 + len(data))
            if not part:
                return None
            data += part
    except OSError:
        return None
    return data


def _whole_pages(address: int, num_bytes: int) -> tuple[int, int]:
    return -(-address // PAGE) * PAGE, (address + num_bytes) // PAGE * PAGE
