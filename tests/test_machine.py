"""What a script asks of the card and of PyTorch's allocator: foretell's peaks are PyTorch's own under every option."""

from __future__ import annotations

import pytest
import torch

from conftest import FEATURES, ForetellRun, RunForetell, with_its_own_peaks
from warm_runs import WarmRuns

OPTIONS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32,garbage_collection_threshold:0.6",
    "max_split_size_mb:21,max_non_split_rounding_mb:64",
    "roundup_power2_divisions:4,release_lock_on_cudamalloc:True",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],pinned_use_background_threads:True",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:4",
]
WHEN_TORCH_IS_LOADED = "backend:cudaMallocAsync"
"""Read then, so it needs a process of its own."""
NEWER_OPTIONS = [
    "expandable_segments:True,large_segment_size_mb:64,graph_capture_record_stream_reuse:True",
    "large_segment_size_mb:40,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True",
    "pinned_reserve_segment_size_mb:64,pinned_max_round_threshold_mb:8,pinned_max_cached_size_mb:64",
]
"""Not in torch 2.6."""
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12):
    OPTIONS += NEWER_OPTIONS


@pytest.mark.parametrize("options", OPTIONS)
def test_peaks_are_pytorchs_own_under_every_option_of_its_allocator(warm_runs: WarmRuns, options: str) -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": options}
    check(with_its_own_peaks(warm_runs.run(FEATURES / "machine.py", environment=environment)))


def test_peaks_are_pytorchs_own_with_the_allocator_of_cuda(run_feature: RunForetell) -> None:
    check(run_feature("machine", environment={"PYTORCH_CUDA_ALLOC_CONF": WHEN_TORCH_IS_LOADED}))


def check(run: ForetellRun) -> None:
    assert "CAUGHT" in run.stdout
    assert run.peak["allocated_bytes"] > 100 << 20
