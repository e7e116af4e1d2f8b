"""Refuses a card that this torch build has no kernels for, when CUDA starts.

On the real card every kernel launch would fail with "no kernel image is available"; on the virtual one nothing would.
"""

from __future__ import annotations

from typing import Any

from ...rules.architectures import has_kernels_for, is_older_than_all
from ..capture import Capture


def refuse_card_without_kernels(capture: Capture, torch: Any, arch_list: list[str]) -> None:
    for device in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(device)
        if arch_list and not has_kernels_for(capability, arch_list):
            capture.refuse(
                f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(device)} "
                f"(compute capability {capability[0]}.{capability[1]}); it has {' '.join(arch_list)}",
                "Choose another GPU, or install a torch build for this one "
                + ("(an older one)" if is_older_than_all(capability, arch_list) else "(a newer one)"),
            )
