from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_folder import SEGMENT, CaptureFolder, device, training_run
from foretell import gpus
from foretell.analysis.verdict import estimate_of
from foretell.api import Run, find_need
from foretell.cli.show import exit_code
from foretell.errors import NothingOnGpuError, ScriptError, UnsupportedError
from foretell.protocol.native_log import (
    ALLOCATION,
    CONVOLUTION,
    ENTRIES,
    FREE,
    LIBRARY_CALL,
    NO_ADDRESS_SPACE,
    SPARSE,
    WORKSPACE_SOURCES,
)
from foretell.records import EndedBy, LibraryBytes, Together
from foretell.trace import from_capture
from foretell.units import MIB

LIBRARIES = LibraryBytes(cublas=18 * MIB, cudnn=263 * MIB, nccl=64 * MIB)


def oom(folder: CaptureFolder, time_us: int) -> CaptureFolder:
    return folder.journal(
        "oom", time_us, step=1, phase="backward", requested_bytes=4096, message="CUDA out of memory.", where="t.py:3"
    )


def uncaught_oom(folder: CaptureFolder) -> CaptureFolder:
    message = "CUDA out of memory. Tried to allocate 4.00 KiB. GPU 0 has"
    return folder.journal("exception", 12, type="torch.OutOfMemoryError", message=message, where="t.py:3", is_oom=True)


def test_a_run_that_ended_well_fits_with_pytorchs_own_peaks(tmp_path: Path) -> None:
    estimate = estimate_of(training_run(tmp_path).trace())
    assert (estimate.verdict, estimate.oom, estimate.peak_step) == ("fits", None, 0)
    assert (estimate.peak.allocated_bytes, estimate.peak.reserved_bytes) == (5120, 2 * MIB)
    assert [step.peak_allocated_bytes for step in estimate.steps] == [5120, 3072]
    assert estimate.peak.device_bytes == 2 * MIB + 160 * MIB
    assert (estimate.torch_version, estimate.cuda_version) == ("2.15.0+cu132", "13.2")


def test_the_time_of_the_analysis_is_part_of_the_total(tmp_path: Path) -> None:
    result = training_run(tmp_path).result()
    trace = replace(from_capture(result), seconds={"total": 2.0, "script": 1.5, "analysis": 0.25})
    seconds = Run(job=result.job, trace=trace).estimate.seconds
    assert seconds["analysis"] > 0.25
    assert seconds["total"] - 2.0 == pytest.approx(seconds["analysis"] - 0.25)
    assert seconds["script"] == 1.5


def test_without_a_whole_history_the_peaks_of_steps_are_those_since_the_beginning(tmp_path: Path) -> None:
    folder = training_run(tmp_path)
    (tmp_path / "history-100-0.marshal").unlink()
    estimate = estimate_of(folder.trace())
    assert [step.peak_allocated_bytes for step in estimate.steps] == [5120, 5120]
    assert any("cumulative" in caveat for caveat in estimate.caveats)


def test_a_peak_after_the_last_step_is_in_no_step(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).torch().step(0, 6, 0, 0, (0, 0)).end(0, 2 * MIB, (512, 2 * MIB))
    assert estimate_of(folder.trace()).peak_step is None


def test_an_uncaught_oom_is_the_verdict_in_pytorchs_own_words(tmp_path: Path) -> None:
    estimate = estimate_of(uncaught_oom(oom(training_run(tmp_path), 11)).trace(exit_status=1))
    assert estimate.verdict == "oom"
    assert estimate.oom is not None
    assert (estimate.oom.step, estimate.oom.phase, estimate.oom.where) == (1, "backward", "t.py:3")
    assert estimate.oom.requested_bytes == 4096
    assert estimate.oom.message.startswith("CUDA out of memory. Tried to allocate")


def test_an_oom_caught_and_followed_by_a_step_is_a_caveat(tmp_path: Path) -> None:
    estimate = estimate_of(oom(training_run(tmp_path), 7).trace())
    assert estimate.verdict == "fits"
    told = "ran out of memory once (in step 1, backward, at t.py:3: 4.0 KiB requested), and the script went on"
    assert any(caveat.startswith(told) for caveat in estimate.caveats)
    again = estimate_of(oom(training_run(tmp_path), 8).trace())
    assert any(caveat.startswith("ran out of memory 2 times (first in step 1") for caveat in again.caveats)


