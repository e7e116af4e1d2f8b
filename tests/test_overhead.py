"""What is beside PyTorch's memory, and what the interval and the request are made of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from foretell import gpus
from foretell.records import CONVOLUTION_KINDS, Cause, Evidence, LibraryBytes, PeakMemory
from foretell.rules import guessed_context_bytes, is_eager, library_bytes, loaded_libraries, widened
from foretell.rules.interval import KINDS, Remainder, Spread, causes_of, remainders
from foretell.units import GIB, MIB

LIBRARIES = LibraryBytes(cublas=18 * MIB, cudnn=250 * MIB, nccl=64 * MIB, cudnn_batch_norm=38 * MIB)
SPREAD = Spread(mib=1.0, of_reserved=0.1, of_workspaces=2.0)
CALIBRATED = {
    kind: Remainder(below=SPREAD, above=SPREAD, request=SPREAD) for kind in KINDS
}


def causes(**changed: Any) -> dict[str, Cause]:
    plain = {
        "kind": "plain", "reserved_bytes": 100 * MIB, "context_bytes": 430 * MIB,
        "is_context_given": True, "library_bytes": 18 * MIB,
    }  # fmt: skip
    return {cause.name: cause for cause in causes_of(Evidence(**{**plain, **changed}), CALIBRATED)}


@pytest.mark.parametrize(
    ("functions", "mib", "names"),
    [
        ([], 0, ()),
        (["cublasLtMatmul"], 18, ("cuBLAS",)),
        (["cudnnBackendExecute", "cublasLtMatmul"], 268, ("cuBLAS", "cuDNN")),
        (["cudnnBatchNormalizationForwardTrainingEx"], 288, ("cuDNN",)),
    ],
)
def test_a_library_counts_once_it_is_used(functions: list[str], mib: int, names: tuple[str, ...]) -> None:
    assert loaded_libraries(LIBRARIES, functions) == (names, mib * MIB)


def test_a_large_context_means_that_modules_were_loaded_eagerly() -> None:
    a100 = gpus.find("a100-40gb")
    lazy, eager = library_bytes(a100, context_bytes=483 * MIB), library_bytes(a100, context_bytes=1429 * MIB)
    assert library_bytes(a100) == lazy
    assert (eager.cublas, eager.cudnn, eager.cudnn_batch_norm) == (0, 254 * MIB, 38 * MIB)
    assert library_bytes(a100, is_eager=True) == eager
    assert library_bytes(a100, context_bytes=483 * MIB, is_eager=True) == lazy


@pytest.mark.parametrize("name", ["rtx-3060", "rtx-4060", "rtx-5090"])
def test_geforce_cards_load_little_of_the_libraries_but_for_eager_loading(name: str) -> None:
    gpu = gpus.find(name)
    libraries = library_bytes(gpu, context_bytes=gpu.context_bytes + 100 * MIB)
    assert libraries.cublas + libraries.cudnn + libraries.cudnn_batch_norm < 64 * MIB
    assert library_bytes(gpu, is_eager=True).cudnn > 200 * MIB


def test_eager_loading_puts_all_kernels_into_the_context() -> None:
    a100, rtx_3090 = gpus.find("a100-40gb"), gpus.find("rtx-3090")
    assert guessed_context_bytes(a100, is_eager=False) == a100.context_bytes
    assert guessed_context_bytes(a100, is_eager=True) == a100.context_bytes + 946 * MIB  # 1,429 MiB were measured
    more = guessed_context_bytes(rtx_3090, is_eager=True) - rtx_3090.context_bytes
    assert 946 * MIB < more < GIB  # a little more code for that architecture


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, False), ({"CUDA_MODULE_LOADING": "LAZY"}, False), ({"CUDA_MODULE_LOADING": "eager"}, True)],
)
def test_the_job_says_how_kernels_are_loaded(variables: dict[str, str], expected: bool) -> None:
    assert is_eager(variables) is expected


def test_a_context_is_less_of_a_guess_where_one_like_it_was_measured() -> None:
    both = (causes(is_context_given=False, is_context_kind_measured=each) for each in (True, False))
    known, unknown = (each["context"] for each in both)
    assert known.below_bytes < unknown.below_bytes
    assert known.above_bytes < unknown.above_bytes
    assert known.request_bytes < unknown.request_bytes


def test_with_the_context_given_only_the_remainder_is_left() -> None:
    found = causes()
    assert set(found) == {"remainder"}
    assert found["remainder"].above_bytes == 11 * MIB


def test_a_guessed_context_and_its_libraries_are_causes() -> None:
    found = causes(is_context_given=False)
    assert set(found) == {"context", "libraries", "remainder"}
    assert found["libraries"].below_bytes == 18 * MIB  # they cannot take less than nothing
    # An empty process of CUDA 12 on an A100: measured 483 MiB, the guess is 426.
    assert found["context"].above_bytes > (483 - 430) * MIB


def test_convolutions_widen_by_how_far_other_workspaces_move_the_peak() -> None:
    found = causes(kind="ruled", workspaces_less_bytes=50 * MIB, workspaces_more_bytes=20 * MIB)
    assert (found["convolutions"].below_bytes, found["convolutions"].above_bytes) == (111 * MIB, 51 * MIB)
    assert "remainder" not in found


def test_what_waits_for_a_stream_may_only_take_less() -> None:
    streams = causes(waiting_bytes=7 * MIB)["streams"]
    assert (streams.below_bytes, streams.above_bytes, streams.request_bytes) == (7 * MIB, 0, 0)


def test_longer_batches_and_undocumented_workspaces_may_take_more() -> None:
    found = causes(shorter_bytes=3 * MIB, longer_bytes=5 * MIB, undocumented_bytes=8 * MIB)
    assert (found["lengths"].below_bytes, found["lengths"].request_bytes) == (3 * MIB, 5 * MIB)
    assert found["workspaces"].above_bytes == 8 * MIB


def test_interval_and_request_are_the_sums_of_their_causes() -> None:
    peak = PeakMemory(
        allocated_bytes=1, reserved_bytes=100, library_bytes=10, context_bytes=20, device_low_bytes=130,
        device_high_bytes=130, request_bytes=130,
    )  # fmt: skip
    a = Cause(name="context", below_bytes=5, above_bytes=7, request_bytes=8, why="")
    b = Cause(name="lengths", below_bytes=1, above_bytes=2, request_bytes=2, why="")
    found = widened(peak, [a, b])
    assert (found.device_low_bytes, found.device_high_bytes, found.request_bytes) == (124, 139, 140)
    assert widened(peak, [Cause(name="context", below_bytes=500, above_bytes=0, request_bytes=0, why="")]) is not None


_SIZES = strategies.integers(0, 1 << 40)
_EVIDENCE = strategies.builds(
    Evidence,
    kind=strategies.sampled_from(CONVOLUTION_KINDS),
    is_context_given=strategies.booleans(),
    are_libraries_measured=strategies.booleans(),
    **{each.name: _SIZES for each in fields(Evidence) if each.name.endswith("_bytes")},
)


@given(_EVIDENCE, _SIZES)
@settings(max_examples=200)
def test_the_request_is_what_its_causes_support_and_no_byte_more(evidence: Evidence, allocated_bytes: int) -> None:
    needed = evidence.reserved_bytes + evidence.library_bytes + evidence.context_bytes
    peak = PeakMemory(
        allocated_bytes=allocated_bytes, reserved_bytes=evidence.reserved_bytes, library_bytes=evidence.library_bytes,
        context_bytes=evidence.context_bytes, device_low_bytes=needed, device_high_bytes=needed, request_bytes=needed,
    )  # fmt: skip
    found = causes_of(evidence)
    made = widened(peak, found)
    assert made.device_bytes == needed
    assert made.request_bytes - needed == sum(cause.request_bytes for cause in found)
    assert made.device_high_bytes - needed == sum(cause.above_bytes for cause in found)
    assert 0 <= made.device_low_bytes <= needed <= made.device_high_bytes <= made.request_bytes
    assert len({cause.name for cause in found}) == len(found)
    # Take one cause away, and the request falls by just that much.
    for cause in found:
        others = widened(peak, [each for each in found if each is not cause])
        assert made.request_bytes - others.request_bytes == cause.request_bytes


def test_the_shipped_constants_can_be_read_and_widen_in_order() -> None:
    evidence = Evidence(
        kind="plain", reserved_bytes=GIB, context_bytes=0, is_context_given=True,
        library_bytes=0,
    )  # fmt: skip
    for kind in KINDS:
        remainder = remainders()[kind]
        assert remainder.above.bytes_for(evidence, "above") > 0
        assert remainder.below.bytes_for(evidence, "below") > 0
