"""Whatever is wrong with a file, foretell says so in one line: no traceback, no hang, bounded memory.

FORETELL_FUZZ=35000 makes ten times as many mutations. A failure names its kind and seed; FORETELL_FUZZ_SEED=KIND:SEED
makes that mutation alone, and keeps the file in pytest's folder.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import marshal
import os
import random
import re
import resource
import shutil
import signal
import sys
import traceback
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

import test_published_learned
from capture_folder import SEGMENT, CaptureFolder, training_run
from foretell import calibration, gpus
from foretell.analysis.verdict import estimate_of
from foretell.calibration import from_runs
from foretell.cli import main as command_line
from foretell.cli.main import BUG
from foretell.diff import compare, summary_of
from foretell.diff import json as diff_json
from foretell.diff.summary import summary_of_run
from foretell.errors import ForetellError, TraceError
from foretell.features import plain_features
from foretell.jobs import CaptureOptions, Job
from foretell.learn import dataset, methods
from foretell.learn.estimator import SHIPPED
from foretell.plain import from_plain
from foretell.plan.check import Gate, judge
from foretell.protocol import native_log
from foretell.protocol.operators import COLUMNS
from foretell.records import Estimate
from foretell.report import html, notebook, snapshot
from foretell.runs import Store
from foretell.runs.environment import convolution_line
from foretell.runs.store import lines
from foretell.trace import load, save
from foretell.trace.records import RankMark
from foretell.units import MIB
from mutations import Mutate, mutate_bytes, mutate_json, mutate_zip
from test_calibration import PROFILE
from test_explain_oom import MESSAGES
from test_formulas import JOB
from test_guess import TORCHINFO, TORCHSUMMARY
from test_import import Span, a_step, backward, document

BUDGET = int(os.environ.get("FORETELL_FUZZ", "3500"))
ONLY = os.environ.get("FORETELL_FUZZ_SEED", "")
SECONDS = 5
"""Of CPU for one file; a whole one takes a few hundredths."""
MORE_BYTES = 1 << 30
"""Of address space, over what the process has at its start."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: whole ones by name, how they are mutated, and everything that reads one."""

    files: Callable[[Path], dict[str, bytes]]
    mutate: Mutate
    read: Callable[[Path], None]
    """`read(path)`: reads a mutated file, beside which there are the whole ones."""
    needs: str = ""
    """A library that is imported before memory is limited; skipped without it."""


