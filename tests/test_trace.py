from __future__ import annotations

import contextlib
import errno
import json
import os
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from capture_folder import SEGMENT, CaptureFolder, training_run
from foretell.errors import TraceError
from foretell.protocol import native_log
from foretell.trace import SCHEMA, Trace, load, save
from foretell.units import MIB


def equal(one: Trace, other: Trace) -> bool:
    return all(getattr(one, f.name) == getattr(other, f.name) for f in fields(Trace))


def test_a_saved_trace_is_read_back_equal(tmp_path: Path) -> None:
    folder = training_run(tmp_path)
    folder.native(1, "cudaMalloc", SEGMENT, 2 * MIB, 0, 2 * MIB, time_us=1)
    folder.native(3, "kernel", 8, 1, 1, 256, 1024, 0, time_us=2)
    folder.call(native_log.LIBRARY_CALL, "cudnnBackendExecute", workspace_bytes=4096, device=1, time_us=3)
    for kind in native_log.KINDS:
        if kind.is_call and kind is not native_log.LIBRARY_CALL:
            values = {field.name: number % len(field.choices or range(99)) for number, field in enumerate(kind.fields)}
            folder.call(kind, kind.name, time_us=4, **values)
    folder.journal(
        "oom", 11, step=1, phase="backward", requested_bytes=7, message="CUDA out of memory.", where="t.py:3"
    )
    folder.journal("exception", 12, type="ValueError", message="no", where=None, is_oom=False)
    folder.journal("unknown_read", 13, bytes=4, where="t.py:9", what="aten::item", count=2)
    trace = folder.trace()
    save(trace, tmp_path / "x.trace")
    assert equal(load(tmp_path / "x.trace"), trace)
    assert len(trace.memory.time_us) == 8
    assert (trace.kernels.shared_bytes[0], trace.library.workspace_bytes[0], trace.driver.in_use[0]) == (
        1024,
        4096,
        2 * MIB,
    )


def test_windows_of_the_history_are_joined_with_their_own_stacks_each_of_them_once(tmp_path: Path) -> None:
    folder = training_run(tmp_path)  # two windows, both with line 7
    trace = folder.history(("alloc", SEGMENT + 1024, 512, 11), line=9).trace()
    assert list(trace.memory.stack) == [0] * 8 + [1]
    assert [trace.frames[frame] for stack in trace.stacks for frame in stack] == [
        ("train.py", 7, "main"), ("train.py", 9, "main"),
    ]  # fmt: skip


def test_a_process_on_the_gpu_without_a_journal_was_not_observed_and_is_named(tmp_path: Path) -> None:
    CaptureFolder(tmp_path, pid=200).native(1, "cudaMalloc", SEGMENT, 2 * MIB, 0, 2 * MIB, time_us=1)
    trace = training_run(tmp_path).trace()
    assert ["1 of the processes on the GPU did not load foretell's hooks" in text for text in trace.caveats] == [True]


def test_of_several_processes_the_one_that_held_the_most_is_taken(tmp_path: Path) -> None:
    CaptureFolder(tmp_path, pid=100).torch().end(0, 2 * MIB, (512, 2 * MIB))
    CaptureFolder(tmp_path, pid=200).torch().end(0, 8 * MIB, (512, 8 * MIB))
    trace = CaptureFolder(tmp_path).trace()
    assert (trace.pid, trace.num_gpu_processes) == (200, 2)


