"""Scripts without torch: what becomes of the child, however it behaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG_SECONDS, is_alive, processes_with
from foretell import gpus
from foretell.errors import UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, CaptureResult, Job
from foretell.records import LibraryBytes
from foretell.runs import Progress, launch
from foretell.runs.environment import make_directory
from foretell.virtual import environment, library_paths

LIBRARIES = LibraryBytes(cublas=18 << 20, cudnn=263 << 20, nccl=64 << 20)


@pytest.fixture(autouse=True)
def built() -> None:
    try:
        library_paths()
    except UnsupportedError as error:
        pytest.skip(str(error))


def start(code: str, directory: Path, **options: Any) -> CaptureResult:
    return launch(job_of(sys.executable, "-c", code, **options), directory)


def job_of(*command: str, **options: Any) -> Job:
    return Job(command=command, gpu=gpus.find("rtx-3060"), options=CaptureOptions(**options))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_the_exit_status_is_that_of_the_script(tmp_path: Path, code: str, status: int) -> None:
    assert start(code, tmp_path).exit_status == status


def test_the_output_passes_through_byte_by_byte(tmp_path: Path, capfdbinary: Any) -> None:
    start("import sys; sys.stdout.buffer.write(bytes(range(256)))", tmp_path)
    assert capfdbinary.readouterr().out == bytes(range(256))


def test_the_output_goes_to_stderr_when_stdout_carries_the_result(tmp_path: Path, capfdbinary: Any) -> None:
    start("print('hello')", tmp_path, stdout="stderr")
    assert capfdbinary.readouterr() == (b"", b"hello\n")


def test_torchrun_of_one_process_runs_the_script_as_the_only_rank(tmp_path: Path, capfd: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:])")
    command = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", str(script), "--lr", "1")
    assert launch(job_of(*command), tmp_path).exit_status == 0
    assert capfd.readouterr().out == "0 1 --lr 1\n"


def test_the_standard_input_is_the_scripts(tmp_path: Path) -> None:
    code = "import sys; sys.exit(sys.stdin.read() == 'typed')"
    program = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}; import test_launch, pathlib; "
    program += f"sys.exit(test_launch.start({code!r}, pathlib.Path({str(tmp_path)!r})).exit_status)"
    assert subprocess.run([sys.executable, "-c", program], input="typed", text=True).returncode == 1


def test_a_script_that_hangs_is_ended_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.runs.waiting._GRACE_SECONDS", 0.1)
    # The first look at the run waits until an interrupt does not end it, however long that takes.
    monkeypatch.setattr("foretell.runs.waiting._FIRST_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("foretell.runs.waiting._PROGRESS_SECONDS", 3600.0)
    is_deaf = tmp_path / "is-deaf"
    os.mkfifo(is_deaf)
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    code += f"open({str(is_deaf)!r}, 'w').close(); signal.pause()"
    job = job_of(sys.executable, "-c", code, timeout_seconds=3.0)
    result = launch(job, tmp_path, on_progress=lambda _: is_deaf.read_bytes())
    assert result.is_timed_out
    assert result.exit_status in (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_nothing_a_script_started_is_left_running(tmp_path: Path, isolation: str) -> None:
    """A child that ignores being asked, and one that has left for a session of its own."""
    code = f"""
import subprocess, sys
deaf = "import signal, os; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'.'); signal.pause()"
for i, session in enumerate((False, True)):
    words = [sys.executable, "-c", deaf, {str(tmp_path)!r}]
    child = subprocess.Popen(words, start_new_session=session, stdout=subprocess.PIPE)
    child.stdout.read(1)
