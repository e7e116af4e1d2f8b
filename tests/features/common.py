"""What these scripts share: the line at their end, with PyTorch's own counters for each card."""

import json

import torch

_peaks: dict[str, dict[int, int]] = {"allocated": {}, "reserved": {}}


def note_peaks() -> None:
    """Call before something resets PyTorch's counters."""
    for device in range(torch.cuda.device_count()):
        for kind, peak in (
            ("allocated", torch.cuda.max_memory_allocated(device)),
            ("reserved", torch.cuda.max_memory_reserved(device)),
        ):
            _peaks[kind][device] = max(peak, _peaks[kind].get(device, 0))


def report() -> None:
    note_peaks()
    print("PEAKS " + json.dumps({kind: list(peaks.values()) for kind, peaks in _peaks.items()}), flush=True)
