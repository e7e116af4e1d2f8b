"""Refuses a card that this torch build has no kernels for, when CUDA starts.

On the real card every kernel launch would fail with "no kernel image is available"; on the virtual one nothing would.
"""

from __future__ import annotations

import re
from typing import Any

from ..capture import Capture


def refuse_card_without_kernels(capture: Capture, torch: Any, arch_list: list[str]) -> None:
    for device in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(device)
        if arch_list and not has_kernels_for(capability, arch_list):
            capture.refuse(
                f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(device)} "
                f"(compute capability {capability[0]}.{capability[1]}); it has {' '.join(arch_list)}",
                "Choose another GPU, or install a torch build for this one "
                + ("(an older one)" if _is_older_than_all(capability, arch_list) else "(a newer one)"),
            )


def has_kernels_for(capability: tuple[int, int], arch_list: list[str]) -> bool:
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


def _is_older_than_all(capability: tuple[int, int], arch_list: list[str]) -> bool:
    return all(capability < (major, minor) for _, major, minor, _ in _parsed(arch_list))


def _parsed(arch_list: list[str]) -> list[tuple[str, int, int, str]]:
    found = [re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch) for arch in arch_list]
    return [(match[1], int(match[2]), int(match[3]), match[4]) for match in found if match]