"""
    assert start(code, tmp_path, isolation=isolation).exit_status == 0
    assert processes_with(str(tmp_path)) == []


def test_an_interrupt_reaches_the_script_and_then_us(tmp_path: Path) -> None:
    """As Ctrl-C does: to foretell's process alone, since the child has a session of its own."""
    code = f"""
import os, signal
open({str(tmp_path)!r} + "/pid", "w").write(str(os.getpid()))
try:
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    open({str(tmp_path)!r} + "/interrupted", "w")
"""
    assert start(code, tmp_path, isolation="none").is_interrupted
    assert (tmp_path / "interrupted").exists()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_progress_is_told_from_the_journal(tmp_path: Path, monkeypatch: Any) -> None:
    module = import_module("foretell.runs.waiting")
    monkeypatch.setattr(module, "_FIRST_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(module, "_PROGRESS_SECONDS", 0.01)
    line = '{"kind": "step", "time_us": 1, "index": 2, "devices": [{"device": 0, "peak_reserved_bytes": 4096}]}\\n'
    seen: list[Progress] = []
    code = f"open({str(tmp_path)!r} + '/journal-1.jsonl', 'w').write('{line}'); import sys; sys.stdin.read()"
    read, write = os.pipe()
    monkeypatch.setattr(import_module("foretell.runs.launch").subprocess, "Popen", _with_stdin(subprocess.Popen, read))

    def on_progress(progress: Progress) -> None:
        seen.append(progress)
        if progress.num_steps:
            os.close(write)
            monkeypatch.setattr(module, "_PROGRESS_SECONDS", 3600.0)

    launch(job_of(sys.executable, "-c", code, timeout_seconds=HANG_SECONDS), tmp_path, on_progress=on_progress)
    os.close(read)
    assert (seen[-1].num_steps, seen[-1].reserved_bytes) == (3, 4096)


def _with_stdin(popen: Any, stdin: int) -> Any:
    return lambda *args, **kwargs: popen(*args, **{**kwargs, "stdin": stdin})


def test_a_program_that_cannot_start_is_a_mistake_of_usage(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="cannot start"):
        launch(job_of(str(program)), tmp_path)


def test_the_card_is_described_in_the_environment() -> None:
    gpu = gpus.find("rtx-3060")
    base = {"LD_PRELOAD": "/usr/lib/libjemalloc.so"}
    variables = environment(gpu, context_bytes=7, libraries=LIBRARIES, log_prefix="/x/native", base=base)
    assert variables["LD_PRELOAD"].endswith(":/usr/lib/libjemalloc.so")
    assert variables["FORETELL_LOG"] == "/x/native"
    described = dict(item.split("=") for item in variables["FORETELL_DEVICE"].split(";"))
    assert described["name"] == "NVIDIA GeForce RTX 3060"
    assert (described["total"], described["context"], described["major"]) == ("12622168064", "7", "8")
    assert (described["count"], described["events"], described["sms"]) == ("1", "late", "28")


def test_a_library_in_a_folder_with_a_space_is_preloaded_through_a_link(tmp_path: Path, monkeypatch: Any) -> None:
    module = import_module("foretell.virtual.environment")
    (tmp_path / "my files").mkdir()
    paths = module.LibraryPaths(
        cuda=tmp_path / "my files" / "libcuda.so.1", nvml=tmp_path / "my files" / "libnvidia-ml.so.1"
    )
    monkeypatch.setattr(module, "library_paths", lambda: paths)
    variables = environment(
        gpus.find("a100"), context_bytes=0, libraries=LIBRARIES, log_prefix=str(tmp_path / "native"), base={}
    )
    assert variables["LD_PRELOAD"] == f"{tmp_path}/libcuda.so.1:{tmp_path}/libnvidia-ml.so.1"
    assert (tmp_path / "libcuda.so.1").readlink() == paths.cuda


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": -1}, {"timeout_seconds": 0.0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CaptureOptions(**options)


def test_what_is_compiled_for_the_virtual_gpu_stays_away_from_the_users_caches(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "the user's"))
    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    code = f"import os; print(*(os.environ[name] for name in {names}), file=open('said', 'w'))"
    monkeypatch.chdir(tmp_path)
    assert start(code, make_directory(tmp_path / "capture"), isolation="none").exit_status == 0
    ours = tmp_path / "cache" / "foretell" / "compiled"
    assert (tmp_path / "said").read_text().split() == [str(ours / "triton"), str(ours / "inductor")]


def test_without_a_home_that_can_be_written_compiled_code_stays_in_the_capture(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.chdir(tmp_path)
    code = "import os; print(os.environ['TRITON_CACHE_DIR'], file=open('said', 'w'))"
    assert start(code, make_directory(tmp_path / "capture"), isolation="none").exit_status == 0
    assert (tmp_path / "said").read_text().strip() == str(tmp_path / "capture" / "compiled" / "triton")