def main(*words: str | Path) -> None:
    """The command line, which must not find a bug."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = command_line(list(map(str, words)))
    assert code != BUG
    if code == 2:
        raise TraceError(said.getvalue())


# --- traces -----------------------------------------------------------------------------------------------------------


def traces(folder: Path) -> dict[str, bytes]:
    capture = a_capture(folder / "capture")
    found = {}
    timed = CaptureOptions(time=True)
    for name, changes in {"fits": {}, "failed": {"exit_status": 1}, "timed": {"options": timed}}.items():
        save(capture.trace(**changes), folder / "saved")
        found[f"{name}.trace"] = (folder / "saved").read_bytes()
    first, second = (replace(capture.trace(), rank=RankMark(rank=i, world_size=2, local_rank=i)) for i in range(2))
    save(replace(first, other_ranks=(second,)), folder / "saved")
    return {**found, "ranks.trace": (folder / "saved").read_bytes()}


def a_capture(folder: Path) -> CaptureFolder:
    """Two steps, with everything a journal and a native log can have."""
    folder.mkdir()
    capture = training_run(folder)
    capture.native(1, "cudaMalloc", SEGMENT, 2 * MIB, 0, 2 * MIB, time_us=1)
    for kind in native_log.KINDS:
        if kind.is_call:
            values = {field.name: number % len(field.choices or range(99)) for number, field in enumerate(kind.fields)}
            capture.call(kind, kind.name, time_us=4, **values)
    capture.owners(
        ["forward", "Net.layer", "weight", "AddBackward0"],
        marks=[(0, 0, 0, 0, 1, 1), (0, 1, -1, 0, 3, 1), (0, 2, 0, 1, 1, 1)],
        labels=[(0, 1, SEGMENT, 0, 2), (0, 2, SEGMENT + 1024, 2, 2)],
    )
    capture.journal("unknown_read", 5, bytes=4, where="t.py:9", what="aten::item", count=2)
    capture.journal("oom", 6, step=1, phase="backward", requested_bytes=7, message="CUDA out of memory.", where="t:3")
    capture.journal("keeper", 7, name="losses", what="a list of tensors that grows", where="t.py:4")
    capture.journal("pass", number=0, length=9, num_samples=9, batch_size=1, sampler="Sampler", num_workers=0)
    for number in range(2):
        about = {"loader": 0, "index": number, "step": number, "shape": number, "num_elements": 4, "samples": [3]}
        capture.journal("batch", 8, **about, num_samples=1, tensors=[["x", "int64", [2, number]]])
    capture.journal("phase", 9, phase="backward", step=0)
    capture.journal("caveat", text="a caveat").journal("not_sent", what="wandb").journal("redirected_write", path="/x")
    capture.journal("ended_early", how="loader", step=2, what="training loop").journal("phase", phase="forward", step=0)
    operators(capture)
    settings = "max_split_size_mb:32,roundup_power2_divisions:[1:2,>:4]"
    capture.journal("allocator", 0, settings=settings, backend="native")
    return capture.journal("exception", 8, type="ValueError", message="no", where="t.py:1", is_oom=False)


def operators(capture: CaptureFolder) -> None:
    """Of the recorded step, with a signature for each kind of rule."""
    half = ["float16", [2, 4, 8, 8], "channels_last", True]
    full = ["float32", [4, 4, 3, 3], "contiguous", True]
    names = ["convolution", "mm", "copy_", "native_batch_norm", "max_pool2d_with_indices", "_flash_attention_forward",
             "embedding", "sum", "relu", "_foreach_add_", "convolution_backward", "max_pool2d_with_indices_backward",
             "embedding_dense_backward", "native_dropout", "_conv_depthwise2d"]  # fmt: skip
    inputs = [half, full, full, [1, 1], 3, True, None]
    signatures = [json.dumps([f"aten::{name}", inputs[:3] + inputs[4:]]) for name in names]
    signatures += [json.dumps(["aten::_foreach_mul_", [["list", half, full], 0.5]]), '["enumerate(DataLoader)#x", []]']
    count = len(signatures)
    columns = {"begin_us": range(count), "end_us": [9] * count, "signature": range(count), "parent": [-1] * count,
               "thread": [0] * count}  # fmt: skip
    told = {
        "kind": "training", "step": 1, "begin_us": 0, "end_us": 10, "cpu_us": 9, "delay_us": 1, "loop_us": 740.0,
        "phases": [(0, "forward"), (5, "backward")], "signatures": signatures,
        "columns": {name: array(COLUMNS[name], values).tobytes() for name, values in columns.items()},
    }  # fmt: skip
    (capture.directory / f"operators-{capture.pid}.marshal").write_bytes(marshal.dumps(told, 2))
    for row in range(count):
        values = {field.name: 1 for field in native_log.LAUNCH.fields}
        capture.call(native_log.LAUNCH, "vectorized_elementwise_kernel", time_us=row, **values)


def read_trace(path: Path) -> None:
    main("report", path, "--json", path.with_name("out.json"))
    main("what-if", path, "--gpu", "rtx-4060", "--alloc-conf", "expandable_segments:True")
    main("share", path, path, "--gpu", "a100-40gb")
    trace = load(path)
    estimate = estimate_of(trace)
    as_baseline(path, estimate)
    summary = summary_of_run("x", estimate)
    diff_json.render(compare(summary, summary))
    if estimate.attribution is not None:
        html.render(estimate, estimate.attribution)
    snapshot.render(trace, estimate.attribution)


# --- the others -------------------------------------------------------------------------------------------------------


def estimates(folder: Path) -> dict[str, bytes]:
    trace = a_capture(folder / "capture").trace()
    return {"fits.json": estimate_of(trace).to_json().encode()}


def read_estimate(path: Path) -> None:
    main("diff", path.with_name("fits.json"), path)
    main("share", path, path.with_name("fits.json"))
    main("diff", path, path.with_name("fits.json"), "--fail-over", "5%", "--html", path.with_name("out.html"))
    notebook.render(Estimate.from_json(path.read_text(errors="replace")))
    as_baseline(path, Estimate.from_json(path.with_name("fits.json").read_text()))


def as_baseline(path: Path, estimate: Estimate) -> None:
    """What `foretell check --baseline` does with the file."""
    gate = Gate(baseline=summary_of(path), max_growth="2%", of="request")
    gate.refuse_baseline(estimate.gpu)
    check = judge(estimate, gate)
    check.to_markdown()
    check.to_json()


def profiles_of_torch(folder: Path) -> dict[str, bytes]:
    convolution = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    attention = ["", "", "", "0.", "False"]
    recurrent = ["", "", "", "True", "1", "0.", "True", "False", "False"]
    x, w = [2, 4, 8, 8], [4, 4, 3, 3]
    grown = ["", "", "", "[4]", *convolution[3:], "[True, True, True]"]
    gradients = [("dx", 2048), ("dw", 576), ("db", 16)]
    weights = [[32, 8], [32, 8], [32], [32]]
    others = [
        Span("aten::convolution", [("c", 2048)], [x, w, [4]], values=convolution, sequence=90),
        backward("ConvolutionBackward0", 90, Span("aten::convolution_backward", gradients, [x, x, w], values=grown)),
        Span("aten::_scaled_dot_product_flash_attention_for_cpu", [("a", 4096)], [[2, 4, 16, 8]] * 3, values=attention),
        Span("aten::lstm", [("l", 320)], [[5, 2, 8], [[1, 2, 8]] * 2, weights], values=recurrent),
        Span("aten::sort", [("s", 4096)], [[8, 100]], values=["", "False", "0", "False"]),
        Span("aten::median", [("m", 4096)], [[8, 100]], values=[""]),
        Span("aten::sum", [("u", 4096)], [[64, 64]], values=["", "[0]", "True", ""]),
        Span("aten::embedding_dense_backward", [("e", 4096)], [[8, 16, 4], [8, 16]], values=["", "", "80", "-1"]),
        Span("aten::native_layer_norm_backward", [("n", 4096)], [[8, 16], [8, 16], [8], [8], [16]]),
    ]  # fmt: skip
    whole = json.dumps(document(*a_step(), *others, *a_step(1), *a_step(2))).encode()
    return {"profile.json": whole, "profile.json.gz": gzip.compress(whole, mtime=0)}


def mutate_profile(data: bytes, chance: random.Random) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return mutate_json(data, chance)
    if chance.random() < 0.5:
        return mutate_bytes(data, chance)
    return gzip.compress(mutate_json(gzip.decompress(data), chance), mtime=0)


def read_profile_of_torch(path: Path) -> None:
    main("import", path, "--gpu", "rtx-3060", "--explain", "--trace", path.with_name("out.trace"))


def read_profile_of_card(path: Path) -> None:
    profile = calibration.load(path)
    Job(command=("x",), gpu=gpus.find(profile.device_name), profile=profile)
    assert all(map(convolution_line, profile.convolutions))


def fitted_profiles(folder: Path) -> dict[str, bytes]:
    profile = calibration.load(written(folder, json.dumps(PROFILE).encode()))
    fitted = replace(profile, convolutions=(), num_runs=3, context_below_bytes=1 << 20, context_above_bytes=5 << 20)
    return {"card.toml": calibration.render_toml(fitted, ["a note"]).encode()}


def measured_runs(folder: Path) -> dict[str, bytes]:
    return {"runs.csv": b'command,peak\ntrain.py --x 1,7106MiB\n"-m trainer ""a b""",1.5GiB\n'}