def test_half_a_line_and_records_that_a_killed_process_did_not_make_are_left_out(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch().step(0, 1, 0, 2 * MIB, (512, 2 * MIB))
    folder.native(1, "cudaMalloc", SEGMENT, 2 * MIB, 0, 2 * MIB)
    with (tmp_path / "journal-100.jsonl").open("a") as file:
        file.write('{"kind": "step", "ti')
    with (tmp_path / "native-100.bin").open("ab") as binary:
        binary.write(bytes(10 * native_log.RECORD.size) + b"half")
    trace = folder.trace()
    assert (len(trace.steps), len(trace.driver.time_us), trace.is_ended) == (1, 1, False)


def test_unimplemented_functions_of_the_native_log_and_the_journal_count_once(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch().native(5, "cufftExecC2C").native(5, "cusolverDnSgetrf")
    folder.journal("unimplemented", name="cufftExecC2C", operator="torch.fft.fft", where="t.py:4")
    named = {function.name: (function.operator, function.where) for function in folder.trace().unimplemented}
    assert named == {"cufftExecC2C": ("torch.fft.fft", "t.py:4"), "cusolverDnSgetrf": (None, None)}


def test_the_size_of_an_oom_without_one_is_read_from_pytorchs_words(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    folder.journal("oom", step=0, phase="forward", message="CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has")
    assert folder.trace().ooms[0].oom.requested_bytes == 2684354560


def test_what_is_not_a_zip_is_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "x.trace").write_text("hello")
    with pytest.raises(TraceError, match="not a trace"):
        load(tmp_path / "x.trace")


def test_a_foreign_zip_is_not_a_trace(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.trace", "w") as archive:
        archive.writestr("data.pkl", b"")
    with pytest.raises(TraceError, match="not a foretell trace"):
        load(tmp_path / "x.trace")


def test_a_newer_format_says_to_update(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.trace", "w") as archive:
        archive.writestr("trace.json", '{"schema": "foretell.trace/3"}')
    with pytest.raises(TraceError, match=rf"foretell.trace/3.*{SCHEMA}.*Update foretell"):
        load(tmp_path / "x.trace")


def test_an_older_format_says_to_run_again(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.trace", "w") as archive:
        archive.writestr("trace.json", '{"schema": "foretell.trace/1"}')
    with pytest.raises(TraceError, match=rf"foretell.trace/1.*{SCHEMA}.*foretell run --trace FILE"):
        load(tmp_path / "x.trace")


def test_every_kind_of_library_call_has_a_table_with_its_fields(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch()
    tables = {
        native_log.CONVOLUTION: "convolutions", native_log.MATRIX_PRODUCT: "products",
        native_log.COLLECTIVE: "collectives", native_log.RECURRENT: "recurrent", native_log.SPARSE: "sparse",
    }  # fmt: skip
    given = {}
    for kind in tables:
        given[kind] = {field.name: 1 + number % 2 for number, field in enumerate(kind.fields)}
        folder.call(kind, f"function of {kind.name}", time_us=9, **given[kind])
    trace = folder.end(0, MIB, (512, MIB)).trace()
    assert trace.library_functions() == {f"function of {kind.name}" for kind in tables}
    for kind, name in tables.items():
        table = getattr(trace, name)
        columns = {f.name: list(getattr(table, f.name)) for f in fields(table)}
        assert columns.pop("time_us") == [9]
        assert trace.names[columns.pop("name")[0]] == f"function of {kind.name}"
        assert columns == {field: [value] for field, value in given[kind].items()}


def test_memory_a_library_loads_is_not_its_workspace(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch().call(native_log.LIBRARY_LOADED, "cudnnCreate", code_bytes=7, device=1)
    trace = folder.call(native_log.GRAPH_LAUNCH, "cudaGraphLaunch", num_nodes=5).trace()
    assert trace.library_functions() == {"cudnnCreate", "cudaGraphLaunch"}
    assert (list(trace.library.workspace_bytes), list(trace.library.device)) == ([0, 0], [1, 0])


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no such trace.*x\.trace"):
        load(tmp_path / "x.trace")


def test_a_trace_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    save(training_run(tmp_path).trace(), path)
    whole = path.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError):
            load(path)


def test_a_trace_with_a_changed_byte_is_refused_or_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    trace = training_run(tmp_path).trace()
    save(trace, path)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 200)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(TraceError):
            assert equal(load(path), trace), f"byte {at}"


def test_a_trace_that_lacks_a_column_is_damaged(tmp_path: Path) -> None:
    save(training_run(tmp_path).trace(), tmp_path / "x.trace")
    with zipfile.ZipFile(tmp_path / "x.trace") as old, zipfile.ZipFile(tmp_path / "y.trace", "w") as new:
        for name in old.namelist():
            if name != "memory/size":
                new.writestr(name, old.read(name))
    with pytest.raises(TraceError, match=r"damaged.*memory/size"):
        load(tmp_path / "y.trace")


def test_a_trace_whose_numbers_point_nowhere_is_damaged(tmp_path: Path) -> None:
    trace = training_run(tmp_path).trace()
    trace.memory.stack[0] = len(trace.stacks) + 7
    save(trace, tmp_path / "x.trace")
    with pytest.raises(TraceError, match=r"damaged trace .*stacks: index"):
        load(tmp_path / "x.trace")


def test_an_estimate_is_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "foretell.estimate/1"}')
    with pytest.raises(TraceError, match="is JSON, not a trace"):
        load(tmp_path / "x.json")


def test_a_full_disk_leaves_the_old_trace_and_nothing_half_written(tmp_path: Path, monkeypatch: Any) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "x.trace").write_text("old")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TraceError, match="no space left"):
        save(training_run(tmp_path).trace(), target / "x.trace")
    assert [path.name for path in target.iterdir()] == ["x.trace"]
    assert (target / "x.trace").read_text() == "old"


def test_unknown_reads_of_the_native_log_count_only_where_no_journal_judges_them(tmp_path: Path) -> None:
    folder = (
        CaptureFolder(tmp_path).native(1, "cudaMalloc", SEGMENT, MIB, 0, MIB).native(6, "cudaMemcpyAsync", 4, SEGMENT)
    )
    assert [read.count for read in folder.trace().unknown_reads] == [1]
    assert folder.torch().trace().unknown_reads == ()


@pytest.mark.parametrize(("member", "size"), [("memory/size", 200 * MIB), ("trace.json", 40 * MIB)])
def test_a_bomb_is_refused_before_it_is_unpacked(member: str, size: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.trace", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        with archive.open(member, "w") as file:
            for _ in range(size // MIB):
                file.write(bytes(MIB))
        if member != "trace.json":
            archive.writestr("trace.json", "{}")
    limit = resident_bytes() + size // 4
    with pytest.raises(TraceError, match="would unpack to more than"):
        load(tmp_path / "x.trace")
    assert resident_bytes() < limit


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_member_that_has_more_than_the_archive_says_is_damaged(tmp_path: Path) -> None:
    save(training_run(tmp_path).trace(), tmp_path / "x.trace")
    with zipfile.ZipFile(tmp_path / "x.trace") as archive:
        size = archive.getinfo("memory/size").file_size
    raw = (tmp_path / "x.trace").read_bytes()
    header = raw.rindex(b"memory/size") - 46
    assert raw[header : header + 4] == b"PK\x01\x02"
    (tmp_path / "x.trace").write_bytes(raw[: header + 24] + (size - 8).to_bytes(4, "little") + raw[header + 28 :])
    with pytest.raises(TraceError, match="Bad CRC-32"):
        load(tmp_path / "x.trace")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torch_version": 7}, r"Trace.torch_version: 7 is not"),
        ({"steps": {}}, r"Trace.steps: {} is not a list"),
        ({"frames": [["a.py", "1", "f"]]}, r"Trace.frames\[0\]\[1\]: '1' is not an integer"),
        ({"pid": 10**30}, r"Trace.pid: 1000000000000000000000000000000 is not a number of 64 bits"),
        ({"context_bytes": -1}, r"Trace.context_bytes: -1 is not a number of bytes"),
        ({"seconds": {"total": float("nan")}}, r"Trace.seconds.total: nan is not a finite number"),
        ({"memory": []}, r"Trace has no memory"),
        ({"tables": []}, r"_Shapes.tables: \[\] is not an object"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(training_run(tmp_path).trace(), tmp_path / "x.trace")
    with zipfile.ZipFile(tmp_path / "x.trace") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["trace.json"] = json.dumps({**json.loads(members["trace.json"]), **change}).encode()
    with zipfile.ZipFile(tmp_path / "y.trace", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(TraceError, match=rf"y.trace is a damaged trace .*{message}"):
        load(tmp_path / "y.trace")
