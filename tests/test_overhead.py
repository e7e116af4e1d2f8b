"""What is beside PyTorch's memory, and how sure the whole is."""

from __future__ import annotations

from typing import Any

import pytest

from foretell import gpus
from foretell.records import LibraryBytes
from foretell.rules import Overhead, library_bytes, overhead
from foretell.units import MIB

LIBRARIES = LibraryBytes(cublas=18 * MIB, cudnn=250 * MIB, nccl=64 * MIB, cudnn_batch_norm=38 * MIB)


def beside(**given: Any) -> Overhead:
    plain = {
        "context_bytes": 430 * MIB, "is_context_given": True, "libraries": LIBRARIES, "functions": [],
        "other_bytes": 0, "reserved_bytes": 0, "convolution_bytes": 0, "has_workspaces": False,
    }  # fmt: skip
    return overhead(**{**plain, **given})


@pytest.mark.parametrize(("name", "measured_mib"), [("a100-40gb", 1429), ("a100-40gb", 480), ("v100-16gb", 1343)])
def test_the_interval_of_a_guessed_context_holds_what_was_measured(name: str, measured_mib: int) -> None:
    guessed = beside(context_bytes=gpus.find(name).context_bytes, is_context_given=False)
    assert guessed.low_bytes <= measured_mib * MIB <= guessed.high_bytes


def test_a_given_context_is_not_uncertain() -> None:
    given, guessed = beside(is_context_given=True), beside(is_context_given=False)
    assert given.high_bytes - given.low_bytes < guessed.high_bytes - guessed.low_bytes - 1000 * MIB


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
    found = beside(functions=functions, other_bytes=5 * MIB)
    assert found.library_bytes == (mib + 5) * MIB
    assert found.library_names == names


def test_the_request_is_beyond_the_interval_and_the_interval_around_the_estimate() -> None:
    for convolution_bytes, has_workspaces in ((0, False), (100 * MIB, False), (100 * MIB, True)):
        found = beside(reserved_bytes=8000 * MIB, convolution_bytes=convolution_bytes, has_workspaces=has_workspaces)
        estimate = found.context_bytes + found.library_bytes
        assert found.low_bytes < estimate < found.high_bytes < found.request_bytes


@pytest.mark.parametrize("name", ["a100-40gb", "h100-80gb", "v100-16gb"])
def test_data_centre_cards_load_much_of_cudnn(name: str) -> None:
    assert library_bytes(gpus.find(name)).cudnn > 200 * MIB


@pytest.mark.parametrize("name", ["rtx-3060", "rtx-4060", "rtx-5090"])
def test_others_load_little(name: str) -> None:
    libraries = library_bytes(gpus.find(name))
    assert libraries.cublas + libraries.cudnn + libraries.cudnn_batch_norm < 64 * MIB
