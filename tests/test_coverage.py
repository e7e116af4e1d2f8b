"""A sample of `make coverage` (benchmarks/coverage), and the rules by which it judges."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.coverage import judge
from benchmarks.coverage.jobs import Fork, Job, Result
from benchmarks.coverage.sampling import SAMPLE, read_sample, sample
from benchmarks.coverage.tiny_configs import shrunk

from conftest import ZOO
from foretell.runs import Warm

Work = Callable[[Job], Result]


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    """In forks of a process that has imported the three libraries, which takes seconds, as it does in this process."""
    from benchmarks.coverage import worker

    with Warm(modules=worker.MODULES) as warm:
        yield lambda job: worker.work(job, warm)


@pytest.mark.parametrize("job", read_sample(), ids=lambda job: job.key)
def test_model_runs_as_on_the_cpu(job: Job, work: Work) -> None:
    result = work(job)
    assert result.outcome == "ran", "\n".join([f"{result.outcome}: {result.reason}", *result.evidence])
    assert result.num_lines > 20, "a record this short says nothing"
    assert result.peak_reserved >= result.peak_allocated > 0


def test_sample_has_sixty_jobs_of_every_library_and_head() -> None:
    jobs = read_sample()
    assert len(set(jobs)) == 60, SAMPLE
    heads = {"CausalLM", "MaskedLM", "Seq2SeqLM", "SequenceClassification", "ImageClassification"}
    heads |= {"AudioClassification", "AudioFrameClassification", "AudioXVector", "CTC", "SpeechSeq2Seq"}
    assert {job.library for job in jobs} == {"torchvision", "timm", "transformers"}
    assert {job.head for job in jobs if job.head} == heads


# --- the verdicts -----------------------------------------------------------------------------------------------------


def a_fork(*record: str, problem: str = "", allocated: int = 512, reserved: int = 2048) -> Fork:
    said = {"record": list(record), "allocated": allocated, "reserved": reserved}
    return Fork(said=said, problem=problem, traceback="", log="", exit_status=int(bool(problem)), seconds=1.0)


def seen(*, allocated: int = 512, reserved: int = 2048, unimplemented: tuple[str, ...] = ()) -> Any:
    peak = SimpleNamespace(allocated_bytes=allocated, reserved_bytes=reserved)
    functions = [SimpleNamespace(what=name) for name in unimplemented]
    return SimpleNamespace(
        trace=SimpleNamespace(unimplemented=functions), estimate=SimpleNamespace(peak=peak), refusal=""
    )


def test_equal_records_and_counts_have_run() -> None:
    assert judge.judged(a_fork("a", "b"), a_fork("a", "b"), seen())[0] == "ran"


def test_other_record_is_another_branch_and_its_first_line_is_told() -> None:
    outcome, reason, _ = judge.judged(a_fork("a", "b", "c"), a_fork("a", "x", "c"), seen())
    assert outcome == "other branch"
    assert reason == "CPU: b | virtual GPU: x"


def test_longer_record_is_another_branch() -> None:
    assert judge.judged(a_fork("a", "b"), a_fork("a"), seen())[0] == "other branch"


@pytest.mark.parametrize("counted", [{"allocated": 1024}, {"reserved": 4096}])
def test_count_that_is_not_torchs_is_wrong(counted: dict[str, int]) -> None:
    assert judge.judged(a_fork("a"), a_fork("a"), seen(**counted))[0] == "wrong count"


def test_function_that_is_not_there_is_named_even_if_the_run_went_on() -> None:
    outcome, reason, _ = judge.judged(a_fork("a"), a_fork("a"), seen(unimplemented=("cusparseSpGEMM",)))
    assert (outcome, reason) == ("unsupported function", "cusparseSpGEMM")


def test_failure_on_the_virtual_gpu_alone_is_its_own() -> None:
    outcome, reason, _ = judge.judged(a_fork("a"), a_fork(problem="RuntimeError: no"), seen())
    assert (outcome, reason) == ("failed", "RuntimeError: no")


def test_failure_on_the_cpu_says_whether_the_virtual_gpu_agrees() -> None:
    failed = a_fork(problem="ValueError: odd\nmore")
    assert judge.failed_on_cpu(failed, failed)[:2] == (
        "fails on a real machine too",
        "ValueError: odd more (the same on the virtual GPU)",
    )
    assert judge.failed_on_cpu(failed, a_fork("a"))[1] == "ValueError: odd more (virtual GPU: ran)"


# --- the record -------------------------------------------------------------------------------------------------------


def record_of(device_type: str, length: int) -> list[str]:
    """What a library would do that picks a dtype by the device."""
    torch = pytest.importorskip("torch")
    sys.path.insert(0, str(ZOO))
    try:
        import recorder
    finally:
        sys.path.remove(str(ZOO))
    device, x = SimpleNamespace(type=device_type), torch.arange(length)
    record = recorder.Record()
    record.start()
    try:
        chosen = x.float() if device.type == "cpu" else x.int()
        torch.cumsum(chosen * 2, dim=0, dtype=torch.int64)
        if device.type == "cuda" and length > 0:
            x = x.clone()
        x.neg()
    finally:
        record.stop()
    return record.lines


def test_what_code_does_by_the_type_of_the_device_is_left_out_but_no_shape() -> None:
    assert record_of("cpu", 4) == record_of("cuda", 4)
    assert len(record_of("cpu", 4)) == 4
    assert record_of("cpu", 4) != record_of("cpu", 5)


# --- small configurations and samples ---------------------------------------------------------------------------------


def test_shrunk_configuration_keeps_every_kind_of_layer() -> None:
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    small = shrunk({"num_hidden_layers": 8, "layer_types": kinds * 2, "hidden_size": 4096}, None)
    assert small["layer_types"] == ["linear_attention", "linear_attention", "full_attention"]
    assert small["num_hidden_layers"] == 3
    assert small["hidden_size"] == 64


def test_shrunk_configuration_makes_nothing_larger() -> None:
    assert shrunk({"hidden_size": 32, "vocab_size": 20}, None)["hidden_size"] == 32


def test_shrunk_configuration_reaches_what_is_nested() -> None:
    small = shrunk({"text_config": {"model_type": "x", "num_attention_heads": 32, "num_key_value_heads": 8}}, None)
    assert small["text_config"]["num_attention_heads"] == 4
    assert small["text_config"]["num_key_value_heads"] == 2


def test_sample_is_the_same_every_time_and_leaves_no_group_out() -> None:
    jobs = [Job("timm", f"m{number}") for number in range(100)]
    jobs += [Job("transformers", f"t{number}", head) for number in range(5) for head in ("CTC", "CausalLM")]
    chosen = sample(jobs, 12)
    assert chosen == sample(jobs, 12)
    assert len(set(chosen)) == 12
    assert {(job.library, job.head) for job in chosen} == {(job.library, job.head) for job in jobs}


def test_sample_file_is_in_order(tmp_path: Path) -> None:
    assert read_sample() == sorted(read_sample())
