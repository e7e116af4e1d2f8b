"""Scripts that run out of memory on the virtual GPU, each for a reason of its own: `explain_oom` is given the message
that PyTorch wrote there and the script, and must find the reason."""

from __future__ import annotations

from pathlib import Path

import foretell
from foretell import gpus
from foretell.advice import Trials
from foretell.jobs import CaptureOptions, Job
from foretell.postmortem import Explanation, explain_oom, read_oom, with_script
from foretell.runs import Warm
from foretell.units import MIB

SCRIPTS = Path(__file__).parent / "oom"


def message_of(*command: str, gpu: str, warm: Warm, others: int = 0, steps: str = "auto") -> str:
    """PyTorch's own message, of a run that must fail."""
    assert steps in ("auto", "all")
    options = CaptureOptions(stdout="file", steps=steps)  # type: ignore[arg-type]
    job = Job(command=command, gpu=gpus.find(gpu), cwd=SCRIPTS, used_by_others_bytes=others, options=options)
    estimate = foretell.run(job, warm=warm).estimate
    assert estimate.oom is not None, "the script fits"
    return f"torch.OutOfMemoryError: {estimate.oom.message}"


def explained(text: str, *command: str, gpu: str, warm: Warm | None) -> Explanation:
    """In forks of `warm`, or else as a user gets it."""
    options = CaptureOptions(stdout="file")
    job = Job(command=command, gpu=gpus.find(gpu), cwd=SCRIPTS, options=options)
    return explain_oom(text, job=job) if warm is None else with_script(read_oom(text), job, warm=warm)


def test_fragmentation_is_found_and_expandable_segments_are_tried(warm: Warm) -> None:
    text = message_of("fragmented.py", gpu="1GiB,sm86", warm=warm)
    explanation = explained(text, "fragmented.py", gpu="1GiB,sm86", warm=None)
    found = explanation.reenactment
    assert found is not None
    assert (explanation.diagnosis.cause, found.cause) == ("fragmentation", "fragmentation")
    assert found.setting is not None
    assert found.setting.how.endswith("expandable_segments:True")
    assert (found.setting.before.verdict, found.setting.after.verdict) == ("oom", "fits")
    assert '"setting": {' in explanation.to_json()


def test_a_neighbour_is_found_and_the_job_fits_without_it(warm: Warm) -> None:
    text = message_of("trained.py", "16384", gpu="2GiB,sm86", warm=warm, others=1300 * MIB)
    found = explained(text, "trained.py", "16384", gpu="2GiB,sm86", warm=warm).reenactment
    assert found is not None
    assert found.cause == "neighbour"
    assert [tried.verdict for tried in found.tried[:2]] == ["fits", "oom"]
    assert found.setting is not None
    assert found.setting.after.verdict == "fits"


def test_memory_outside_pytorch_is_found(warm: Warm) -> None:
    text = message_of("trained.py", "16384", gpu="2GiB,sm86", warm=warm, others=1300 * MIB)
    # As a real driver has it, which lists this process.
    text = text.replace("is free. ", "is free. Including non-PyTorch memory, this process has 1.95 GiB memory in use. ")
    found = explained(text, "trained.py", "16384", gpu="2GiB,sm86", warm=warm).reenactment
    assert found is not None
    assert found.cause == "libraries"


def test_a_batch_that_only_a_later_step_has_is_found(warm: Warm) -> None:
    text = message_of("long_batch.py", gpu="1GiB,sm86", warm=warm, steps="all")
    found = explained(text, "long_batch.py", gpu="1GiB,sm86", warm=warm).reenactment
    assert found is not None
    assert found.cause == "longer_batch"
    assert [tried.verdict for tried in found.tried[:2]] == ["fits", "oom"]
    assert "step 29" in found.why
    assert found.setting is not None
    assert found.setting.how.startswith("DataLoader(..., batch_size=")


def test_a_leak_is_found_with_its_line(warm: Warm) -> None:
    text = message_of("leaky.py", gpu="2GiB,sm86", warm=warm)
    found = explained(text, "leaky.py", gpu="2GiB,sm86", warm=warm).reenactment
    assert found is not None
    assert found.cause == "leak"
    assert "history" in found.why


def test_a_limit_of_the_script_is_found(warm: Warm) -> None:
    text = message_of("limited.py", "0.1", gpu="6GiB,sm86", warm=warm)
    explanation = explained(text, "limited.py", "0.1", gpu="6GiB,sm86", warm=warm)
    assert explanation.diagnosis.cause == "limit"
    assert explanation.reenactment is not None
    assert explanation.reenactment.cause == "limit"


def test_a_job_that_is_too_large_gets_a_change_that_was_tried(warm: Warm) -> None:
    text = message_of("trained.py", "16384", gpu="900MiB,sm86", warm=warm)
    found = explained(text, "trained.py", "16384", gpu="900MiB,sm86", warm=warm).reenactment
    assert found is not None
    assert found.cause == "too_large"
    assert found.setting is not None
    assert found.setting.after.verdict == "fits"
    assert found.setting.after in found.tried


def test_what_cannot_be_reproduced_is_not_claimed(warm: Warm) -> None:
    text = (
        "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 41.00 MiB is "
        "free. Including non-PyTorch memory, this process has 7.96 GiB memory in use. Of the allocated memory 7.65 GiB "
        "is allocated by PyTorch, and 73.91 MiB is reserved by PyTorch but unallocated."
    )
    found = explained(text, "trained.py", "16384", gpu="8GiB,sm86", warm=warm).reenactment
    assert found is not None
    assert (found.cause, found.setting) == (None, None)
    assert "allocated by PyTorch" in found.why


def test_cudnn_benchmark_is_switched_off_for_a_trial(warm: Warm) -> None:
    job = Job(command=("autotuned.py",), gpu=gpus.find("rtx-3060"), cwd=SCRIPTS, options=CaptureOptions(stdout="file"))
    with Trials(job, warm=warm) as trials:
        trial = trials.run(job.gpu, words=("cudnn-benchmark=off",))
    assert trial.changes.keys() == {"cudnn-benchmark"}
