"""The search for the largest value that fits, with made-up jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.plan.search import Answer, Largest, largest

LIMIT = 10_000


class Asked:
    """Answers from a function of the value: bytes it needs, or None if the script fails."""

    def __init__(self, need: Callable[[int], int | None], *, width: int = 2) -> None:
        self.need = need
        self.width = width
        self.values: list[int] = []

    def __call__(self, values: Sequence[int]) -> list[Answer]:
        assert 0 < len(values) <= self.width
        assert not set(values) & set(self.values), "asked twice"
        self.values += values
        return [self.answer(value) for value in values]

    def answer(self, value: int) -> Answer:
        need = self.need(value)
        fits = None if need is None else need <= LIMIT
        return Answer(fits, need if fits else None)


def search(
    need: Callable[[int], int | None], values: range = range(1, 65537), *, start: int = 8, width: int = 2
) -> tuple[Largest, Asked]:
    asked = Asked(need, width=width)
    return largest(asked, values, start=start, limit_bytes=LIMIT, width=width), asked


@pytest.mark.parametrize("per_sample", [1, 3, 7, 90, 900])
@pytest.mark.parametrize("fixed", [0, 50, 5000])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_linear_memory_takes_few_questions(per_sample: int, fixed: int, width: int) -> None:
    found, asked = search(lambda n: fixed + per_sample * n, width=width)
    assert found == Largest(value=(LIMIT - fixed) // per_sample, above="memory", is_certain=True)
    assert len(asked.values) <= 17


def test_the_next_values_above_the_answer_are_asked_for() -> None:
    found, asked = search(lambda n: 100 * n)
    assert found.value == 100
    assert {100, 101, 102, 104} <= set(asked.values)


@given(
    fixed=st.integers(0, 12_000), per_sample=st.integers(1, 4000), jump=st.integers(1, 3000),
    low=st.integers(1, 30), count=st.integers(1, 3000), step=st.sampled_from([1, 2, 8, 10]),
    start=st.integers(1, 500), width=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=300)
def test_memory_that_grows_in_steps_gives_the_largest(
    fixed: int, per_sample: int, jump: int, low: int, count: int, step: int, start: int, width: int
) -> None:
    def need(n: int) -> int:
        return fixed + (per_sample * n // jump) * jump  # plateaus

    values = range(low, low + count * step, step)
    found, asked = search(need, values, start=start, width=width)
    fitting = [value for value in values if need(value) <= LIMIT]
    assert found.value == max(fitting, default=None)
    assert found.above == ("memory" if len(fitting) < len(values) else "range")
    assert found.is_certain
    assert set(asked.values) <= set(values)


@given(
    bits=st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=200), start=st.integers(0, 300),
    width=st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=500)
def test_whatever_the_memory_does_the_answer_fits_and_those_above_do_not(
    bits: list[bool | None], start: int, width: int
) -> None:
    def need(n: int) -> int | None:
        return {True: 1, False: LIMIT + 1, None: None}[bits[n]]

    found, asked = search(need, range(len(bits)), start=start, width=width)
    fitting = [value for value in asked.values if bits[value]]
    assert found.value == max(fitting, default=None)
    if found.is_certain:
        above = -1 if found.value is None else found.value
        assert all(not bits[value] for value in range(above + 1, min(above + 3, len(bits))))
    else:
        assert len(asked.values) >= 80


def test_a_value_that_needs_less_than_a_smaller_one_is_found() -> None:
    """As attention with a sequence length that is a multiple of 8."""
    found, _ = search(lambda n: 100 * n + (500 if n % 8 else 0))
    assert found.value == 96  # 96 needs 9,600; 97 needs 10,200; 104 needs 10,400
    found, _ = search(lambda n: 95 * n + (900 if n % 8 else 0))
    assert found.value == 104  # 95 needs 9,925; 96 to 103 need more, but 96 and 104 fit


def test_values_with_which_the_script_fails_end_the_range() -> None:
    found, asked = search(lambda n: n if n <= 60 else None)
    assert found == Largest(value=60, above="failure", is_certain=True)
    assert len(asked.values) <= 20


def test_a_value_that_fails_among_others_is_passed_over() -> None:
    """Batch normalization takes no batch of one sample."""
    found, _ = search(lambda n: None if n == 1 else 4000 * n, start=1)
    assert found.value == 2
    found, _ = search(lambda n: None if n % 2 else 100 * n)
    assert found.value == 100


def test_nothing_fits() -> None:
    found, asked = search(lambda n: 20_000)
    assert found == Largest(value=None, above="memory", is_certain=True)
    assert 1 in asked.values
    found, _ = search(lambda n: None)
    assert found == Largest(value=None, above="failure", is_certain=True)


def test_everything_fits() -> None:
    found, asked = search(lambda n: 5)
    assert found == Largest(value=65536, above="range", is_certain=True)
    assert len(asked.values) <= 14
    assert max(asked.values) == 65536


def test_a_start_outside_the_range_is_moved_into_it() -> None:
    found, asked = search(lambda n: 100 * n, range(16, 64, 16), start=1000)
    assert found == Largest(value=48, above="range", is_certain=True)
    assert set(asked.values) <= {16, 32, 48}


def test_a_search_with_too_many_questions_ends_and_says_so() -> None:
    asked = Asked(lambda n: 3 * n)
    found = largest(asked, range(1, 65537), start=8, limit_bytes=LIMIT, most_questions=6)
    assert found == Largest(value=max(n for n in asked.values if 3 * n <= LIMIT), above="memory", is_certain=False)
    assert len(asked.values) <= 7


def test_no_prediction_leads_far_above_what_is_known() -> None:
    _, asked = search(lambda n: 5000 + n // 8)
    growth = [later / max(asked.values[:number]) for number, later in enumerate(asked.values) if number]
    assert max(growth) <= 64