def test_an_oom_caught_and_followed_by_no_step_is_the_verdict(tmp_path: Path) -> None:
    assert estimate_of(oom(training_run(tmp_path), 11).trace()).verdict == "oom"
    assert estimate_of(oom(training_run(tmp_path), 11).trace(exit_status=1)).verdict == "oom"


def test_a_script_that_never_trains_and_gives_up_after_an_oom_is_out_of_memory(tmp_path: Path) -> None:
    folder = oom(CaptureFolder(tmp_path).torch().history(("alloc", SEGMENT, 512, 4)), 5).end(0, 2 * MIB, (512, 2 * MIB))
    assert estimate_of(folder.trace()).verdict == "oom"


def test_a_script_that_never_trains_and_goes_on_after_an_oom_fits_when_it_ended_well(tmp_path: Path) -> None:
    folder = oom(CaptureFolder(tmp_path).torch(), 5).history(("alloc", SEGMENT, 512, 6)).end(0, 2 * MIB, (512, 2 * MIB))
    assert estimate_of(folder.trace()).verdict == "fits"
    assert estimate_of(folder.trace(exit_status=-11)).verdict == "fits"  # died during shutdown
    assert estimate_of(folder.trace(exit_status=1)).verdict == "oom"


def test_memory_from_the_driver_after_an_oom_is_going_on_too(tmp_path: Path) -> None:
    folder = oom(CaptureFolder(tmp_path).torch(), 5).end(0, 2 * MIB, (512, 2 * MIB))
    folder.call(ALLOCATION, "cudaMalloc", time_us=4, bytes=2 * MIB).call(FREE, "cudaFree", time_us=6, bytes=2 * MIB)
    assert estimate_of(folder.trace()).verdict == "oom"
    assert estimate_of(folder.call(ALLOCATION, "cudaMalloc", time_us=7, bytes=2 * MIB).trace()).verdict == "fits"


@pytest.mark.parametrize(("phase", "verdict"), [("evaluation", "fits"), ("forward", "oom"), ("other", "oom")])
def test_after_training_only_an_evaluation_may_run_out_and_go_on_without_a_step(
    tmp_path: Path, phase: str, verdict: str
) -> None:
    """An evaluation with smaller batches, against a benchmark whose last configuration does not fit."""
    folder = training_run(tmp_path)
    folder.journal("oom", 11, step=2, phase=phase, requested_bytes=4096, message="CUDA out of memory.", where=None)
    assert estimate_of(folder.trace()).verdict == "oom"
    assert estimate_of(folder.history(("alloc", SEGMENT + 8192, 512, 12)).trace()).verdict == verdict


def test_a_backward_pass_after_an_oom_is_training_that_goes_on(tmp_path: Path) -> None:
    folder = oom(CaptureFolder(tmp_path).torch().journal("phase", phase="backward", step=0), 5)
    folder.end(0, 2 * MIB, (512, 2 * MIB))
    assert estimate_of(folder.trace()).verdict == "oom"
    assert estimate_of(folder.journal("phase", phase="backward", step=0).trace()).verdict == "fits"
    assert estimate_of(oom(folder, 9).trace()).verdict == "oom"


def test_a_script_that_never_gets_through_its_first_step_is_out_of_memory(tmp_path: Path) -> None:
    folder = oom(CaptureFolder(tmp_path).torch().journal("phase", phase="backward", step=0), 5)
    folder.history(("alloc", SEGMENT, 512, 6)).end(0, 2 * MIB, (512, 2 * MIB))
    assert estimate_of(folder.trace()).verdict == "oom"


def raised(folder: CaptureFolder) -> CaptureFolder:
    return folder.journal("exception", 11, type="ValueError", message="bad\nvalue", where="t.py:3", is_oom=False)


