from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capture_folder import SEGMENT, CaptureFolder, training_run
from foretell.allocator import AllocatorSettings
from foretell.allocator.follow import ReplayError
from foretell.analysis.history import follow
from foretell.analysis.steps import most_waiting_bytes, step_peaks
from foretell.analysis.verdict import estimate_of
from foretell.records import Estimate
from foretell.trace import Trace
from foretell.units import MIB

DEFAULT = AllocatorSettings()


def held(folder: CaptureFolder, settings: AllocatorSettings = DEFAULT) -> list[tuple[int, int]]:
    history = follow(replace(folder.trace(), allocator=settings), 0)
    return list(zip(history.allocated, history.reserved, strict=True))


def test_blocks_count_rounded_to_512_bytes(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(("segment_alloc", SEGMENT, 2 * MIB, 1), ("alloc", SEGMENT, 1, 2), ("alloc", SEGMENT + 512, 513, 3))
    assert held(folder) == [(0, 2 * MIB), (512, 2 * MIB), (512 + 1024, 2 * MIB)]


def test_a_large_block_whose_rest_is_at_most_one_mebibyte_counts_whole(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(("segment_alloc", SEGMENT, 20 * MIB, 1), ("alloc", SEGMENT, 19 * MIB, 2))
    assert held(folder)[-1] == (20 * MIB, 20 * MIB)


def test_a_large_block_whose_rest_is_more_is_split(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(("segment_alloc", SEGMENT, 20 * MIB, 1), ("alloc", SEGMENT, 19 * MIB - 512, 2))
    assert held(folder)[-1] == (19 * MIB - 512, 20 * MIB)


def test_allocated_falls_when_a_free_is_requested_but_the_block_is_reused_only_when_completed(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(
        ("segment_alloc", SEGMENT, 2 * MIB, 1), ("alloc", SEGMENT, 512, 2), ("free_requested", SEGMENT, 512, 3)
    )
    assert held(folder)[-1] == (0, 2 * MIB)
    folder.history(("alloc", SEGMENT, 512, 4))
    with pytest.raises(ReplayError, match="no free block"):
        held(folder)


def test_what_waits_for_another_stream_is_counted_while_it_waits(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(
        ("segment_alloc", SEGMENT, 20 * MIB, 1),
        ("alloc", SEGMENT, 2 * MIB, 2),
        ("free_requested", SEGMENT, 2 * MIB, 3),
        ("free_completed", SEGMENT, 2 * MIB, 4),
        ("alloc", SEGMENT, 2 * MIB, 5),
    )
    assert most_waiting_bytes(folder.trace().memory, device=0) == 0
    folder.history(
        ("free_requested", SEGMENT, 2 * MIB, 6),
        ("alloc", SEGMENT + 2 * MIB, 4 * MIB, 7),
        ("free_completed", SEGMENT, 2 * MIB, 8),
    )
    assert most_waiting_bytes(folder.trace().memory, device=0) == 2 * MIB


def test_freed_neighbours_are_joined(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(
        ("segment_alloc", SEGMENT, 2 * MIB, 1),
        ("alloc", SEGMENT, 512, 2),
        ("alloc", SEGMENT + 512, 512, 3),
        ("free_requested", SEGMENT, 512, 4),
        ("free_completed", SEGMENT, 512, 5),
        ("free_requested", SEGMENT + 512, 512, 6),
        ("free_completed", SEGMENT + 512, 512, 7),
        ("segment_free", SEGMENT, 2 * MIB, 8),
    )
    assert held(folder)[-1] == (0, 0)


def test_segments_that_touch_are_not_joined(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    second = SEGMENT + 2 * MIB
    folder.history(
        ("segment_alloc", SEGMENT, 2 * MIB, 1),
        ("segment_alloc", second, 2 * MIB, 2),
        ("alloc", SEGMENT, 512, 3),
        ("free_requested", SEGMENT, 512, 4),
        ("free_completed", SEGMENT, 512, 5),
        ("segment_free", second, 2 * MIB, 6),
    )
    assert held(folder)[-1] == (0, 2 * MIB)


def test_an_expandable_segment_grows_and_shrinks(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(
        ("segment_map", SEGMENT, 2 * MIB, 1),
        ("segment_map", SEGMENT + 2 * MIB, 2 * MIB, 2),
        ("alloc", SEGMENT, 3 * MIB, 3),
        ("free_requested", SEGMENT, 3 * MIB, 4),
        ("free_completed", SEGMENT, 3 * MIB, 5),
        ("segment_unmap", SEGMENT + 2 * MIB, 2 * MIB, 6),
        ("alloc", SEGMENT, 2 * MIB, 7),
    )
    levels_held = held(folder, AllocatorSettings(is_expandable=True))
    assert levels_held[2] == (3 * MIB, 4 * MIB)
    assert levels_held[-1] == (2 * MIB, 2 * MIB)


def test_pages_of_an_expandable_segment_come_back_after_all_of_it_was_given_back(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    second = SEGMENT + 2 * MIB
    folder.history(
        ("segment_map", SEGMENT, 4 * MIB, 1),
        ("alloc", SEGMENT, 2 * MIB, 2),
        ("free_requested", SEGMENT, 2 * MIB, 3),
        ("free_completed", SEGMENT, 2 * MIB, 4),
        ("segment_unmap", SEGMENT, 4 * MIB, 5),
        ("segment_map", second, 2 * MIB, 6),
        ("alloc", second, 2 * MIB, 7),
    )
    assert held(folder, AllocatorSettings(is_expandable=True))[-1] == (2 * MIB, 2 * MIB)


def test_each_step_has_its_own_peak_and_what_the_one_before_left(tmp_path: Path) -> None:
    trace = training_run(tmp_path).trace()
    peaks, _ = step_peaks(trace, follow(trace, 0))
    assert [(p.index, p.peak_allocated_bytes, p.peak_reserved_bytes) for p in peaks] == [
        (0, 1024 + 4096, 2 * MIB),
        (1, 1024 + 2048, 2 * MIB),
    ]


def test_the_counters_decide_on_which_side_of_a_step_an_event_at_its_edge_falls(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(("segment_alloc", SEGMENT, 2 * MIB, 1), ("alloc", SEGMENT, 512, 2), ("alloc", SEGMENT + 512, 512, 5))
    # Its time says that the second allocation came after the step; what PyTorch counted says that it came before.
    folder.step(0, 4, 1024, 2 * MIB, (1024, 2 * MIB))
    trace = folder.trace()
    (peak,), _ = step_peaks(trace, follow(trace, 0))
    assert peak.peak_allocated_bytes == 1024


def test_a_history_that_never_reaches_what_was_counted_is_not_used(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(("segment_alloc", SEGMENT, 2 * MIB, 1), ("alloc", SEGMENT, 512, 2))
    folder.step(0, 4, 4096, 2 * MIB, (4096, 2 * MIB))
    trace = folder.trace()
    with pytest.raises(ReplayError, match="4096 allocated"):
        step_peaks(trace, follow(trace, 0))


@pytest.mark.parametrize(
    ("conf", "size", "rounded"),
    [
        ("", 1, 512),
        ("", 513, 1024),
        ("roundup_power2_divisions:4", 1200 * 512, 1280 * 512),
        ("roundup_power2_divisions:[1:2,64:4,>:8]", MIB + 1, MIB + MIB // 2),
        ("roundup_power2_divisions:[1:2,64:4,>:8]", 9 * MIB, 9 * MIB),
        ("roundup_power2_divisions:[1:2,64:4,>:8]", 65 * MIB, 80 * MIB),
        ("roundup_power2_divisions:[1:2,64:4,>:8]", 130 * MIB, 144 * MIB),
        ("roundup_power2_divisions:[64:4]", 9 * MIB, 10 * MIB),
        ("roundup_power2_divisions:[64:4]", 130 * MIB, 130 * MIB),
        ("max_split_size_mb:64", 9 * MIB + 1, 9 * MIB + 512),
    ],
)
def test_sizes_are_rounded_as_the_allocator_is_told_to(conf: str, size: int, rounded: int) -> None:
    assert AllocatorSettings.parse(conf).round_size(size) == rounded


def test_the_last_entry_was_overwritten_in_older_versions() -> None:
    conf = "roundup_power2_divisions:[1:2,64:4,>:8]"
    assert AllocatorSettings.parse(conf, "2.6.0+cu124").round_size(65 * MIB) == 72 * MIB
    assert AllocatorSettings.parse(conf, "2.15.0+cu132").round_size(65 * MIB) == 80 * MIB


def test_allocator_settings_are_read_from_pytorchs_own_syntax() -> None:
    settings = AllocatorSettings.parse("expandable_segments:True,max_split_size_mb:128,backend:native")
    assert (settings.is_expandable, settings.max_split_bytes, settings.is_native) == (True, 128 * MIB, True)
    assert not AllocatorSettings.parse("backend:cudaMallocAsync").is_native


PHASE_NAMES = ["other", "forward", "backward", "evaluation"]


def phases(folder: CaptureFolder, *begins: tuple[int, str, int]) -> CaptureFolder:
    """(number of allocations before it, phase, step)."""
    names = PHASE_NAMES
    return folder.owners(names, marks=[(0, count, names.index(phase), step, -1, -1) for count, phase, step in begins])


def block(offset: int, size: int, time_us: int) -> list[tuple[str, int, int, int]]:
    """A block that comes and goes."""
    address = SEGMENT + offset
    return [
        ("alloc", address, size, time_us),
        ("free_requested", address, size, time_us + 1),
        ("free_completed", address, size, time_us + 2),
    ]


LARGE = 0x7100_0000_0000


def with_evaluation(directory: Path, *, between_all: bool) -> Trace:
    """Three steps of 4 KiB; between the second and the third, or between all, an evaluation of 1 MiB."""
    evaluation = 1 << 20
    folder = CaptureFolder(directory).torch()
    marks: list[tuple[int, str, int]] = []
    folder.history(("segment_alloc", SEGMENT, 2 * MIB, 1), *block(0, 512, 2))
    count = 1
    peak = 0
    for step in range(3):
        time_us = 10 + 20 * step
        if step == 2 or (step == 1 and between_all):
            marks.append((count, "evaluation", step))
            folder.history(*block(0, evaluation, time_us))
            count += 1
            peak = evaluation
        marks.append((count, "forward", step))
        folder.history(*block(0, 4096, time_us + 5))
        marks.append((count + 1, "other", step))
        count += 1
        folder.step(step, time_us + 10, 0, 2 * MIB, (max(peak, 4096), 2 * MIB))
    marks.append((count, "evaluation", 3))
    reserved = 2 * MIB + 20 * MIB
    folder.history(("segment_alloc", LARGE, 20 * MIB, 80), ("alloc", LARGE, 12 * MIB, 81))
    phases(folder, *marks)
    return folder.end(12 * MIB, reserved, (12 * MIB, reserved)).trace()


def test_an_evaluation_between_two_steps_is_in_neither(tmp_path: Path) -> None:
    trace = with_evaluation(tmp_path, between_all=False)
    steps, outside = step_peaks(trace, follow(trace, 0))
    assert [(step.place, step.peak_allocated_bytes) for step in steps] == [(f"step {i}", 4096) for i in range(3)]
    assert [(each.place, each.peak_allocated_bytes, each.peak_reserved_bytes) for each in outside] == [
        ("before training", 512, 2 * MIB),
        ("evaluation after step 1", MIB, 2 * MIB),
        ("evaluation after step 2", 12 * MIB, 22 * MIB),
    ]


def test_what_is_evaluated_between_all_steps_is_part_of_them(tmp_path: Path) -> None:
    trace = with_evaluation(tmp_path, between_all=True)
    steps, outside = step_peaks(trace, follow(trace, 0))
    assert [step.peak_allocated_bytes for step in steps] == [4096, MIB, MIB]
    assert [each.place for each in outside] == ["before training", "evaluation after step 2"]


def test_a_step_that_was_not_finished_is_told_from_what_runs_after_the_last(tmp_path: Path) -> None:
    cases = (
        ("backward", 0, "step 2, unfinished"), ("forward", 1, "step 2, unfinished"),
        ("forward", 0, "after training"), ("other", 0, "after training"),
        (None, 0, "after training"),  # frees of the last step, in the phase in which it ended
    )  # fmt: skip
    for number, (phase, exit_status, place) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        captured = training_run(folder).history(*block(1024, 8192, 11))
        marks = [(0, "backward", 0), *([(3, phase, 2)] if phase else [])]
        trace = phases(captured, *marks).trace(exit_status=exit_status)
        steps, (last,) = step_peaks(trace, follow(trace, 0))
        assert ([step.peak_allocated_bytes for step in steps], last.place) == ([1024 + 4096, 1024 + 2048], place)
        assert last.peak_allocated_bytes == 1024 + 8192


def test_the_place_of_the_peak_is_where_reserved_memory_first_reached_it(tmp_path: Path) -> None:
    estimate = estimate_of(with_evaluation(tmp_path, between_all=False))
    assert (estimate.peak_place, estimate.peak_step) == ("evaluation after step 2", None)
    document = json.loads(estimate.to_json())
    assert document["peak_place"] == "evaluation after step 2"
    assert document["outside_steps"][1] == {
        "kind": "evaluation", "after_step": 1, "peak_allocated_bytes": MIB, "peak_reserved_bytes": 2 * MIB
    }  # fmt: skip
    assert Estimate.from_json(estimate.to_json()).outside_steps == estimate.outside_steps