def jobs(folder: Path) -> dict[str, bytes]:
    profile = from_plain(type(calibration.load(written(folder, json.dumps(PROFILE).encode()))), without_schema(PROFILE))
    job = Job(command=("train.py", "--x"), gpu=gpus.find("rtx-3060"), cwd=Path("/x"), environment=(("A", None),))
    other = Job(command=("f",), call=b"x", gpu=gpus.find(profile.device_name), profile=profile)
    return {"job.json": job.to_json().encode(), "other.json": other.to_json().encode()}


def without_schema(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name != "schema"}


def written(folder: Path, data: bytes) -> Path:
    (folder / "written").write_bytes(data)
    return folder / "written"


def read_job(path: Path) -> None:
    job = Job.from_json(path.read_text(errors="replace"))
    assert Job.from_json(job.to_json()) == job


def stores(folder: Path) -> dict[str, bytes]:
    store = Store(folder / "kept", state="s")
    for number in range(5):
        store.add(f"k{number}", {"bytes": number, "name": "é"})
    store.close()
    return {"store.jsonl": (folder / "kept").read_bytes()}


def read_store(path: Path) -> None:
    store = Store(path, state="s")
    store.add("new", {"bytes": 7})
    store.close()
    assert [result for key, state, result in lines(path) if (key, state) == ("new", "s")][-1] == {"bytes": 7}


