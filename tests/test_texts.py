"""Every text a user reads in a terminal is kept, word for word, in tests/data/texts.

`pytest tests/test_texts.py --overwrite-golden` writes the files: a change of wording, or of an option, shows in the
diff.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from capture_folder import SEGMENT, CaptureFolder, device, training_run
from foretell import __version__, gpus
from foretell.advice.alternatives import alternatives
from foretell.advice.survey import Optimizer, Survey
from foretell.analysis.verdict import estimate_of
from foretell.api import Run
from foretell.cli import doctor, main
from foretell.cli.main import COMMANDS
from foretell.cli.show import exit_code
from foretell.diff import compare
from foretell.diff import text as diff_text
from foretell.diff.summary import summary_of_run
from foretell.engines.imported import explain
from foretell.engines.imported.explain import PassResult
from foretell.engines.imported.passes import PASSES
from foretell.errors import ForetellError, UnsupportedError
from foretell.plan import check_text, maximum_report, scale_report, share_text, sweep_report
from foretell.plan.check import Gate, judge
from foretell.plan.knobs import ConfigKey
from foretell.plan.maximum import Evaluation
from foretell.plan.share import share
from foretell.postmortem import Explanation, read_oom
from foretell.postmortem import text as oom_text
from foretell.postmortem.reenact import Compared, Reenactment, Setting, Tried
from foretell.protocol.native_log import CONVOLUTION, ENTRIES, NO_ADDRESS_SPACE, SPARSE, WORKSPACE_SOURCES
from foretell.records import (
    Advice,
    Batch,
    Batches,
    EndedBy,
    Estimate,
    Isolation,
    Need,
    Orders,
    OutOfMemory,
    OutsidePeak,
    StepPeak,
    TensorShape,
    Together,
)
from foretell.report import advice_text, text
from foretell.runs import command as commands
from foretell.runs.command import TorchInstall, refuse_platform, refuse_torch
from foretell.runs.launchers import processes
from foretell.trace import Trace, save
from foretell.trace.records import Counted
from foretell.units import GIB, MIB
from report_data import LEAKS, estimate_for, transformer
from test_diff import block, summary
from test_explain_oom import MESSAGES
from test_plan_maximum import KNOB, an_answer
from test_plan_scale import a_scale
from test_plan_sweep import a_sweep
from test_share import estimate

GOLDEN = Path(__file__).parent / "data" / "texts"
WIDTH = 100
RULED = (CONVOLUTION, "cudnnBackendExecute")
BY_RULE = WORKSPACE_SOURCES.index("rule")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is that of tests/data/texts/NAME.txt."""

    def check(name: str, found: str) -> None:
        path = GOLDEN / f"{name}.txt"
        found = "\n".join(line.rstrip() for line in found.splitlines()).strip("\n") + "\n"
        if request.config.getoption("--overwrite-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, "utf-8")
        kept = path.read_text("utf-8") if path.exists() else ""
        assert found == kept, f"{path.name} differs; --overwrite-golden writes it"

    return check


@pytest.fixture(autouse=True)
def _same_terminal_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "FORCE_COLOR", "GITHUB_STEP_SUMMARY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def printed(render: Callable[[Console], None], width: int = WIDTH) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    render(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def without_places(shown: str, *folders: Path) -> str:
    """Folders of this machine by the name of someone's home, and versions of Python's own wording made one."""
    for folder in folders:
        shown = shown.replace(str(folder.resolve()), "/home/ada").replace(str(folder), "/home/ada")
    # From Python 3.12 on the choices have no quotes.
    return re.sub(r"\(choose from [^)]*\)", lambda choices: choices[0].replace("'", ""), shown)


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_says_what_it_did_and_has_the_options_it_had(command: str, golden: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    golden(f"help{command and '-'}{command}", _one_usage(capsys.readouterr().out))


def _one_usage(shown: str) -> str:
    """Versions of argparse break the lines of the usage in other places."""
    usage, _, rest = shown.partition("\n\n")
    lines = textwrap.wrap(" ".join(usage.split()), WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)
    return "\n".join(lines) + "\n\n" + rest


# --- explain-oom ------------------------------------------------------------------------------------------------------


def explanations() -> Iterator[tuple[str, Explanation]]:
    text = next(row["text"] for row in MESSAGES if row["about"].startswith("2.3, a data loader"))
    shared = read_oom(f"{MESSAGES[2]['text']}\n{text}", message=2)
    yield "neighbour", shared
    yield "no-numbers", read_oom("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")
    estimate = replace(estimate_for(transformer(), gpu="rtx-3060"), attribution=None)
    alone = Tried(
        what="the script on rtx-3060, otherwise empty", verdict="fits", reserved_bytes=GIB, detail="9.00 GiB to spare"
    )
    crowded = Tried(
        what="with 577 MiB of other processes", verdict="oom", reserved_bytes=GIB, detail="step 1, backward"
    )
    rerun = Reenactment(
        estimate=estimate,
        compared=(Compared(name="allocated by PyTorch", message_bytes=14 * GIB, predicted_bytes=13 * GIB),),
        tried=(alone, crowded),
        cause="neighbour",
        why="On an otherwise empty rtx-3060 the script fits; with 577 MiB of other processes it does not.",
        setting=Setting(how="no other processes on the GPU", before=crowded, after=alone),
        not_tried=("expandable segments: the script failed",),
    )
    yield "script", replace(shared, reenactment=rerun)
    yield "not-reproduced", replace(shared, reenactment=replace(rerun, cause=None, setting=None, not_tried=()))


@pytest.mark.parametrize(
    ("name", "explanation"), list(explanations()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_explanations(name: str, explanation: Explanation, golden: Any) -> None:
    golden(f"explain-oom-{name}", printed(lambda console: oom_text.render(explanation, console)))


CAUSES = {row["cause"]: row["text"] for row in reversed(MESSAGES)}
CAUSES["small_card"] = f"NVIDIA A100-SXM4-80GB\n{MESSAGES[2]['text']}"


def test_each_cause_in_words(golden: Any) -> None:
    shown = [
        f"{cause}\n{printed(functools.partial(oom_text.render, read_oom(text)))}" for cause, text in CAUSES.items()
    ]
    golden("explain-oom-causes", "\n".join(shown))


# --- the result -------------------------------------------------------------------------------------------------------


def results() -> Iterator[tuple[str, Estimate, int]]:
    whole = estimate_for(transformer())
    yield "fits", whole, WIDTH
    fits = replace(whole, attribution=None)
    yield "fits-narrow", fits, 60
    yield "fits-used-by-others", replace(fits, used_by_others_bytes=4 * GIB), WIDTH
    yield "fits-context-given", replace(fits, is_context_given=True, library_names=(), caveats=()), WIDTH
    three = Together(num_processes=3, device_bytes=6 * GIB, reserved_bytes=4 * GIB)
    yield "several-processes", replace(fits, together=three), WIDTH
    too_many = OutOfMemory(
        step=3, phase="other", requested_bytes=GIB, where=None, is_together=True,
        message="3 processes used the GPU at the same time. Together they need up to 90.00 GiB.",
    )  # fmt: skip
    need_of_all = Need(device_bytes=90 * GIB, reserved_bytes=80 * GIB, request_bytes=99 * GIB, smallest_gpus=("h200",))
    three = replace(three, device_bytes=90 * GIB)
    yield "processes-too-many", replace(fits, together=three, oom=too_many, verdict="oom", need=need_of_all), WIDTH
    failed = EndedBy(kind="script", message="the script itself failed at train.py:3: ValueError: bad")
    yield "incomplete", replace(fits, ended_by=failed), WIDTH
    stopped = EndedBy(kind="time_limit", message="the script was stopped at its time limit (--timeout)")
    yield "no-step-yet", replace(fits, ended_by=stopped, steps=(), peak_step=None), WIDTH
    refused = Isolation(mode="python", reason="cannot create a user namespace: Operation not permitted")
    yield "isolated-in-python", replace(fits, isolation=refused, redirected_writes=("a",)), WIDTH
    yield "not-isolated", replace(fits, isolation=Isolation(mode="none")), WIDTH
    ran_out = estimate_for(transformer(), gpu="rtx-3060", is_out_of_memory=True)
    need = Need(
        device_bytes=17 * GIB, reserved_bytes=16 * GIB, request_bytes=18 * GIB, smallest_gpus=("rtx-3090", "rtx-4090")
    )
    yield "out-of-memory", replace(ran_out, need=need, seconds={**ran_out.seconds, "need": 9.5}), WIDTH
    ran_out = replace(ran_out, attribution=None)
    yield "out-of-memory-need-unknown", replace(ran_out, need_unknown="no time was left (--timeout)"), WIDTH
    yield "out-of-memory-no-need", ran_out, WIDTH
    yield "out-of-memory-no-card", replace(ran_out, need=replace(need, smallest_gpus=())), WIDTH
    longest = (TensorShape(name="input_ids", dtype="int64", shape=(8, 1024)),
               TensorShape(name="labels", dtype="int64", shape=(8, 1024)),
               TensorShape(name="pixels", dtype="float32", shape=(8, 3, 224, 224)))  # fmt: skip
    worst = Batch(
        index=734, epoch=0, step=734, tensors=longest, num_elements=16384, samples=tuple(range(9)), num_samples=9,
        peak_allocated_bytes=60 * GIB,
    )  # fmt: skip
    epoch = Batches(
        num=1000, num_in_epoch=1000, num_epochs=1, num_shapes=37, median_peak_allocated_bytes=20 * GIB, worst=worst
    )
    orders = Orders(
        num=200, num_oom=2, oom_low=0.0012, oom_high=0.0357, num_steps=1000, num_steps_moved=996,
        least_reserved_bytes=70 * GIB, median_reserved_bytes=71 * GIB, most_reserved_bytes=74 * GIB,
        recorded_reserved_bytes=70 * GIB, seed=0,
    )  # fmt: skip
    yield "epoch", replace(fits, batches=epoch, orders=orders), WIDTH
    looked_at = replace(epoch, num=12, num_looked_at=1000, worst=replace(worst, step=3))
    looked_at = replace(looked_at, largest_possible=longest, is_largest_trained=True)
    yield "epoch-data-only", replace(fits, batches=looked_at, orders=replace(orders, num_oom=0)), WIDTH
    last = replace(worst, step=1, samples=(), peak_allocated_bytes=None)
    yield "epoch-out-of-memory", replace(ran_out, batches=replace(epoch, num=3000, num_epochs=3, worst=last)), WIDTH
    yield "epoch-same-shapes", replace(fits, batches=replace(epoch, num_shapes=1)), WIDTH
    yield "epoch-no-loader", replace(fits, batches=Batches(num=0)), WIDTH
    steps = tuple(StepPeak(index=i, peak_allocated_bytes=i * MIB, peak_reserved_bytes=2 * GIB) for i in range(20))
    evaluation = OutsidePeak(
        kind="evaluation", after_step=11, peak_allocated_bytes=GIB, peak_reserved_bytes=whole.peak.reserved_bytes
    )
    yield (
        "everything",
        replace(
            whole, leaks=LEAKS, steps=steps, outside_steps=(evaluation,), peak_step=None,
            redirected_writes=("a", "b"), not_sent=("wandb",),
            isolation=Isolation(mode="kernel", read_only=("/mnt/usb",)),
            ended_early=("the dataloader was stopped after 3 steps",),
            seconds={"total": 24.2, "script": 12.9, "import_torch": 2.5, "analysis": 0.7, "earlier_runs": 10.0},
        ),
        WIDTH,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "estimate", "width"), [pytest.param(*each, id=each[0]) for each in results()])
def test_result(name: str, estimate: Estimate, width: int, golden: Any) -> None:
    golden(f"run-{name}", printed(lambda console: text.render(estimate, console), width))


ADVISED = (
    Advice(title="gradient checkpointing", how="model.gradient_checkpointing_enable()", saved_bytes=21 * GIB,
           peak_reserved_bytes=53 * GIB, basis="measured", price="a third more time per step", verdict="fits"),
    Advice(title="optimizer state in 8 bits", how="bitsandbytes.optim.AdamW8bit(...)", saved_bytes=700 * MIB,
           peak_reserved_bytes=73 * GIB, basis="estimated", price="less precise optimizer state", verdict="oom"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "advice", "is_oom"),
    [("fits", ADVISED, False), ("out-of-memory", ADVISED, True), ("none-fits", ADVISED[1:], True), ("none", (), False)],
)
def test_advice(name: str, advice: tuple[Advice, ...], is_oom: bool, golden: Any) -> None:
    def render(console: Console) -> None:
        advice_text.render(
            advice, reserved_bytes=74 * GIB, is_oom=is_oom, not_tried=("fused optimizer: it failed",), console=console
        )

    golden(f"advice-{name}", printed(render))


def test_everything_that_can_be_advised(golden: Any) -> None:
    optimizer = Optimizer(
        kind="torch.optim.adamw.AdamW", implementation="foreach", has_fused=True, state_bytes=8 * GIB,
        large_state_bytes=8 * GIB, large_state_elements=2 * GIB,
    )  # fmt: skip
    survey = Survey(
        repeated_class="my.model.Block", repeated_count=12, repeated_bytes=9 * GIB, is_autocast=False,
        parameter_bytes={"float32": 4 * GIB}, keeps_gradients=True, late_gradient_bytes=4 * GIB,
        optimizers=(optimizer,), has_bitsandbytes=True, has_smaller_batch=True,
    )  # fmt: skip
    lines = []
    for card in ("rtx-3060", "rtx-2080-ti"):
        for each in alternatives(survey, gpus.find(card), "2.15.0", least_bytes=MIB):
            lines += [f"{each.title} ({card})", f"  {each.how}", f"  price: {each.price}"]
    golden("advice-alternatives", "\n".join(lines))


def test_passes_of_an_import(golden: Any) -> None:
    """As `--explain` shows them; the peaks are made up."""
    results = [
        PassResult(
            name=each.name, what=each.what, num_events=number, peak_allocated_bytes=number * MIB,
            peak_reserved_bytes=2 * number * MIB,
        )
        for number, each in enumerate(PASSES, start=1)
    ]  # fmt: skip
    golden("import-explain", printed(lambda console: explain.render(results, console)))


# --- caveats and refusals ---------------------------------------------------------------------------------------------


def caveats_of(trace: Trace) -> list[str]:
    plain = ("no optimizer step",)
    return [caveat for caveat in estimate_of(trace).caveats if not caveat.startswith(plain) or not trace.steps]


def test_caveats(golden: Any, tmp_path: Path) -> None:
    total = gpus.find("rtx-3060").total_bytes
    numbers = iter(range(100))

    def new() -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return folder

    def trained() -> CaptureFolder:
        return training_run(new())

    def oom_caught() -> CaptureFolder:
        return trained().journal(
            "oom", 7, step=1, phase="backward", requested_bytes=4096, message="CUDA out of memory.", where="train.py:3"
        )

    several = trained()
    CaptureFolder(several.directory, pid=200).torch().end(0, MIB, (512, MIB))
    devices = [device(0, MIB, (512, MIB)), {**device(0, 3 * MIB, (512, 3 * MIB)), "device": 1}]
    several.journal("end", devices=devices)
    on_the_cpu = CaptureFolder(new()).torch()
    on_the_cpu.history(("segment_alloc", SEGMENT, 2 * MIB, 1), ("alloc", SEGMENT, 1000, 2))
    for step in (0, 1):
        on_the_cpu.step(step, 6 + step, 1024, 2 * MIB, (1024, 2 * MIB))
    on_the_cpu.end(1024, 2 * MIB, (1024, 2 * MIB))
    no_history = trained()
    (no_history.directory / "history-100-0.marshal").unlink()
    other_history = CaptureFolder(new()).torch().history(("segment_alloc", SEGMENT, 2 * MIB, 1)).end(
        0, 2 * MIB, (512, 2 * MIB)
    )  # fmt: skip
    size = "where: decides a size, --assume typical: "
    waited = "after 1,000 rounds in which no peak grew, it got another one"
    cpu = CaptureFolder(new()).journal("torch", version="2.13.0+cpu", cuda=None, cudnn=None, engine="cpu")
    traces = {
        "several processes and devices": several.trace(),
        "managed memory": trained().native(1, "cudaMallocManaged", 1 << 32, 2 * MIB, 0, 2 * MIB).trace(),
        "an OOM that was caught": oom_caught().trace(),
        "close to the limit": CaptureFolder(new()).torch().end(0, total - 200 * MIB, (9, total - 200 * MIB)).trace(),
        "unknown values that decide": trained()
        .journal("unknown_read", where="train.py:9", count=1, bytes=4, what="item: decides a branch")
        .journal("unknown_read", where="train.py:12", count=2, bytes=4, what="tolist: decides an index")
        .trace(),
        "a loop that waits": trained()
        .journal("unknown_read", where="train.py:9", count=1, bytes=4, what=f"item: decides a loop, {waited}")
        .trace(),
        "sizes decided by unknown values": trained()
        .journal("unknown_read", bytes=80, where="train.py:7", what=size + "8 of 16", count=1)
        .journal("unknown_read", bytes=80, where="train.py:7", what=size + "4 of 8", count=1)
        .trace(),
        "cuDNN not asked": trained().call(*RULED, workspace_source=BY_RULE).trace(),
        "no cuDNN": cpu.call(*RULED, workspace_source=BY_RULE).end(0, MIB, (512, MIB)).trace(),
        "recurrent": trained().native(4, "cudnnRNNForward", 0).trace(),
        "fft": trained().native(4, "cufftXtExec", 0).trace(),
        "solver": trained().native(4, "cusolverDnXgeqrf", 0).trace(),
        "sparse": trained().native(4, "cusparseSpMM", 0).trace(),
        "sparse, entries unknown": trained()
        .call(SPARSE, "cusparseSpGEMM_compute", entries=7, entries_are=ENTRIES.index("bound"))
        .trace(),
        "profiler": trained().native(4, "cuptiActivityEnable", 0).trace(),
        "killed at exit": trained().trace(exit_status=-6),
        "os._exit": replace(trained().trace(), is_ended=False),
        "steps without the GPU": on_the_cpu.trace(),
        "a thread failed": trained()
        .journal("exception", 11, type="ValueError", message="bad", where="train.py:3", is_oom=False)
        .trace(),
        "no whole history": no_history.trace(),
        "another history": other_history.trace(),
    }
    lines = []
    for name, trace in traces.items():
        lines += [f"{name}:", *(f"  ! {caveat}" for caveat in caveats_of(trace)), ""]
    golden("caveats", without_places("\n".join(lines), tmp_path))


def raised(folder: CaptureFolder) -> CaptureFolder:
    return folder.journal("exception", 11, type="ValueError", message="bad\nvalue", where="train.py:3", is_oom=False)


def test_what_ends_a_run_before_its_time(golden: Any, tmp_path: Path) -> None:
    folder = training_run(tmp_path)
    trace, failed = folder.trace(), raised(folder).trace(exit_status=1)
    decided = Counted(where="train.py:2", what="item: decides an index", count=1)
    traces = {
        "an exception": failed,
        "an exception after an unknown value": replace(failed, unknown_reads=(decided,)),
        "an exception after a loop that foretell ended": replace(failed, is_cut_short=True),
        "an exit code": replace(trace, exit_status=3),
        "SIGKILL": replace(trace, exit_status=-9, is_ended=False),
        "a timeout": replace(trace, is_timed_out=True),
        "a timeout after an exception": replace(failed, is_timed_out=True),
        "the limit of host memory": replace(trace, is_over_host_memory=True),
        "Ctrl-C": replace(trace, is_interrupted=True),
    }
    lines = []
    for name, each in traces.items():
        estimate = estimate_of(each)
        assert estimate.ended_by is not None
        lines += [f"{name} (exit code {exit_code(estimate)}):", f"  {estimate.ended_by.message}", ""]
    golden("ended-by", "\n".join(lines))


def test_refusals(golden: Any, tmp_path: Path) -> None:
    numbers = iter(range(100))

    def new() -> CaptureFolder:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return CaptureFolder(folder)

    def trained() -> CaptureFolder:
        return training_run(new().directory)

    missing = trained()
    for name in ("cufftExecC2C", "cufftExecR2C"):
        missing.native(5, name).journal("unimplemented", name=name, operator="torch.fft.fft", where="train.py:4")
    traces = {
        "an exception before a step": raised(new().torch()).trace(exit_status=1),
        "no network": new().torch().journal(
            "exception", 11, type="OSError", message="We couldn't connect", where="train.py:3", is_oom=False,
            network="bert-base-cased from huggingface.co",
        ).trace(exit_status=1),
        "no network before": new().torch().journal(
            "exception", 11, type="LookupError", message="no punkt", where="train.py:3", is_oom=False,
            unreached="example.org",
        ).trace(exit_status=1),
        "a missing package": new().torch().journal(
            "exception", 11, type="ModuleNotFoundError", message="No module named 'data'", where="train.py:3",
            is_oom=False,
        ).trace(exit_status=1),
        "a notebook as a script": new().torch().journal(
            "exception", 11, type="NameError", message="name 'get_ipython' is not defined", where="train.py:3",
            is_oom=False,
        ).trace(exit_status=1),
        "a GPU that is not there": new().torch().journal(
            "exception", 11, type="torch.AcceleratorError", message="CUDA error: invalid device ordinal\nCompile with",
            where="train.py:3", is_oom=False,
        ).trace(exit_status=1),
        "a worker that failed": new().torch().journal(
            "exception", 11, type="TypeError", where="train.py:3", is_oom=False,
            message="Caught TypeError in DataLoader worker process 0.\nOriginal Traceback:\nTypeError: no argument",
        ).trace(exit_status=1),
        "a Python without hooks": new().trace(is_python=True),
        "SIGSEGV before a step": replace(new().torch().trace(exit_status=-11), is_ended=False),
        "a timeout before a step": new().torch().trace(is_timed_out=True, exit_status=-15),
        "the limit of host memory before a step": new().torch().trace(is_over_host_memory=True, exit_status=-15),
        "no Python": new().trace(),
        "no torch": new().journal("process").trace(),
        "training on the CPU": new().torch().journal("step", 6, index=0).trace(),
        "training on the CPU until a timeout": new().torch().journal("step", 6, index=0).trace(is_timed_out=True),
        "no GPU": new().journal("process").journal("torch", version="2.15.0", cuda="13.2", cudnn=92600).trace(),
        "an unsupported function": missing.trace(exit_status=1),
        "a limit of the host": trained().call(NO_ADDRESS_SPACE, "-", requested_bytes=11 * GIB).trace(exit_status=1),
        "refused in the child": new().journal("unsupported", what="two ranks", hint="Run one").trace(exit_status=2),
    }  # fmt: skip
    lines = []
    for name, trace in traces.items():
        with pytest.raises(ForetellError) as refused:
            estimate_of(trace)
        lines += [f"{name} (exit code {refused.value.exit_code}):", f"  {refused.value}", ""]
    golden("refusals", "\n".join(lines))


# --- errors of usage --------------------------------------------------------------------------------------------------


@pytest.fixture
def torch_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TorchInstall:
    installed = TorchInstall(folder=tmp_path / "torch", version="2.15.0", cuda="13.2", is_rocm=False)
    monkeypatch.setattr(commands, "find_torch", lambda python: installed)
    return installed


WRONG = [
    "rum", "--bogus", "run", "run --bogus x.py", "run --gpu rtx3061 train.py", "run --gpu voodoo train.py",
    "run --gpu 24GiB,sm42 train.py", "run --gpu 24GiB train.py", "run --gpu 24,sm89 train.py",
    "run --gpu 24GiB,smx train.py", "run --gpu 24GiB,89x train.py",
    "run missing.py", "run trian.py", "run folder", "run notes.txt", "run no/such.py",
    "run -m", "run nosuchcommand", "run --steps some train.py", "run --steps 0 train.py",
    "run --data-only --orders 9 train.py", "run --steps all --orders 0 train.py", "run --timeout 0 train.py",
    "run --context much train.py", "run --used-by-others 5apples train.py", "run --engine tpu train.py",
    "run --engine virtual --execute train.py", "run --engine virtual --explain train.py",
    "run --trace no/such/x train.py", "run --trace folder train.py", "run --trace a --json a train.py",
    "run --profile missing.json train.py", "run --profile notes.txt train.py",
    "run --world-size 8 --ranks 9 train.py", "run --ranks 0 train.py", "run --world-size 8 --ranks none train.py",
    "run --world-size 1024 --ranks all train.py", "run -m torch.distributed.run --nnodes two train.py", "run torchrun",
    "gpus voodoo", "report missing.trace", "report notes.txt", "what-if fits.trace",
    "what-if fits.trace --alloc-conf backend:cudaMallocAsync", "what-if fits.trace --alloc-conf nonsense",
    "what-if fits.trace --alloc-conf max_split_size_mb:128,speed:fast",
    "what-if fits.trace --alloc-conf roundup_power2_divisions:3",
    "what-if fits.trace --alloc-conf roundup_power2_divisions:[a:b]",
    "what-if fits.trace --gpu rtx-4060 --used-by-others 99GiB",
    "run --emit pbs train.py", "run --emit slurm --json - train.py", "run --emit trainer train.py",
    "run --shard-size 2GiB train.py", "run --emit kai --shard-size 2GiB train.py",
    "run --emit slurm --shard-size 1 train.py", "run --emit slurm --shard-size big train.py",
    "report fits.trace --emit lightning", "max --arg=--width --emit trainer train.py",
    "max-batch --arg=--batch-size --effective-batch 64 train.py",
    "max-batch --arg=--batch-size --emit slurm --effective-batch 64 train.py",
    "max-batch --arg=--batch-size --emit trainer --effective-batch 0 train.py",
    "run --timeout nan train.py", "run --gpu 24GiB,sm89,9999sms train.py", "run --gpu 99TiB,sm89 train.py",
    "what-if fits.trace --alloc-conf expandable_segments:maybe", "what-if fits.trace --alloc-conf max_split_size_mb:",
    "what-if oom.trace --gpu rtx-3060", "what-if other.trace --gpu rtx-3060",
    "diff missing.trace fits.trace", "diff notes.txt fits.trace", "diff fits.trace other.json",
    "diff fits.trace fits.trace --fail-over lots",
    "check", "check train.py", "check --limit much train.py", "check --limit 22GiB --of vram train.py",
    "check --limit 22GiB missing.py", "check --gpu voodoo train.py", "check --max-growth 2% train.py",
    "check --baseline missing.trace --max-growth 2% train.py", "check --baseline notes.txt --max-growth 2% train.py",
    "check --baseline other.json --max-growth 2% train.py", "check --baseline oom.trace --max-growth 2% train.py",
    "check --baseline fits.trace --max-growth much train.py", "check --baseline fits.trace train.py",
    "check --baseline fits.trace --max-growth 2% --gpu a10g train.py",
    "check --baseline old.trace --max-growth 2% train.py",
    "check --baseline fits.trace --max-growth 2% --write-baseline fits.trace train.py",
    "check --gpu a10g --write-baseline no/such/x train.py", "check --gpu a10g --json - --markdown - train.py",
    "check --gpu a10g --github train.py",
    "diff fits.trace fits.trace --json fits.trace", "explain-oom", "explain-oom missing.log", "explain-oom notes.txt",
    "explain-oom notes.txt train.py", "explain-oom notes.txt --message first", "explain-oom notes.txt --json notes.txt",
    "import missing.json", "import notes.txt", "import other.json",
    "import other.json --torch new", "calibrate --output no/such/x", "calibrate --output x --gpu voodoo",
    "max-batch", "max-batch train.py", "max-batch --arg=--n --env N train.py", "max-batch --arg=-- train.py",
    "max-batch --arg=--n missing.py", "max-batch --arg={N} train.py", "max-batch --env A=B train.py",
    "max-batch --config-key train.yaml train.py", "max-batch --config-key notes.txt:a train.py",
    "max-batch --config-key missing.yaml:a train.py", "max-batch --config-key other.json:batch train.py",
    "max-batch --isolation none --config-key numbers.json:batch train.py",
    "max-batch --arg=--n --min x train.py", "max-batch --arg=--n --min 0 train.py",
    "max-batch --arg=--n --multiple-of 0 train.py", "max-batch --arg=--n --min 9 --max 15 --multiple-of 8 train.py",
    "max-batch --arg=--n --safety lots train.py", "max-batch --arg=--n --gpu rtx-3060 --safety 100% train.py",
    "max-batch --arg=--n --workers 0 train.py", "max --arg=--seq-len train.py --seq-len long",
    "sweep train.py", "sweep --arg=--n train.py", "sweep --arg=--n=8,,16 train.py", "sweep --arg=--n=8,8 train.py",
    "sweep --arg=--n=8 --arg=--n=16 train.py", "sweep --optimizer sgd train.py", "sweep --precision int4 train.py",
    "sweep --arg=--n=8 --json - --csv - train.py", "sweep --arg=--n=8 --limits voodoo train.py",
    "sweep --arg=--n=8 --world-size 0 train.py", "scale", "scale missing.py", "scale --min 9 --max 8 train.py",
    "scale --sizes 8,x train.py", "scale --sizes 8 --max 16 train.py", "scale --sizes 70000 train.py",
    "scale --arg=--n train.py", "scale --json - --csv - train.py", "scale --max many train.py",
    "share a.json", "share a.json b.json", "share --mode magic a.json b.json", "share train.py other.py",
    "sweep --config-key other.json:batch=8 train.py", "sweep --env N= train.py", "sweep --arg={N}=8 train.py",
    "max --arg=--seq-len train.py --seq-len", "max --arg=--seq-len --json no/such/x train.py",
    "fit", "fit missing.py", "fit --gpus voodoo train.py", "fit --gpus rtx-3060:1g.5gb train.py",
    "fit --gpus a100:9g.9gb train.py", "fit --min-memory 1TB train.py", "fit --min-memory much train.py",
    "fit --class consumer --min-memory 80GB train.py", "fit --class tpu train.py", "fit --gpu a100 train.py",
    "fit --json no/such/x train.py", "run --gpu a100-80gb:3g.41gb train.py",
    "evaluate missing", "evaluate folder", "evaluate folder --sample 0", "evaluate folder --html no/such/x",
]  # fmt: skip


def test_errors(golden: Any, tmp_path: Path, torch_for_cuda: TorchInstall, capsys: Any) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "other.json").write_text('{"schema": "other/1"}')
    (tmp_path / "numbers.json").write_text('{"batch": 8}')
    (tmp_path / "folder").mkdir()
    captured = training_run(tmp_path / "folder")
    save(captured.trace(), tmp_path / "fits.trace")
    save(replace(captured.trace(), foretell_version="0.0.9"), tmp_path / "old.trace")
    final = tuple(replace(each, peak_reserved_bytes=4 * MIB) for each in captured.trace().final)
    save(replace(captured.trace(), final=final), tmp_path / "other.trace")
    captured.journal("oom", 11, step=1, phase="forward", requested_bytes=1, message="CUDA out of memory.", where=None)
    save(captured.trace(exit_status=1), tmp_path / "oom.trace")
    lines = []
    for words in WRONG:
        code = main(words.split())
        shown = capsys.readouterr()
        assert shown.out == ""
        lines += [f"$ foretell {words}", f"{shown.err.rstrip()}", f"exit code {code}", ""]
        assert code == 2
    golden("errors", without_places("\n".join(lines), tmp_path))


def test_errors_of_the_environment(golden: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torch(**changes: Any) -> TorchInstall:
        return replace(TorchInstall(folder=tmp_path, version="2.15.0", cuda="13.2", is_rocm=False), **changes)

    def no_libraries() -> None:
        raise UnsupportedError("not built")

    monkeypatch.setattr(commands, "library_paths", no_libraries)
    refused: list[tuple[str, Callable[[], None]]] = [
        ("macOS", lambda: refuse_platform("darwin", "arm64")),
        ("Windows", lambda: refuse_platform("win32", "AMD64")),
        ("Linux on ARM", lambda: refuse_platform("linux", "aarch64")),
        ("no torch", lambda: refuse_torch(None, "/opt/python")),
        ("ROCm", lambda: refuse_torch(torch(is_rocm=True), "/opt/python")),
        ("CPU only", lambda: refuse_torch(torch(cuda=None), "/opt/python")),
        ("old", lambda: refuse_torch(torch(version="2.0.1"), "/opt/python")),
        ("WORLD_SIZE", lambda: processes(["train.py"], {"WORLD_SIZE": "4"})),
    ]
    lines = []
    for name, refuse in refused:
        with pytest.raises(UnsupportedError) as error:
            refuse()
        lines += [f"{name}:", f"  {error.value}", ""]
    golden("errors-environment", "\n".join(lines))


# --- the other commands -----------------------------------------------------------------------------------------------


def test_gpus(golden: Any, capsys: Any) -> None:
    assert main(["gpus"]) == 0
    golden("gpus", capsys.readouterr().out)


def test_what_if(golden: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "run").mkdir()
    save(training_run(tmp_path / "run").trace(), tmp_path / "job.trace")
    lines = []
    for words in ("--gpu rtx-4060", "--gpu 256MiB,sm89 --context 255MiB", "--alloc-conf expandable_segments:True"):
        code = main(["what-if", "job.trace", *words.split()])
        lines += [f"$ foretell what-if job.trace {words}", capsys.readouterr().out.rstrip(), f"exit code {code}", ""]
    golden("what-if", "\n".join(lines))


def test_max(golden: Any) -> None:
    need = Need(device_bytes=17 * GIB, reserved_bytes=16 * GIB, request_bytes=18 * GIB, smallest_gpus=("rtx-3090",))
    failed = Evaluation(value=31, verdict="failed", estimate=None, problem="the script itself failed: ValueError: bad")
    found = an_answer()
    answers = {
        "found": found,
        "with a margin, in a range": an_answer(above="range", values=range(8, 31), safety_bytes=600 * MIB),
        "the script fails above it": an_answer(above="failure", evaluations=(*found.evaluations[:3], failed)),
        "nothing fits": an_answer(value=None, evaluations=found.evaluations[-1:], need=need),
        "given up": an_answer(is_certain=False, knob=ConfigKey("train.yaml:data.batch_size")),
    }
    shown = [f"--- {name}\n{printed(functools.partial(maximum_report.render, each))}" for name, each in answers.items()]
    lines = [maximum_report.line_of(KNOB, each) for each in (found.evaluations[0], found.evaluations[-1], failed)]
    golden("max", "\n".join([*shown, "--- progress", *lines]))


def test_share(golden: Any) -> None:
    small, middle, large = (replace(estimate(gib), caveats=()) for gib in (4, 9, 25))
    three = share([small, middle, large], busy=["97/62", "45/20", "99/90"])
    two = share([small, small])
    slices = share([small, middle], mode="mig")
    too_much = share([large, large], mode="mps", gpu="a100-40gb")
    shown = [printed(functools.partial(share_text.render, each)) for each in (three, two, slices, too_much)]
    golden("share", "\n\n".join(shown))


def test_sweep(golden: Any) -> None:
    knobs, swept = a_sweep().knobs, a_sweep()
    lines = [sweep_report.line_of(knobs, point) for point in swept.points[:2]]
    shown = printed(functools.partial(sweep_report.render, swept))
    golden("sweep", "\n".join([shown, "--- CSV", sweep_report.to_csv(swept), "--- progress", *lines]))


def test_scale(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = a_scale(monkeypatch)
    none = a_scale(monkeypatch, sizes=[1, 2])
    shown = [printed(functools.partial(scale_report.render, each)) for each in (found, none)]
    golden("scale", "\n\n".join([*shown, "--- CSV", scale_report.to_csv(found)]))


def test_diff(golden: Any) -> None:
    before = summary(
        block(900 * MIB), block(300 * MIB, "Net.head", category="gradient"), block(7 * MIB, None, name="weight"),
        path="main.trace",
    )  # fmt: skip
    after = summary(
        *(block(60 * MIB, f"Net.layers.{i}.mlp") for i in range(14)), block(1100 * MIB), block(7 * MIB, None, name="w"),
        path="branch.trace", gpu="a100-80gb", torch="2.6.0", verdict="oom", oom_step=2,
        command=("/usr/bin/python", "train.py", "--batch-size", "8"),
    )  # fmt: skip
    evaluated = [
        replace(
            before, steps=(StepPeak(index=0, peak_allocated_bytes=5 * size, peak_reserved_bytes=8 * MIB),),
            outside_steps=(
                OutsidePeak(kind="evaluation", after_step=0, peak_allocated_bytes=size, peak_reserved_bytes=8 * size),
            ),
        )
        for size in (MIB, 2 * MIB)
    ]  # fmt: skip
    pairs = (
        (before, after), (before, before), (after, before), (before, replace(before, blocks=None, modules=None)),
        (evaluated[0], evaluated[1]),
    )  # fmt: skip
    differences = [compare(*pair) for pair in pairs]
    shown = [printed(functools.partial(diff_text.render, each)) for each in differences]
    golden("diff", "\n----\n".join(shown))


def test_check(golden: Any) -> None:
    whole = replace(estimate_for(transformer()), foretell_version=__version__)
    small = replace(whole, attribution=None, caveats=(), foretell_version=__version__)
    before = replace(
        summary_of_run("main.trace", replace(small, torch_version="2.6.0", command=("python", "train.py"))),
        blocks=(block(900 * MIB), block(300 * MIB, "Net.head", category="gradient", where="/x/train.py:7")),
    )
    before.peaks["device_bytes"] -= GIB
    need = Need(device_bytes=90 * GIB, reserved_bytes=89 * GIB, request_bytes=91 * GIB, smallest_gpus=("h200",))
    ran_out = replace(estimate_for(transformer(), is_out_of_memory=True), need=need)
    stopped = EndedBy(kind="time_limit", message="the script was stopped at its time limit (--timeout)")
    checks = {
        "within": judge(small, Gate(limit="78GiB")),
        "over": judge(whole, Gate(limit="60GiB", max_growth="2%", baseline=before)),
        "out of memory": judge(ran_out, Gate(limit="60GiB")),
        "incomplete": judge(replace(small, ended_by=stopped), Gate()),
    }
    shown = [f"{name}:\n{printed(functools.partial(check_text.render, each))}" for name, each in checks.items()]
    golden("check", "\n".join(shown))
    golden("check-markdown", "\n\n----\n\n".join(each.to_markdown() for each in checks.values()))


def test_doctor(golden: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What it looks at is made up, so that it says the same on every machine."""
    captured = training_run(tmp_path)
    trace = {"now": replace(captured.trace(), isolation=Isolation(mode="kernel"))}

    def run(job: Any) -> Run:
        return Run(job=job, trace=trace["now"])

    def failing(job: Any) -> Run:
        raise UnsupportedError("this script needs CUDA functions")

    def no_libraries() -> None:
        raise UnsupportedError("The virtual GPU has not been built.")

    installed = TorchInstall(folder=Path("/opt/torch"), version="2.15.0+cu132", cuda="13.2", is_rocm=False)
    paths = SimpleNamespace(cuda=Path("/opt/foretell/libcuda.so.1"), nvml=Path("/opt/foretell/libnvidia-ml.so.1"))
    monkeypatch.setattr(doctor, "__version__", "0.1.0")
    monkeypatch.setattr(doctor, "loop_us", lambda: 814.0)
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.11.7")
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "find_torch", lambda python: installed)
    monkeypatch.setattr(doctor, "library_paths", lambda: paths)
    monkeypatch.setattr(doctor, "cuda_imports", lambda libraries: {"cudaMalloc", "cudaFree"})
    monkeypatch.setattr(doctor, "dynamic_symbols", lambda path: (set(), {"cudaMalloc", "cudaFree"}))
    monkeypatch.setattr(doctor.api, "run", run)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/" + name)
    shown = []

    def examined(title: str, code: int) -> None:
        assert main(["doctor", "--python", "python"]) == code
        shown.append(f"--- {title}\n" + re.sub(r"\d+\.\d s", "1.2 s", capsys.readouterr().out))

    examined("all is well", 0)
    refused = Isolation(mode="python", reason="cannot create a user namespace: Operation not permitted")
    trace["now"] = replace(captured.call(*RULED, workspace_source=BY_RULE).trace(), isolation=refused)
    monkeypatch.setattr(doctor, "remedy", lambda: "Ask the administrator for `sysctl user.max_user_namespaces=10000`.")
    monkeypatch.setattr(doctor, "dynamic_symbols", lambda path: (set(), {"cudaMalloc"}))
    examined("warnings", 0)
    monkeypatch.setattr(doctor.api, "run", failing)
    examined("the self-test fails", 2)
    monkeypatch.setattr(doctor, "library_paths", no_libraries)
    examined("not built", 2)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    examined("not built, no compiler", 2)
    monkeypatch.setattr(doctor, "find_torch", lambda python: replace(installed, cuda=None, version="2.13.0+cpu"))
    monkeypatch.setattr(doctor.api, "run", run)
    trace["now"] = replace(trace["now"], isolation=Isolation(mode="kernel", is_in_memory=True, read_only=("/mnt/usb",)))
    examined("torch without CUDA", 0)
    monkeypatch.setattr(doctor, "find_torch", lambda python: None)
    examined("no torch", 2)
    golden("doctor", "\n".join(shown))