def test_a_script_that_raised_before_its_first_step_gives_no_number(tmp_path: Path) -> None:
    folder = raised(CaptureFolder(tmp_path).torch()).end(0, 2 * MIB, (512, 2 * MIB))
    with pytest.raises(ScriptError, match=r"itself failed at t\.py:3: ValueError: bad$") as failure:
        estimate_of(folder.trace(exit_status=1))
    assert failure.value.estimate is None


def test_a_script_that_raised_after_a_step_gives_what_was_known(tmp_path: Path) -> None:
    complete = training_run(tmp_path)
    before = estimate_of(complete.trace())
    assert before.complete
    estimate = estimate_of(raised(complete).trace(exit_status=1))
    assert not estimate.complete
    assert estimate.ended_by == EndedBy(kind="script", message="the script itself failed at t.py:3: ValueError: bad")
    assert replace(estimate, ended_by=None, caveats=()) == replace(before, caveats=())
    assert exit_code(estimate) == 1


def test_the_estimate_of_a_failed_script_is_in_the_exception(tmp_path: Path) -> None:
    result = raised(training_run(tmp_path)).result(exit_status=1)
    run = Run(job=result.job, trace=from_capture(result))
    with pytest.raises(ScriptError, match="itself failed at") as failure:
        _ = run.estimate
    assert failure.value.estimate == run.estimate_so_far


@pytest.mark.parametrize("how", ["loader", "trainer", "lightning", "exit"])
def test_a_failure_after_foretell_has_ended_the_training_may_be_ours(tmp_path: Path, how: str) -> None:
    folder = training_run(tmp_path).journal("ended_early", 10, how=how, step=2, what="a loop")
    estimate = estimate_of(raised(folder).trace(exit_status=1))
    assert estimate.ended_by is not None
    assert (estimate.ended_by.kind, exit_code(estimate)) == ("early_end", 0)
    assert "ValueError: bad" in estimate.ended_by.message


def test_the_exception_of_another_process_does_not_hide_the_scripts_own(tmp_path: Path) -> None:
    folder = raised(training_run(tmp_path))
    CaptureFolder(tmp_path, pid=200).journal("exception", 9, type="OSError", message="", where=None, is_oom=False)
    estimate = estimate_of(folder.trace(exit_status=1))
    assert estimate.ended_by is not None
    assert "ValueError" in estimate.ended_by.message


@pytest.mark.parametrize(
    ("status", "message"), [(3, "exit code 3"), (-9, "SIGKILL.*ran out of RAM"), (-11, "SIGSEGV"), (-77, "signal 77")]
)
def test_a_script_that_exits_or_is_killed_is_told_by_code_or_signal(tmp_path: Path, status: int, message: str) -> None:
    estimate = estimate_of(replace(training_run(tmp_path).trace(exit_status=status), is_ended=False))
    assert estimate.ended_by is not None
    assert re.search(message, estimate.ended_by.message)
    assert (estimate.ended_by.kind, exit_code(estimate)) == ("script", 1)


STOPPED = [("is_timed_out", "time_limit", 0), ("is_over_host_memory", "host_memory", 0),
           ("is_interrupted", "interrupted", 130)]  # fmt: skip


@pytest.mark.parametrize(("how", "kind", "code"), STOPPED)
def test_a_script_that_was_stopped_after_a_step_gives_what_was_known(
    tmp_path: Path, how: str, kind: str, code: int
) -> None:
    estimate = estimate_of(training_run(tmp_path).trace(**{how: True}, exit_status=-15))
    assert estimate.ended_by is not None
    assert estimate.ended_by.message.endswith("after 2 training steps")
    assert (estimate.ended_by.kind, exit_code(estimate), estimate.peak.allocated_bytes) == (kind, code, 5120)


