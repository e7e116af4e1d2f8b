"""The allocator in Python against PyTorch's own on the virtual GPU: any sequence of requests, byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from foretell import gpus
from foretell.allocator import AllocatorSettings, CachingAllocator, Device, OutOfMemoryError
from foretell.records import LibraryBytes
from foretell.units import KIB, MIB
from foretell.virtual import environment

ORACLE = Path(__file__).parent / "allocator_oracle.py"
NOTHING = LibraryBytes(cublas=0, cudnn=0, nccl=0)
GPU = gpus.find("1GiB,sm86")
NUM_EXAMPLES = int(os.environ.get("FORETELL_ALLOCATOR_EXAMPLES", "40"))
"""Of each configuration, the same every time; FORETELL_ALLOCATOR_EXAMPLES=300 tries others, more of them."""
IS_REPEATABLE = "FORETELL_ALLOCATOR_EXAMPLES" not in os.environ
CONFIGURATIONS = {
    "default": ("", 0.0),
    "split": ("max_split_size_mb:40", 0.0),
    "rounding": ("roundup_power2_divisions:[1:2,64:4,>:8]", 0.0),
    "fraction": ("", 0.5),
    "garbage": ("garbage_collection_threshold:0.6", 0.7),
    "expandable": ("expandable_segments:True", 0.0),
    "private": ("", 0.0),
    "private, expandable": ("expandable_segments:True", 0.0),
    "all": ("max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.5", 0.8),
}

sizes = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(MIB - 1024, MIB + 1024),
    st.integers(1, 30 * MIB),
    st.sampled_from(
        [512, 513, MIB, MIB + 1, 10 * MIB, 10 * MIB - 1, 20 * MIB, 40 * MIB, 64 * MIB, 200 * MIB, 700 * MIB]
    ),
)


TWO_EQUAL_SEGMENTS: list[list[Any]] = [
    ["malloc", 0, MIB + 1, 0, None], ["free", 0], ["malloc", 1, 512, 0, None], ["empty_cache"],
    ["malloc", 2, MIB, 0, None], ["malloc", 3, MIB - 512, 0, None], ["malloc", 4, MIB, 0, None],
    ["free", 1], ["free", 2], ["free", 3], ["free", 4], ["malloc", 5, 512, 0, None],
]  # fmt: skip
"""The newer one at the lower address, where a segment was given back before."""


@st.composite
def sequences(draw: st.DrawFn) -> list[list[Any]]:
    requests: list[list[Any]] = []
    held: list[int] = []
    for name in range(draw(st.integers(1, 60))):
        kind = draw(st.sampled_from(["malloc"] * 6 + ["free"] * 5 + ["record", "synchronize", "empty_cache"]))
        if kind == "malloc" or (kind in ("free", "record") and not held):
            pool = draw(st.sampled_from([None, None, 0, 1]))
            requests.append(["malloc", name, draw(sizes), draw(st.sampled_from([0, 0, 0, 1, 2])), pool])
            held.append(name)
        elif kind == "free":
            requests.append(["free", held.pop(draw(st.integers(0, len(held) - 1)))])
        elif kind == "record":
            requests.append(["record", draw(st.sampled_from(held)), draw(st.integers(0, 2))])
        else:
            requests.append([kind])
    return requests


@dataclass
class Oracle:
    process: subprocess.Popen[str]
    options: str
    fraction: float
    num_pools: int

    def answer(self, requests: list[list[Any]]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(requests) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the oracle died"
        return json.loads(line)


@pytest.fixture(scope="module", params=CONFIGURATIONS, ids=list(CONFIGURATIONS))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    options, fraction = CONFIGURATIONS[request.param]
    num_pools = 2 if request.param.startswith("private") else 0
    folder = tmp_path_factory.mktemp("oracle")
    variables = environment(GPU, context_bytes=0, libraries=NOTHING, log_prefix=str(folder / "native"))
    variables["FORETELL_LOG"] = ""
    process = subprocess.Popen(
        [sys.executable, str(ORACLE), str(fraction), str(num_pools)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **variables, "PYTORCH_CUDA_ALLOC_CONF": options},
    )  # fmt: skip
    yield Oracle(process, options, fraction, num_pools)
    process.kill()
    process.wait()


class Simulation:
    """Like the oracle, one allocator for all sequences: expandable segments leave reserved addresses behind."""

    def __init__(self, options: str, fraction: float, num_pools: int) -> None:
        self.num_pools = num_pools
        limit = int(fraction * GPU.total_bytes) if fraction else None
        settings = AllocatorSettings.parse(options, version("torch"))
        self.allocator = CachingAllocator(Device(GPU.total_bytes), settings, limit_bytes=limit)

    def answer(self, requests: list[list[Any]]) -> dict[str, Any]:
        allocator = self.allocator
        allocator.reset_peaks()
        before = allocator.num_retries, allocator.num_ooms
        held: dict[int, Any] = {}
        levels = []
        for kind, *values in requests:
            allocator.launch()
            if kind == "malloc":
                pool = values[3] if self.num_pools else None
                with contextlib.suppress(OutOfMemoryError):
                    held[values[0]] = allocator.malloc(values[1], values[2], pool)
            elif kind == "free":
                if values[0] in held:
                    allocator.free(held.pop(values[0]))
            elif kind == "record":
                if values[0] in held:
                    allocator.record_stream(held[values[0]], values[1])
            elif kind == "synchronize":
                allocator.synchronize()
            else:
                allocator.empty_cache()
            levels.append([allocator.allocated_bytes, allocator.active_bytes, allocator.reserved_bytes])
        answer = {
            "levels": levels,
            "peaks": [allocator.peak_allocated_bytes, allocator.peak_active_bytes, allocator.peak_reserved_bytes],
            "retries": allocator.num_retries - before[0],
            "ooms": allocator.num_ooms - before[1],
            "segments": [
                [segment.address, segment.size, segment.stream, [list(block) for block in segment.blocks]]
                for segment in allocator.segments()
            ],
        }
        for block in held.values():
            allocator.free(block)
        for pool in range(self.num_pools):
            allocator.release_pool(pool)
        allocator.empty_cache()
        assert allocator.reserved_bytes == 0
        return answer


def from_the_first(answer: dict[str, Any]) -> dict[str, Any]:
    """Addresses count from the lowest segment: where the arena begins is the machine's doing."""
    first = min((segment[0] for segment in answer["segments"]), default=0)
    return {**answer, "segments": [[segment[0] - first, *segment[1:]] for segment in answer["segments"]]}


def test_it_is_pytorchs_own(oracle: Oracle) -> None:
    simulation = Simulation(oracle.options, oracle.fraction, oracle.num_pools)

    @settings(max_examples=NUM_EXAMPLES, derandomize=IS_REPEATABLE, suppress_health_check=list(HealthCheck))
    @given(sequences())
    @example(TWO_EQUAL_SEGMENTS)
    def check(requests: list[list[Any]]) -> None:
        real, ours = oracle.answer(requests), simulation.answer(requests)
        for request, here, there in zip(requests, ours["levels"], real["levels"], strict=True):
            assert here == there, request
        assert from_the_first(ours) == from_the_first(real)

    check()
