"""Which attention kernel a card takes, and why not another one (rules/attention.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretell.rules.attention import Attention, Backend, Operand, Platform, choose

SIDE = Operand(shape=(2, 8, 128, 64), dtype="float16")
PLAIN = Attention(query=SIDE, key=SIDE, value=SIDE)
RTX_3060 = Platform(compute_capability=(8, 6), torch_version=(2, 15))
H100 = replace(RTX_3060, compute_capability=(9, 0))


def of(**unlike: Any) -> Attention:
    side = replace(SIDE, **unlike)
    return Attention(query=side, key=side, value=side)


@pytest.mark.parametrize(
    ("attention", "backend", "why_not_flash"),
    [
        (PLAIN, "flash", None),
        (of(dtype="float32"), "efficient", "not in half precision"),
        (of(dtype="float64"), "math", "not in half precision"),
        (replace(PLAIN, has_mask=True), "efficient", "a mask"),
        (of(shape=(2, 8, 128, 264)), "efficient", "heads wider than 256"),
        (of(shape=(2, 8, 128, 200)), "efficient", "heads too wide for a gradient on this card"),
        (replace(of(shape=(2, 8, 128, 200)), needs_grad=False), "flash", None),
        (of(shape=(2, 8, 128, 256)), "flash", None),
        (replace(of(shape=(2, 8, 128, 256)), dropout=0.1), "efficient", "heads too wide for a gradient on this card"),
        (of(shape=(8, 128, 64)), "math", "not four dimensions"),
        (of(shape=(2, 8, 0, 64)), "math", "an empty sequence"),
        (of(last_stride=128), "math", "rows that are not contiguous"),
        (replace(PLAIN, value=replace(SIDE, shape=(2, 8, 128, 32))), "efficient", "widths that differ"),
        (replace(PLAIN, key=replace(SIDE, dtype="bfloat16")), "math", "operands of several types"),
        (
            replace(PLAIN, is_causal=True, query=replace(SIDE, shape=(2, 8, 64, 64))),
            "efficient",
            "causal, with queries and keys of different lengths",
        ),
    ],
)
def test_the_first_kernel_whose_constraints_are_met_is_taken(
    attention: Attention, backend: Backend, why_not_flash: str | None
) -> None:
    choice = choose(attention, RTX_3060)
    assert (choice.backend, choice.why_not.get("flash")) == (backend, why_not_flash)


def test_groups_of_queries_go_to_flash_and_from_2_14_on_to_memory_efficient_attention() -> None:
    few = replace(SIDE, shape=(2, 2, 128, 64))
    grouped = Attention(query=SIDE, key=few, value=few, enables_gqa=True)
    assert choose(grouped, RTX_3060).backend == "flash"
    assert choose(replace(grouped, enables_gqa=False), RTX_3060).backend == "math"
    masked = replace(grouped, has_mask=True)
    assert choose(masked, RTX_3060).backend == "efficient"
    assert choose(masked, replace(RTX_3060, torch_version=(2, 13))).backend == "math"


def test_newer_cards_prefer_cudnn_unless_told_otherwise() -> None:
    assert choose(PLAIN, H100).backend == "cudnn"
    assert choose(PLAIN, replace(H100, prefers_cudnn=False)).backend == "flash"
    assert choose(replace(PLAIN, dropout=0.1), H100).backend == "flash"
    assert choose(replace(PLAIN, dropout=0.1), H100).why_not["cudnn"] == "a dropout that is no sixteenth"


def test_a_kernel_that_is_switched_off_is_not_taken() -> None:
    without_flash = replace(RTX_3060, enabled=RTX_3060.enabled - {"flash"})
    assert choose(PLAIN, without_flash).backend == "efficient"
    assert choose(PLAIN, without_flash).why_not["flash"] == "switched off"
    only_cudnn = replace(RTX_3060, enabled=frozenset({"cudnn"}))
    assert choose(PLAIN, only_cudnn).backend == "cudnn"


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "backend"),
    [
        ((7, 5), "float16", 64, "efficient"),
        ((7, 5), "float16", 63, "math"),
        ((7, 5), "float32", 63, "efficient"),
        ((7, 5), "bfloat16", 64, "math"),
        ((6, 1), "float16", 63, "efficient"),
    ],
)
def test_cards_before_ampere_take_memory_efficient_attention_where_the_width_is_aligned(
    capability: tuple[int, int], dtype: str, width: int, backend: Backend
) -> None:
    platform = replace(RTX_3060, compute_capability=capability)
    choice = choose(of(dtype=dtype, shape=(2, 8, 128, width)), platform)
    assert (choice.backend, choice.why_not["flash"]) == (backend, "a card before Ampere")