@pytest.mark.parametrize(("how", "is_number"), [(how, how != "is_over_host_memory") for how, _, _ in STOPPED])
def test_a_script_that_was_stopped_before_its_first_step_gives_what_is_on_the_gpu(
    tmp_path: Path, how: str, is_number: bool
) -> None:
    with pytest.raises(ScriptError, match="before the first training step was complete"):
        estimate_of(CaptureFolder(tmp_path).journal("process").trace(**{how: True}, exit_status=-15))
    folder = CaptureFolder(tmp_path).torch().end(512, 2 * MIB, (512, 2 * MIB))
    with nullcontext() if is_number else pytest.raises(ScriptError):
        estimate = estimate_of(folder.trace(**{how: True}, exit_status=-15))
        assert (estimate.complete, estimate.has_verdict) == (False, False)
        assert exit_code(estimate) == (130 if how == "is_interrupted" else 1)
        result = folder.result(**{how: True}, exit_status=-15)
        with pytest.raises(ScriptError) as stopped:
            _ = Run(job=result.job, trace=from_capture(result)).estimate
        assert stopped.value.estimate is not None


def test_a_verdict_of_oom_stays_one_when_the_script_is_stopped_later(tmp_path: Path) -> None:
    estimate = estimate_of(oom(training_run(tmp_path), 11).trace(is_timed_out=True, exit_status=-15))
    assert (estimate.verdict, estimate.complete, exit_code(estimate)) == ("oom", False, 3)


@pytest.mark.parametrize(("lines", "hint"), [((), "no Python process"), (("process",), "did not import torch")])
def test_a_script_that_never_used_the_gpu_is_no_estimate_of_zero(tmp_path: Path, lines: Any, hint: str) -> None:
    folder = CaptureFolder(tmp_path)
    for kind in lines:
        folder.journal(kind)
    with pytest.raises(NothingOnGpuError, match=f"nothing was put on the GPU.*{hint}"):
        estimate_of(folder.trace())


def trained_on_the_cpu(directory: Path) -> CaptureFolder:
    return CaptureFolder(directory).torch().journal("phase", phase="backward", step=0).journal("step", 6, index=0)


@pytest.mark.parametrize("how", [{}, {"is_timed_out": True}, {"is_interrupted": True}])
def test_a_script_that_trained_on_the_cpu_put_nothing_on_the_gpu(tmp_path: Path, how: dict[str, bool]) -> None:
    """Also one that asked CUDA about the card: a process gets a context with its first allocation."""
    folder = trained_on_the_cpu(tmp_path).end(0, 0, (0, 0))
    with pytest.raises(NothingOnGpuError, match=r"othing was put on the GPU.*trained on the CPU.*--cuda") as error:
        estimate_of(folder.trace(**how))
    assert error.value.exit_code == 2


def test_a_script_that_failed_on_the_cpu_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="ValueError"):
        estimate_of(raised(trained_on_the_cpu(tmp_path)).trace(exit_status=1))


def test_a_limit_of_the_host_is_not_the_memory_of_the_card(tmp_path: Path) -> None:
    folder = uncaught_oom(oom(training_run(tmp_path), 11)).call(NO_ADDRESS_SPACE, "-", requested_bytes=11 << 30)
    folder.call(NO_ADDRESS_SPACE, "-", requested_bytes=11 << 30)
    with pytest.raises(UnsupportedError, match=r"limits address space.*11\.00 GiB.*`ulimit -v unlimited`"):
        estimate_of(folder.trace(exit_status=1))


def test_what_the_child_refused_is_said_with_its_hint(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).journal("unsupported", what="two ranks", hint="Run one")
    with pytest.raises(UnsupportedError, match=r"^two ranks\. Run one\.$"):
        estimate_of(folder.trace(exit_status=2))


@pytest.mark.parametrize("exit_status", [0, 1])
def test_a_function_that_is_not_there_is_named_and_there_is_no_number(tmp_path: Path, exit_status: int) -> None:
    """Also when the script caught the error and went on: a real card would have gone another way."""
    folder = training_run(tmp_path).native(5, "cufftExecC2C")
    folder.journal("unimplemented", name="cufftExecC2C", operator="torch.fft.fft", where="train.py:4")
    with pytest.raises(UnsupportedError, match=r"cufftExecC2C, called by torch.fft.fft, at train.py:4\. .*an issue"):
        estimate_of(folder.trace(exit_status=exit_status))


