"""Small rules that need neither torch nor a GPU."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from foretell.inside.files.protected import Protected
from foretell.inside.ranks.joining import rank_of
from foretell.inside.stop.loaders import _expects_an_end
from foretell.inside.watch.history import window
from foretell.inside.watch.oom import format_size
from foretell.inside.where import where_raised
from foretell.protocol.history import COLUMNS
from foretell.protocol.marks import NOTHING
from foretell.rules.architectures import has_kernels_for


@pytest.mark.parametrize(
    ("capability", "arch_list", "expected"),
    [
        ((8, 6), ["sm_80"], True),  # a binary runs on a higher minor version
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),  # but not on another major one
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX does
        ((6, 1), ["sm_75", "compute_75"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100"], True),
        ((10, 0), ["sm_100a", "sm_120"], True),
    ],
)
def test_a_card_needs_a_binary_of_its_major_version_or_ptx(
    capability: tuple[int, int], arch_list: list[str], expected: bool
) -> None:
    assert has_kernels_for(capability, arch_list) is expected


@pytest.mark.parametrize(
    ("args", "kwargs", "environment", "expected"),
    [
        (("nccl",), {}, {}, (None, 1)),
        (("nccl",), {}, {"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        (("nccl",), {"world_size": 1, "rank": 0}, {"RANK": "2", "WORLD_SIZE": "4"}, (0, 1)),
        (("nccl", "tcp://localhost:1?rank=0&world_size=3"), {}, {}, (0, 3)),
        (("nccl", None, None, 2, 1), {}, {}, (1, 2)),
    ],
)
def test_rank_and_number_of_ranks_come_from_arguments_then_the_environment(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    environment: dict[str, str],
    expected: tuple[int | None, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_of(args, kwargs) == expected


def test_a_window_of_the_history_has_each_stack_and_frame_once() -> None:
    frame = {"filename": "/home/me/train.py", "line": 3, "name": "step"}
    native = {"filename": "allocator.cpp", "line": 1, "name": "malloc"}
    alloc = {"action": "alloc", "addr": 512, "size": 100, "stream": 0, "time_us": 7}
    entries = [
        {**alloc, "frames": [native, frame]},
        {**alloc, "frames": [native, frame]},
        {**alloc, "action": "free_completed", "frames": []},
    ]
    written = window(0, entries)
    columns = {name: array(letter, written["columns"][name]).tolist() for name, letter in COLUMNS.items()}
    assert columns == {
        "time_us": [7, 7, 7],
        "action": [0, 0, 2],
        "address": [512, 512, 512],
        "size": [100, 100, 100],
        "stream": [0, 0, 0],
        "stack": [0, 0, NOTHING],
        "origin": [NOTHING, NOTHING, NOTHING],
    }
    assert (written["stacks"], written["frames"]) == ([[0]], [["/home/me/train.py", 3, "step"]])


def test_a_window_of_the_history_has_each_origin_once() -> None:
    alloc = {"action": "alloc", "addr": 512, "size": 100, "stream": 0, "time_us": 7, "frames": []}
    origin = ("aten.mm", None, None, "Net.linear", None, "forward")
    written = window(0, [{**alloc, "origin": origin}, alloc, {**alloc, "origin": origin}])
    assert array("i", written["columns"]["origin"]).tolist() == [0, NOTHING, 0]
    assert written["origins"] == [list(origin)]


class Endless:
    """Remembers the frame that asks for the next item."""

    def __init__(self) -> None:
        self.caller: FrameType | None = None
        self.answers: list[bool] = []

    def __iter__(self) -> Endless:
        return self

    def __next__(self) -> int:
        self.answers.append(_expects_an_end(sys._getframe(1)))
        if len(self.answers) > 1:
            raise StopIteration
        return 0


def test_a_for_loop_expects_an_end() -> None:
    items = Endless()
    for _ in items:
        pass
    assert items.answers == [True, True]


def test_enumerate_and_zip_in_a_for_loop_expect_an_end() -> None:
    first, second = Endless(), Endless()
    for _ in enumerate(zip(first, second)):  # noqa: B905 - python 3.10's zip
        pass
    assert first.answers == [True, True]
    assert second.answers == [True]


def test_a_bare_next_expects_no_end() -> None:
    items = Endless()

    def take() -> None:
        next(items)

    take()
    assert items.answers == [False]


def test_next_in_a_function_that_catches_the_end_expects_one() -> None:
    items = Endless()

    def take() -> None:
        try:
            next(items)
        except StopIteration:
            items.caller = None

    take()
    assert items.answers == [True]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(512, "512 bytes"), (2048, "2.00 KiB"), (20 << 20, "20.00 MiB"), (5 << 29, "2.50 GiB")],
)
def test_sizes_are_written_as_pytorch_writes_them(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


def test_caches_and_devices_are_really_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    monkeypatch.setenv("HOME", "/home/me")
    is_protected = Protected("/captures/1")
    exempt = ["/dev/null", "/proc/self/x", "/data/hf/hub/x", "/home/me/.cache/x", "/captures/1/overlay/x"]
    exempt += ["/home/me/project/__pycache__/x.pyc", "/tmp/torchinductor_me/x"]
    assert [path for path in exempt if is_protected(path)] == []
    assert is_protected("/home/me/project/model.pt")
    assert is_protected("/data/hf-models/model.pt")


def test_of_the_temp_folder_only_what_tempfile_made_is_really_written() -> None:
    is_protected = Protected("/captures/1")
    is_protected.made_by_tempfile("/tmp/tmpabc")
    assert not is_protected("/tmp/tmpabc/file")
    assert is_protected("/tmp/tmpabcd/file")
    assert is_protected("/tmp/checkpoints/model.pt")


def test_the_place_of_an_error_is_the_innermost_line_of_the_user() -> None:
    import json

    try:
        json.loads("{")
    except ValueError as error:
        where = where_raised(error.__traceback__)
    assert where is not None
    assert where.startswith(__file__ + ":")
