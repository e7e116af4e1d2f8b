"""Which cards a build of torch has kernels for."""

from __future__ import annotations

import re
from collections.abc import Iterable


def has_kernels_for(capability: tuple[int, int], arch_list: Iterable[str]) -> bool:
    """A binary runs on cards of its major version with at least its minor version; PTX (compute_XY) on any newer
    card."""
    for kind, major, minor, suffix in _parsed(arch_list):
        if kind == "compute" and not suffix and (major, minor) <= capability:
            return True
        # sm_90a and the like run on exactly that card.
        if kind == "sm" and suffix == "a" and (major, minor) == capability:
            return True
        if kind == "sm" and suffix != "a" and major == capability[0] and minor <= capability[1]:
            return True
    return False


def is_older_than_all(capability: tuple[int, int], arch_list: Iterable[str]) -> bool:
    return all(capability < (major, minor) for _, major, minor, _ in _parsed(arch_list))


def _parsed(arch_list: Iterable[str]) -> list[tuple[str, int, int, str]]:
    found = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch) for arch in arch_list]
    return [(match[1], int(match[2]), int(match[3]), match[4]) for match in found if match]