def test_values_that_were_only_read_are_counted_and_no_caveat(tmp_path: Path) -> None:
    folder = training_run(tmp_path).journal("unknown_read", bytes=4, where="t.py:9", what="item", count=3)
    estimate = estimate_of(folder.trace())
    assert (estimate.num_unknown_reads, estimate.caveats) == (3, ())


def test_values_that_decide_are_a_caveat_for_each_place_with_the_most_important_use(tmp_path: Path) -> None:
    folder = training_run(tmp_path)
    for where, what in (
        ("t.py:9", "item: decides a branch"),
        ("t.py:8", "__index__: decides an index"),
        ("t.py:7", "item: decides a branch"),
        ("t.py:7", "item: decides a loop, after 1,000 rounds in which no peak grew, it got another one"),
    ):
        folder.journal("unknown_read", bytes=4, where=where, what=what, count=2)
    waits, branches = estimate_of(folder.trace()).caveats
    assert waits.startswith("at t.py:7, a loop waits for an unknown value; after 1,000 rounds")
    assert branches.startswith("what the script does at t.py:9, t.py:8 depends on unknown values")


def test_a_value_that_is_not_known_but_decides_a_size_names_its_line_and_what_is_assumed(tmp_path: Path) -> None:
    what = "__getitem__: decides a size, --assume typical: 40 of 80"
    folder = training_run(tmp_path).journal("unknown_read", bytes=80, where="t.py:7", what=what, count=1)
    caveats = estimate_of(folder.trace()).caveats
    assert "at t.py:7, an unknown value decides a size, --assume typical: 40 of 80" in caveats
    assert not any("depends on" in caveat for caveat in caveats)


def test_workspaces_by_rule_are_a_caveat_and_those_cudnn_planned_are_not(tmp_path: Path) -> None:
    for number, source in enumerate(WORKSPACE_SOURCES):
        folder = tmp_path / source
        folder.mkdir()
        run = training_run(folder).call(CONVOLUTION, "cudnnBackendExecute", workspace_source=number)
        caveats = estimate_of(run.trace()).caveats
        assert any("workspaces are estimated" in caveat for caveat in caveats) is (source == "rule")


def test_entries_of_a_sparse_product_that_are_only_bounded_are_a_caveat(tmp_path: Path) -> None:
    for number, entries in enumerate(ENTRIES):
        folder = tmp_path / entries
        folder.mkdir()
        run = training_run(folder).call(SPARSE, "cusparseSpGEMM_compute", entries=7, entries_are=number)
        caveats = estimate_of(run.trace()).caveats
        assert any("the maximum is assumed" in caveat for caveat in caveats) is (entries == "bound")


def test_the_rule_of_the_cpu_engine_names_the_way_out_of_it(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path).journal("torch", version="2.13.0+cpu", cuda=None, cudnn=None, engine="cpu")
    by_rule = WORKSPACE_SOURCES.index("rule")
    folder.call(CONVOLUTION, "cudnnBackendExecute", workspace_source=by_rule).end(0, MIB, (512, MIB))
    assert any("pip install nvidia-cudnn-cu13" in caveat for caveat in estimate_of(folder.trace()).caveats)


def test_bytes_taken_from_the_driver_by_others_than_pytorch_are_library_bytes(tmp_path: Path) -> None:
    folder = training_run(tmp_path).native(1, "cudaMalloc", SEGMENT, 2 * MIB, 0, 10 * MIB)
    folder.native(4, "cublasGemmEx", 0)
    estimate = estimate_of(folder.trace())
    assert estimate.peak.library_bytes == 8 * MIB + 18 * MIB
    assert estimate.library_names == ("cuBLAS",)


def test_several_devices_are_a_caveat(tmp_path: Path) -> None:
    devices = [device(0, MIB, (512, MIB)), {**device(0, 3 * MIB, (512, 3 * MIB)), "device": 1}]
    estimate = estimate_of(training_run(tmp_path).journal("end", devices=devices).trace())
    assert estimate.peak.reserved_bytes == 3 * MIB
    assert any(c.startswith("2 devices were used (reserved: cuda:0 1.0 MiB, cuda:1 3.0 MiB)") for c in estimate.caveats)


