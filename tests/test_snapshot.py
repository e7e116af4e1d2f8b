"""The snapshot foretell writes against the one PyTorch writes itself, and against what reads such files."""

from __future__ import annotations

import base64
import importlib.util
import pickle
import pickletools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import SEGMENT, CaptureFolder, training_run
from conftest import FEATURES, ZOO, lines_of
from foretell.allocator import AllocatorSettings
from foretell.cli import main
from foretell.errors import UnsupportedError
from foretell.records import Attribution, Block, Span
from foretell.report.snapshot import render, snapshot_of
from foretell.runs.command import find_torch
from foretell.trace import Trace, load, save
from foretell.units import MIB
from warm_runs import WarmRuns

Snapshot = dict[str, Any]
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# What the page's own reader of pickles knows (torch/utils/viz/MemoryViz.js).
OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_DICT", "SETITEM", "SETITEMS",
    "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE1", "TUPLE2",
}  # fmt: skip
needs_cuda = pytest.mark.skipif(
    getattr(find_torch(sys.executable), "cuda", None) is None, reason="the virtual GPU is for CUDA builds"
)


def memory_viz() -> Any:
    """torch.cuda._memory_viz, which needs nothing else of torch."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.submodule_search_locations is not None
    path = Path(torch.submodule_search_locations[0]) / "cuda" / "_memory_viz.py"
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(warm_runs: WarmRuns, workload: str, folder: Path, **options: Any) -> tuple[Snapshot, Snapshot]:
    """Ours and PyTorch's, of one run."""
    path = folder / "run.trace"
    run = warm_runs.run(FEATURES / "memory_snapshot.py", str(ZOO / f"{workload}.py"), trace=path, **options)
    assert run.code == 0, run.tail()
    theirs = pickle.loads(base64.b64decode(lines_of(run, "SNAPSHOT")[0]))
    return pickle.loads(render(load(path))), theirs


def without(snapshot: Snapshot, *keys: str) -> list[dict[str, Any]]:
    """Segments and blocks, but for these keys."""

    def cut(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key not in keys}

    return [{**cut(each), "blocks": [cut(block) for block in each["blocks"]]} for each in snapshot["segments"]]