def captures(folder: Path) -> dict[str, bytes]:
    capture = a_capture(folder / "capture")
    return {path.name: path.read_bytes() for path in sorted(capture.directory.iterdir())}


def read_capture(path: Path) -> None:
    """The mutated file in the folder of the others."""
    estimate_of(CaptureFolder(path.parent).trace())


# --- instant estimates ------------------------------------------------------------------------------------------------


def descriptions(folder: Path) -> dict[str, bytes]:
    plain = json.dumps(plain_features(JOB))
    return {"job.json": plain.encode(), "jobs.jsonl": f"{plain}\n{plain}\n".encode()}


def mutate_description(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(mutate_json(line, chance) + b"\n" * (len(lines) > 1) for line in lines)


def read_description(path: Path) -> None:
    if path.suffix == ".jsonl":
        main("guess", "--gpu", "rtx-3060", "--jobs", path)
    else:
        main("guess", "--gpu", "rtx-3060", path)


def summaries(folder: Path) -> dict[str, bytes]:
    return {"torchsummary.txt": TORCHSUMMARY.encode(), "torchinfo.txt": TORCHINFO.encode()}


def models(folder: Path) -> dict[str, bytes]:
    return {f"model{suffix}": SHIPPED.with_suffix(suffix).read_bytes() for suffix in (".json", ".npz")}


def mutate_model(data: bytes, chance: random.Random) -> bytes:
    return mutate_zip(data, chance) if data.startswith(b"PK") else mutate_json(data, chance)


def read_model(path: Path) -> None:
    arrays = meant(path)
    path.with_name("job.json").write_text(json.dumps(plain_features(JOB)))
    main("guess", "--gpu", "rtx-3060", "--model", arrays, path.with_name("job.json"))


def meant(path: Path) -> Path:
    """The arrays, with their checksum in the card as they are now: somebody can have meant them."""
    path = path.rename(path.with_name(path.name.removeprefix("mutated-")))
    card, arrays = path.with_suffix(".json"), path.with_suffix(".npz")
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(card.read_bytes())
        if isinstance(document, dict):
            document["sha256"] = hashlib.sha256(arrays.read_bytes()).hexdigest()
            card.write_text(json.dumps(document))
    return arrays


def trained_models(folder: Path) -> dict[str, bytes]:
    for train in test_published_learned.ALL:
        train(folder / train.__name__)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_trained_model(path: Path) -> None:
    methods.read(meant(path)).guess(JOB, gpus.find("rtx-3060"))


def data_sets(folder: Path) -> dict[str, bytes]:
    rows = gzip.decompress(dataset.SAMPLE.read_bytes()).splitlines(keepends=True)
    some = b"".join(rows[:4])
    return {"few.csv": some, "few.csv.gz": gzip.compress(some, mtime=0)}


def read_data_set(path: Path) -> None:
    main("dataset", "describe", path)
    assert all(row.labelled.reserved_bytes == row.reserved_bytes for row in dataset.read(path))


def logs(folder: Path) -> dict[str, bytes]:
    return {f"{number}.log": row["text"].encode() for number, row in enumerate(MESSAGES)}


KINDS = {
    "trace": Kind(traces, mutate_zip, read_trace),
    "estimate": Kind(estimates, mutate_json, read_estimate),
    "torch-profile": Kind(profiles_of_torch, mutate_profile, read_profile_of_torch),
    "card-profile": Kind(lambda folder: {"card.json": json.dumps(PROFILE).encode()}, mutate_json, read_profile_of_card),
    "fitted-profile": Kind(fitted_profiles, mutate_bytes, read_profile_of_card),
    "measured-runs": Kind(measured_runs, mutate_bytes, from_runs.read_runs),
    "job": Kind(jobs, mutate_json, read_job),
    "store": Kind(stores, mutate_bytes, read_store),
    "capture": Kind(captures, mutate_bytes, read_capture),
    "description": Kind(descriptions, mutate_description, read_description),
    "summary": Kind(summaries, mutate_bytes, lambda path: main("guess", "--batch-size", "8", path)),
    "model": Kind(models, mutate_model, read_model),
    "trained-model": Kind(trained_models, mutate_model, read_trained_model, needs="torch"),
    "data-set": Kind(data_sets, mutate_bytes, read_data_set),
    "oom-message": Kind(logs, mutate_bytes, lambda path: main("explain-oom", path)),
}


# --- the runner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_whole_file_is_read(name: str, tmp_path: Path) -> None:
    if KINDS[name].needs:
        pytest.importorskip(KINDS[name].needs)
    (tmp_path / "whole").mkdir()
    whole = KINDS[name].files(tmp_path / "whole")
    for each, data in whole.items():
        (tmp_path / each).write_bytes(data)
    for each in whole:
        KINDS[name].read(tmp_path / each)


@pytest.mark.parametrize("name", KINDS)
def test_every_mutation_of_a_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    only_kind, _, only_seed = ONLY.partition(":")
    if ONLY and only_kind != name:
        pytest.skip("FORETELL_FUZZ_SEED is of another kind")
    seeds = [int(only_seed)] if ONLY else list(range(BUDGET // len(KINDS)))
    if KINDS[name].needs:
        pytest.importorskip(KINDS[name].needs)
    failures = in_a_worker(lambda: fuzz(name, seeds, tmp_path))
    # One example of each place in the code.
    by_place = {(re.findall(r'File "(.*), in ', failure) or [failure])[-1]: failure for failure in failures}
    assert not failures, f"{len(failures)} of {len(seeds)}:\n\n" + "\n\n".join(by_place.values())


def fuzz(name: str, seeds: list[int], folder: Path) -> Iterator[str]:
    """What went wrong, each with its seed."""
    kind = KINDS[name]
    (folder / "whole").mkdir()
    whole = kind.files(folder / "whole")
    command_line.__globals__["_bug_report"] = the_bug  # main() would print it and go on
    pytest_pid = os.getppid()
    for seed in seeds:
        if os.getppid() != pytest_pid:
            return  # it was killed
        chance = random.Random(f"{name}:{seed}")
        chosen = chance.choice(sorted(whole))
        place = folder / str(seed)
        place.mkdir()
        for each, data in whole.items():
            (place / each).write_bytes(data)
        is_capture = kind.read is read_capture
        path = place / (chosen if is_capture else f"mutated-{chosen}")
        path.write_bytes(kind.mutate(whole[chosen], chance))
        try:
            with limited_time():
                kind.read(path)
        except ForetellError as error:
            if not str(error):
                yield f"{name}:{seed} ({chosen}): an error without a message"
        except BaseException as error:
            last = "".join(traceback.format_exception(error.__cause__ or error)[-4:])
            yield f"{name}:{seed} ({chosen})\n{last}"
        if not ONLY:
            shutil.rmtree(place)


class HangError(BaseException):
    """Not an Exception, which the code under test might catch."""


def the_bug(error: Exception) -> NoReturn:
    raise AssertionError("a bug, exit code 70") from error


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {SECONDS} s of CPU")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def in_a_worker(work: Callable[[], Iterator[str]]) -> list[str]:
    """The results of a process with limited memory: what crashes or is greedy does not take pytest along."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
            resource.setrlimit(resource.RLIMIT_AS, (own_bytes + MORE_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.close(read)
            with os.fdopen(write, "w", encoding="utf-8", errors="backslashreplace") as file:
                try:
                    for result in work():
                        file.write(json.dumps(result) + "\n")
                        file.flush()
                    code = 0
                except BaseException:
                    file.write(json.dumps(traceback.format_exc()) + "\n")
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as file:
        results = [str(json.loads(line)) for line in file]
    _, status = os.waitpid(pid, 0)
    return results if status == 0 else [*results, f"the worker ended with {os.waitstatus_to_exitcode(status)}"]