# --- several processes ------------------------------------------------------------------------------------------------


def gpu_process(directory: Path, pid: int, reserved: int, *, begin: int, end: int) -> CaptureFolder:
    counters = [device(0, reserved, (reserved, reserved))]
    folder = CaptureFolder(directory, pid).journal("torch", begin, version="2.15.0", cuda="13.2", cudnn=92600)
    return folder.journal("cuda", begin, device_count=1).journal("end", end, steps=0, phases=[], devices=counters)


def test_processes_at_the_same_time_are_added_each_with_context_and_libraries(tmp_path: Path) -> None:
    gpu_process(tmp_path, 1, 50 * MIB, begin=0, end=100).call(LIBRARY_CALL, "cublasGemmEx", time_us=50)
    gpu_process(tmp_path, 2, 70 * MIB, begin=10, end=20)
    gpu_process(tmp_path, 3, 40 * MIB, begin=30, end=40)
    asked = gpu_process(tmp_path, 4, 0, begin=0, end=100)  # asked for the card, took nothing of it
    estimate = estimate_of(asked.trace())
    assert estimate.peak.reserved_bytes == 70 * MIB
    assert estimate.together == Together(
        num_processes=2, device_bytes=(50 + 18 + 160 + 70 + 160) * MIB, reserved_bytes=120 * MIB
    )
    assert (estimate.verdict, estimate.device_bytes) == ("fits", 458 * MIB)
    assert estimate.other_processes_bytes == (50 + 18 + 160) * MIB
    assert any(c.startswith("2 processes used the GPU at the same time; peaks") for c in estimate.caveats)


def test_processes_one_after_the_other_are_not_added(tmp_path: Path) -> None:
    for pid in range(1, 5):
        folder = gpu_process(tmp_path, pid, 11 << 30, begin=100 * pid, end=100 * pid + 99)
    estimate = estimate_of(folder.trace())
    assert (estimate.verdict, estimate.together, estimate.other_processes_bytes) == ("fits", None, 0)
    assert any(c.startswith("4 processes used a GPU, but no two") for c in estimate.caveats)


def test_processes_that_do_not_fit_together_are_out_of_memory(tmp_path: Path) -> None:
    gpu_process(tmp_path, 1, 6 << 30, begin=0, end=100)
    folder = gpu_process(tmp_path, 2, 6 << 30, begin=10, end=20)
    estimate = estimate_of(folder.trace())
    assert estimate.oom is not None
    assert (estimate.verdict, estimate.oom.is_together, estimate.complete) == ("oom", True, True)
    assert "2 processes used the GPU at the same time. Together they need up to 12.31 GiB" in estimate.oom.message
    result = folder.result()
    need = find_need(Run(job=result.job, trace=from_capture(result))).estimate.need
    assert need is not None
    assert (need.device_bytes, need.reserved_bytes) == (estimate.device_bytes, 12 << 30)
    assert gpus.find(need.smallest_gpus[0]).total_bytes > estimate.device_bytes


def test_a_process_on_another_device_is_not_added(tmp_path: Path) -> None:
    folder = gpu_process(tmp_path, 1, 70 * MIB, begin=0, end=100)
    counters = [{**device(0, MIB, (512, MIB)), "device": 1}]
    CaptureFolder(tmp_path, 2).torch().journal("end", 50, steps=0, phases=[], devices=counters)
    assert estimate_of(folder.trace()).together is None