@needs_cuda
@pytest.mark.parametrize("workload", ["mlp_adam", "gpt_sdpa", "cnn_resnet", "stream_prefetcher"])
def test_segments_and_blocks_are_those_pytorch_itself_tells(warm_runs: WarmRuns, tmp_path: Path, workload: str) -> None:
    ours, theirs = both(warm_runs, workload, tmp_path)
    assert without(ours, "frames") == without(theirs, "frames")
    assert len([b for s in ours["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]) >= 10


@needs_cuda
def test_so_they_are_with_expandable_segments(warm_runs: WarmRuns, tmp_path: Path) -> None:
    ours, theirs = both(warm_runs, "gpt_sdpa", tmp_path, environment=EXPANDABLE)
    assert without(ours, "frames") == without(theirs, "frames")
    assert all(segment["is_expandable"] for segment in ours["segments"])


def test_so_they_are_on_the_cpu_engine(warm_runs: WarmRuns, tmp_path: Path) -> None:
    ours, theirs = both(warm_runs, "mlp_adam", tmp_path, engine="cpu")
    # The device written in Python does not keep what was asked for.
    keys = ("frames", "requested_size")
    assert without(ours, *keys) == without(theirs, *keys)


@needs_cuda
def test_pytorchs_tools_say_the_same_of_both(warm_runs: WarmRuns, tmp_path: Path) -> None:
    viz = memory_viz()
    ours, theirs = both(warm_runs, "cnn_resnet", tmp_path)
    assert viz.segsum(ours) == viz.segsum(theirs)
    assert lines_of_trace(viz, ours) == lines_of_trace(viz, theirs)
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "snapshot.pickle" in plot(ours)
    for snapshot in (ours, theirs):
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                block["frames"] = []  # foretell's own are not in ours
    assert viz.memory(ours, str) == viz.memory(theirs, str)
    assert viz.segments(ours, str) == viz.segments(theirs, str)


def lines_of_trace(viz: Any, snapshot: Snapshot) -> list[str]:
    """Without the count of entries, and without those for snapshots: the history goes on after the script's own."""
    events = [event for event in snapshot["device_traces"][0] if event["action"] != "snapshot"]
    return list(viz.trace({**snapshot, "device_traces": [events]}).splitlines())


@needs_cuda
@pytest.mark.parametrize("environment", [{}, EXPANDABLE])
def test_the_history_leads_from_nothing_to_the_segments(
    warm_runs: WarmRuns, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The page plays it backwards from the segments (simulate_memory of MemoryViz.js)."""
    ours, _ = both(warm_runs, "gpt_sdpa", tmp_path, environment=environment)
    reserved = sum(segment["total_size"] for segment in ours["segments"])
    blocks = [block for segment in ours["segments"] for block in segment["blocks"] if block["state"] != "inactive"]
    held = {block["address"]: block["requested_size"] for block in blocks}
    for event in reversed(ours["device_traces"][0]):
        action, address, size = event["action"], event["addr"], event["size"]
        if action == "alloc":
            assert held.pop(address) == size
        elif action == "free_completed":
            assert address not in held
            held[address] = size
        elif action.startswith("segment"):
            reserved += size if action in ("segment_free", "segment_unmap") else -size
    assert (held, reserved) == ({}, 0)


def test_the_page_can_read_the_file(tmp_path: Path) -> None:
    content = render(training_run(tmp_path).trace())
    opcodes = list(pickletools.genops(content))
    assert (opcodes[0][0].name, opcodes[0][1]) == ("PROTO", 4)
    assert {opcode.name for opcode, _, _ in opcodes} <= OPCODES


def test_steps_are_annotations(tmp_path: Path) -> None:
    notes = snapshot_of(training_run(tmp_path).trace())["external_annotations"]
    assert [(note["stage"], note["name"], note["time_us"]) for note in notes] == [
        ("START", "step 0", 1),
        ("END", "step 0", 6),
        ("START", "step 1", 6),
        ("END", "step 1", 10),
    ]


def test_a_free_is_shown_with_the_place_of_its_allocation_and_foretells_own_frames_are_not(tmp_path: Path) -> None:
    trace = training_run(tmp_path).trace()
    ours = ("/usr/lib/foretell/inside/values.py", 1, "f")
    trace = replace(trace, frames=(ours, ("train.py", 7, "main")), stacks=((0, 1),) * 2)
    trace.memory.stack[3] = trace.memory.stack[4] = -1
    trace.memory.stack[2] = 0
    events = snapshot_of(trace)["device_traces"][0]
    expected = [{"filename": "train.py", "line": 7, "name": "main"}]
    assert [event["frames"] for event in events[2:5]] == [expected] * 3


def test_running_out_of_memory_says_what_was_free_on_the_card(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(("segment_alloc", SEGMENT, 2 * MIB, 1), ("oom", 5 * MIB, 20 * MIB, 2))
    snapshot = snapshot_of(folder.trace())
    assert snapshot["device_traces"][0][1]["device_free"] == 5 * MIB
    assert "20.0MiB requested, 5.0MiB free in CUDA" in memory_viz().trace(snapshot)


def test_a_block_that_waits_for_another_stream_is_pending(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.history(
        ("segment_alloc", SEGMENT, 20 * MIB, 1), ("alloc", SEGMENT, 2 * MIB, 2), ("free_requested", SEGMENT, 2 * MIB, 3)
    )
    (segment,) = snapshot_of(folder.trace())["segments"]
    assert [(block["state"], block["size"]) for block in segment["blocks"]] == [
        ("active_pending_free", 2 * MIB),
        ("inactive", 18 * MIB),
    ]
    assert (segment["allocated_size"], segment["active_size"], segment["segment_type"]) == (0, 2 * MIB, "large")


# --- with who holds what ----------------------------------------------------------------------------------------------


def block(begin: int, end: int | None, **changes: Any) -> Block:
    values: dict[str, Any] = {
        "address": SEGMENT, "bytes": 1024, "requested_bytes": 1000, "category": "parameter", "name": "weight",
        "module": "Net.layer", "operator": "aten.empty", "phase": "other", "step": 0, "where": "train.py:7",
    }  # fmt: skip
    return Block(begin=begin, end=end, **{**values, **changes})


def attributed() -> Attribution:
    """Of training_run."""
    inside = {"address": SEGMENT + 1024, "category": "activation", "name": None}
    blocks = (block(1, None), block(2, 3, **inside), block(5, 6, **inside, step=1))
    return Attribution(
        device=0,
        num_events=8,
        blocks=blocks,
        spans=(
            Span(begin=0, step=0, phase="other"),
            Span(begin=2, step=0, phase="forward"),
            Span(begin=8, step=1, phase="backward"),  # after the last event
        ),
        reserved=((0, 2 * MIB),),
        peak_event=2,
        at_peak=(1, 0),
        fragmentation_bytes=0,
        slack_bytes=0,
        segments=(),
    )


def test_blocks_have_the_colour_of_their_category_and_say_whose_they_are(tmp_path: Path) -> None:
    snapshot = snapshot_of(training_run(tmp_path).trace(), attributed())
    events = snapshot["device_traces"][0]
    assert [e["category"] for e in events] == [
        "unknown", "parameter", "activation", "unknown", "unknown", "activation", "unknown", "unknown",
    ]  # fmt: skip
    frames = [(frame["filename"], frame["name"]) for frame in snapshot["segments"][0]["blocks"][0]["frames"]]
    assert frames == [
        ("<category>", "parameter weight"),
        ("<operator>", "aten.empty"),
        ("<nn.Module>", "Net.layer"),
        ("<phase>", "other"),
        ("train.py", "main"),
    ]


def test_phases_are_annotations(tmp_path: Path) -> None:
    notes = snapshot_of(training_run(tmp_path).trace(), attributed())["external_annotations"]
    phases = [(note["stage"], note["name"], note["time_us"]) for note in notes if "step" not in note["name"]]
    assert phases == [("START", "forward", 3), ("END", "forward", 9)]


def test_an_attribution_of_another_device_is_not_used(tmp_path: Path) -> None:
    other = replace(attributed(), device=1)
    assert "category" not in snapshot_of(training_run(tmp_path).trace(), other)["device_traces"][0][1]


# --- as a command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    (tmp_path / "capture").mkdir()
    path = tmp_path / "run.trace"
    save(training_run(tmp_path / "capture").trace(), path)
    return path


def test_report_writes_it(trace_path: Path, tmp_path: Path) -> None:
    assert main(["report", str(trace_path), "--snapshot", str(tmp_path / "run.pickle")]) == 0
    snapshot = pickle.loads((tmp_path / "run.pickle").read_bytes())
    assert memory_viz().segsum(snapshot).splitlines()[1:3] == ["segments: 1", "total_reserved: 2.0MiB"]


def test_what_cannot_be_written_is_said_before_the_work(trace_path: Path, tmp_path: Path, capsys: Any) -> None:
    for target, message in ((tmp_path / "no" / "x.pickle", "no such folder"), (tmp_path, "is a folder")):
        assert main(["report", str(trace_path), "--snapshot", str(target)]) == 2
        assert main(["run", "--snapshot", str(target), "missing.py"]) == 2
        shown = capsys.readouterr()
        assert shown.err.count(message) == 2
        assert shown.out == ""


@pytest.mark.parametrize("content", [b"", b"no trace", b"PK\x03\x04 cut off"])
def test_a_foreign_file_is_named(content: bytes, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "foreign.trace"
    path.write_bytes(content)
    assert main(["report", str(path), "--snapshot", str(tmp_path / "x.pickle")]) == 2
    assert "foreign.trace is not a trace" in capsys.readouterr().err
    assert not (tmp_path / "x.pickle").exists()


def test_an_allocator_that_hides_its_blocks_gives_no_snapshot(tmp_path: Path) -> None:
    trace: Trace = replace(training_run(tmp_path).trace(), allocator=AllocatorSettings(is_native=False))
    with pytest.raises(UnsupportedError, match="cannot make a snapshot of this run: cudaMallocAsync"):
        render(trace)
