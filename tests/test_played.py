"""A step that is played from a forward pass: by hand, and against the virtual GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from foretell import gpus
from foretell.features import features_from
from foretell.inside.played import Operator, Settings, Tape, reserved_bytes
from foretell.learn.draws import draw
from foretell.learn.processes import LABEL_GPU, Worker
from foretell.plain import to_plain
from foretell.rules.reductions import column_sums_bytes
from foretell.units import MIB

PLAIN = Settings(
    num_states=0, num_temporaries=0, works_on_lists=True, zero_grad="before_forward", keeps_gradients=False,
    earlier_share=0.0, product_bytes=0, is_product_kept=True,
)  # fmt: skip
WEIGHT, INPUT, HIDDEN, RESULT, LOSS = range(5)


def tape(*, saves: bool = True) -> Tape:
    """A weight of 64 MiB, and three operators: hidden = weight and input, result = f(hidden), loss."""
    reads = [(INPUT, 0, 32 * MIB, False, False), (WEIGHT, 0, 64 * MIB, True, False)]
    first = Operator("scale", reads, [(HIDDEN, 128 * MIB)])
    second = Operator(
        "f", [(HIDDEN, 0, 128 * MIB, True, False)], [(RESULT, 16 * MIB)],
        saves=[HIDDEN] if saves else [], frees=[] if saves else [HIDDEN],
    )  # fmt: skip
    third = Operator("g", [(RESULT, 0, 16 * MIB, True, False)], [(LOSS, 512)])
    return Tape(
        operators=[first, second, third], constants={WEIGHT: (64 * MIB, True)}, inputs=[(INPUT, 32 * MIB)],
        results={RESULT}, loss=LOSS,
    )  # fmt: skip


def test_the_blocks_of_a_step_are_added_up() -> None:
    # When `f` runs backward: weight, input, hidden, result, and the gradients of result and hidden; 2 MiB for the loss
    # and its gradient. The gradient of the weight then takes what was hidden's.
    assert reserved_bytes(tape(), PLAIN) == (64 + 32 + 128 + 16 + 16 + 128 + 2) * MIB


def test_what_is_not_saved_is_free_before_the_backward_pass() -> None:
    assert reserved_bytes(tape(saves=False), PLAIN) < reserved_bytes(tape(), PLAIN)


def test_a_larger_batch_scales_what_is_not_a_parameter() -> None:
    assert reserved_bytes(tape(), PLAIN, ratio=3) == (64 + 3 * (32 + 128 + 16 + 16 + 128) + 2) * MIB


@pytest.mark.parametrize(
    "change",
    [{"num_states": 2}, {"keeps_gradients": True}, {"earlier_share": 2.0}, {"num_states": 2, "num_temporaries": 3}],
)
def test_states_gradients_that_are_kept_and_earlier_passes_take_more(change: dict[str, Any]) -> None:
    assert reserved_bytes(tape(), replace(PLAIN, **change)) >= reserved_bytes(tape(), PLAIN) + 32 * MIB


@pytest.mark.parametrize(("kind", "seed"), [("mlp", 3), ("cnn", 1), ("encoder", 1), ("torchvision", 1), ("timm", 0)])
def test_a_played_step_reserves_what_the_virtual_gpu_reserves(worker: Worker, kind: str, seed: int) -> None:
    """Without the workspaces of cuDNN, which are rules there and asked for on the virtual GPU: jobs with few."""
    chosen = draw((kind,), 1, seed=seed)[0]
    answer = worker.ask({"draw": to_plain(replace(chosen, optimizer="Adam", precision="float32"))})
    job = features_from({"source": "model", **answer["features"]})
    assert job.played_workspace_bytes == pytest.approx(answer["reserved_bytes"], rel=0.05)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(gpus.find(LABEL_GPU)) as started:
        yield started


def test_a_bias_over_many_rows_is_added_up_in_parts() -> None:
    # 5,120 rows make 320 parts of 32 lanes; seen on the virtual GPU as an A100.
    assert column_sums_bytes(5120, 448) == 4 * 448 * 32 * 320
    assert column_sums_bytes(5120, 379) == column_sums_bytes(100, 448) == 0