def test_a_process_that_sees_another_card_under_the_same_number_is_not_added(tmp_path: Path) -> None:
    for pid, card in ((1, 0), (2, 3)):
        folder = gpu_process(tmp_path, pid, 6 << 30, begin=0, end=100)
        folder.call(ALLOCATION, "cudaMalloc", address=SEGMENT, bytes=6 << 30, in_use=6 << 30, card=card)
    estimate = estimate_of(folder.trace())
    assert (estimate.verdict, estimate.together) == ("fits", None)
    counters = [{**device(0, MIB, (MIB, MIB)), "device": 1}]
    folder = CaptureFolder(tmp_path, 3).torch().journal("end", 50, steps=0, phases=[], devices=counters)
    folder.call(ALLOCATION, "cudaMalloc", address=SEGMENT, bytes=MIB, device=1, in_use=MIB, card=0)
    assert estimate_of(folder.trace()).together == Together(
        num_processes=2, device_bytes=(6 << 30) + MIB + 2 * 160 * MIB, reserved_bytes=(6 << 30) + MIB
    )


def test_managed_memory_is_a_caveat_with_its_peak_and_in_no_number(tmp_path: Path) -> None:
    folder = training_run(tmp_path)
    plain = estimate_of(folder.trace())
    folder.native(1, "cudaMallocManaged", 1 << 32, 2 * MIB, 0, 2 * MIB)
    folder.native(1, "cudaMallocManaged", 1 << 33, 4 * MIB, 0, 2 * MIB)
    folder.native(2, "cudaMallocManaged", 1 << 32, 2 * MIB, 0, 2 * MIB)
    estimate = estimate_of(folder.trace())
    assert estimate.peak == plain.peak
    (caveat,) = set(estimate.caveats) - set(plain.caveats)
    assert caveat.startswith("up to 6.0 MiB of managed memory")


def test_many_unknown_sizes_of_one_line_are_one_caveat(tmp_path: Path) -> None:
    folder = training_run(tmp_path)
    for count in (8, 4, 8):
        what = f"where: decides a size, --assume typical: {count} of {2 * count}"
        folder.journal("unknown_read", bytes=80, where="t.py:7", what=what, count=1)
    (caveat,) = estimate_of(folder.trace()).caveats
    assert caveat.endswith("8 of 16 (and 1 more there)")


def test_a_card_that_the_upper_end_of_the_interval_exceeds_is_a_caveat(tmp_path: Path) -> None:
    total = 12622168064
    folder = CaptureFolder(tmp_path).torch().end(0, total - 200 * MIB, (512, total - 200 * MIB))
    assert any("close to the limit" in caveat for caveat in estimate_of(folder.trace()).caveats)


def test_what_others_have_of_the_card_is_not_there_to_be_had(tmp_path: Path) -> None:
    total = 12622168064
    folder = CaptureFolder(tmp_path).torch().end(0, total // 2, (512, total // 2))
    assert not any("close to the limit" in caveat for caveat in estimate_of(folder.trace()).caveats)
    shared = estimate_of(replace(folder.trace(), used_by_others_bytes=total // 2))
    assert any("close to the limit" in caveat for caveat in shared.caveats)
    assert shared.used_by_others_bytes == total // 2


def test_the_largest_convolution_widens_the_interval(tmp_path: Path) -> None:
    def width(convolution_bytes: int, folder: Path) -> int:
        folder.mkdir()
        run = CaptureFolder(folder).torch().end(0, 1000 * MIB, (900 * MIB, 1000 * MIB))
        third = convolution_bytes // 3
        run.call(
            CONVOLUTION, "cudnnBackendExecute", workspace_bytes=MIB, x_bytes=third, y_bytes=third, w_bytes=third
        )
        peak = estimate_of(run.trace()).peak
        return peak.device_high_bytes - peak.device_low_bytes

    assert width(300 * MIB, tmp_path / "large") > width(30 * MIB, tmp_path / "small") + 200 * MIB


def test_a_crash_while_python_shuts_down_is_a_caveat_and_no_failure(tmp_path: Path) -> None:
    trace = training_run(tmp_path).trace(exit_status=-6)
    assert trace.is_ended
    assert any("died of SIGABRT during shutdown" in caveat for caveat in estimate_of(trace).caveats)


def test_a_crash_before_the_end_of_the_script_is_a_failure(tmp_path: Path) -> None:
    trace = replace(training_run(tmp_path).trace(exit_status=-6), is_ended=False)
    ended_by = estimate_of(trace).ended_by
    assert ended_by is not None
    assert "killed by SIGABRT" in ended_by.message
