"""Fixtures every test may use: foretell as a command, and workloads of the zoo really run on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.nodeid import coerce_node_id
from hypothesis import HealthCheck, settings

from foretell.runs import OUTPUT, Program, Warm, Watch, find_torch

if TYPE_CHECKING:
    from foretell.jobs import Job
    from warm_runs import WarmRuns

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
ZOO = TESTS / "zoo"
FEATURES = TESTS / "features"
_TORCH = find_torch(sys.executable)
HAS_CUDA = _TORCH is not None and _TORCH.cuda is not None
"""Without it there is no virtual GPU, and the CPU engine runs the same tests."""
HANG_SECONDS = 1800.0
"""A limit that only what hangs reaches, however busy the machine; nothing else in the tests is decided by a clock."""
settings.register_profile(
    "foretell", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("foretell")
"""The same examples in every run, however long one takes on a busy machine."""
os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Also of all that tests start: threads of several workers on few cores wait for each other, and burn CPU meanwhile."""
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
"""The same of Inductor: each of its compiling processes imports torch, for two or three kernels."""
os.environ["HF_HUB_OFFLINE"] = "1"
"""Nothing is downloaded; and read when packages are imported, so that one warm process does for all runs alike."""


@dataclass(frozen=True)
class ForetellRun:
    """One `foretell run`: its exit code, its output, and its JSON if it wrote any."""

    code: int
    stdout: str
    stderr: str
    result: dict[str, Any]

    @property
    def peak(self) -> dict[str, int]:
        return self.result["peak"]

    def tail(self) -> str:
        """For the message of a failed assertion."""
        stdout = "\n".join(line for line in self.stdout.splitlines() if not line.startswith("RECORD "))
        return f"exit code {self.code}\n--- stdout\n{stdout[-2000:]}\n--- stderr\n{self.stderr[-4000:]}"


RunForetell = Callable[..., ForetellRun]


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "write the golden texts of tests/data/texts instead of comparing with them"
    parser.addoption("--overwrite-golden", action="store_true", help=help)
    help = "also run the tests of all jobs of several ranks that are marked `every_job` (make ranks)"
    parser.addoption("--every-job", action="store_true", help=help)


@pytest.hookimpl(wrapper=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Tests that share a fixture of their module run on one worker of pytest-xdist: each would set it up anew."""
    if not config.getoption("--every-job"):
        left_out = [item for item in items if item.get_closest_marker("every_job") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("xdist_group") is not None:
            continue
        fixtures = item._fixtureinfo.name2fixturedefs
        shared = [name for name, definitions in fixtures.items() if definitions[-1].scope == "module"]
        if shared:
            values = item.callspec.params if hasattr(item, "callspec") else {}
            group = [item.module.__name__, *(str(values[name]) for name in shared if name in values)]
            item.add_marker(pytest.mark.xdist_group(" ".join(group)))
    yield
    for item in items:  # xdist 3.8 writes the group where pytest 9.2 no longer reads it, and would group nothing
        with_group = getattr(item, "_nodeid", item.nodeid)
        if with_group != item.nodeid:
            item._id = coerce_node_id(with_group)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C would hang."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run_foretell(tmp_path: Path) -> RunForetell:
    """`run_foretell("script.py", "--batch-size", "8", gpu="rtx-3060", options=[...])`, in a folder of its own."""

    def run(
        *command: str | Path,
        gpu: str = "rtx-3060",
        steps: str = "all",
        options: list[str] | None = None,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = HANG_SECONDS,
    ) -> ForetellRun:
        json_file = tmp_path / "estimate.json"
        json_file.unlink(missing_ok=True)
        process = subprocess.run(
            [sys.executable, "-m", "foretell", "run", "--gpu", gpu, "--steps", steps, "--json", str(json_file),
             *(options or []), "--", *map(str, command)],
            cwd=cwd or tmp_path, capture_output=True, text=True, timeout=timeout,
            env={**os.environ, "COLUMNS": "120", **(environment or {})},
        )  # fmt: skip
        result = json.loads(json_file.read_text()) if json_file.exists() else {}
        return ForetellRun(process.returncode, process.stdout, process.stderr, result)

    return run


@pytest.fixture
def run_feature(run_foretell: RunForetell) -> RunForetell:
    """Runs a script of tests/features; its peaks must be what foretell says of the card that held the most."""

    def run(name: str, *arguments: str, **given: Any) -> ForetellRun:
        return with_its_own_peaks(run_foretell(FEATURES / f"{name}.py", *arguments, **given))

    return run


def with_its_own_peaks(run: ForetellRun) -> ForetellRun:
    """A run of a script of tests/features, checked as `run_feature` checks it."""
    assert run.code == 0, run.tail()
    peaks = json.loads(lines_of(run, "PEAKS")[0])
    most = peaks["reserved"].index(max(peaks["reserved"]))
    assert run.peak["reserved_bytes"] == peaks["reserved"][most]
    assert run.peak["allocated_bytes"] == peaks["allocated"][most]
    return run


def lines_of(run: ForetellRun, start: str) -> list[str]:
    return [line.removeprefix(start).strip() for line in run.stdout.splitlines() if line.startswith(start)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def processes_with(word: str) -> list[str]:
    """Command lines of the live processes that have the word in theirs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in words and int(folder.name) != os.getpid() and is_alive(int(folder.name)):
            found.append(words)
    return found


def no_kernel_isolation(reason: str, *before: str) -> NoReturn:
    """Skips the test where the kernel refuses what the isolation needs; where it does not, foretell has failed.
    `before`: words that run a program as the test ran foretell."""
    overlay = "mkdir l u w m; mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m"
    commands = f"mount -t tmpfs t /tmp; cd /tmp; {overlay}; mount -t proc p /proc"
    namespaces = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork"]
    if before or os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    try:
        tried = subprocess.run([*before, *namespaces, "sh", "-ec", commands], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip(f"no kernel isolation here: {reason}")
    assert tried.returncode != 0, f"the kernel gives namespaces and overlays, and yet: {reason}"
    pytest.skip(f"no kernel isolation here: {reason}, and to unshare: {tried.stderr}")


def the_record(output: str) -> str:
    """What tests/zoo/recorder.py wrote into the output of a workload."""
    return "\n".join(line.removeprefix("RECORD ") for line in output.splitlines() if line.startswith("RECORD "))


class CpuReference:
    """Scripts on the plain CPU, in forks of a warm process: no virtual GPU, no hooks. Each workload of the zoo once."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self._folder = folder
        self._records: dict[str, str] = {}
        self._warm = warm

    def record(self, workload: str) -> str:
        """Which way the workload goes on the CPU, as tests/zoo/recorder.py writes it."""
        if workload not in self._records:
            words = ("-m", workload) if (ZOO / workload).is_dir() else (str(ZOO / f"{workload}.py"),)
            self._records[workload] = the_record(self.run(*words, "--device", "cpu", environment={"ZOO_RECORD": "1"}))
        return self._records[workload]

    def run(self, *words: str, environment: dict[str, str] | None = None) -> str:
        """What the script prints; it must not fail."""
        folder = Path(mkdtemp(dir=self._folder))
        program = Program(
            argv=(sys.executable, *words),
            environment={**os.environ, **(environment or {})},
            cwd=ZOO,
            stdout=folder / OUTPUT,
            stderr=folder / OUTPUT,
            timeout_seconds=HANG_SECONDS,
        )
        ended = self._warm.run(program, Watch(folder))
        output = (folder / OUTPUT).read_text()
        assert ended.exit_status == 0, f"{words} fails on the CPU:\n{output}"
        return output


@pytest.fixture(scope="session")
def cpu_reference(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> CpuReference:
    return CpuReference(tmp_path_factory.mktemp("cpu-reference"), warm)


@pytest.fixture(scope="session")
def warm_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRuns]:
    from warm_runs import WarmRuns

    runs = WarmRuns(tmp_path_factory.mktemp("warm-runs"))
    yield runs
    runs.close()


@pytest.fixture(scope="session")
def warm(warm_runs: WarmRuns) -> Warm:
    """The warm processes of `warm_runs`, for tests that hand them over. A test that ends them makes its own."""
    return warm_runs.warm


@pytest.fixture
def in_forks(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs jobs in this process (a command, `foretell.estimate`, a search), runs each in a fork of `warm`."""
    from foretell import api

    run, one_at_a_time = api.run, threading.Lock()

    def in_fork(job: Job, **given: Any) -> api.Run:
        with one_at_a_time:
            return run(job, **{**given, "warm": warm})

    monkeypatch.setattr(api, "run", in_fork)


@pytest.fixture
def run_in_forks(
    in_forks: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> RunForetell:
    """The command of `run_foretell` in this process, the script in a fork. The script's own output is not shown."""
    from foretell.cli import main

    def run(
        *command: str | Path, gpu: str = "rtx-3060", steps: str = "all", options: list[str] | None = None,
        cwd: Path | None = None,
    ) -> ForetellRun:  # fmt: skip
        json_file = tmp_path / "estimate.json"
        json_file.unlink(missing_ok=True)
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setenv("COLUMNS", "120")
        capfd.readouterr()
        words = ["--gpu", gpu, "--steps", steps, "--json", str(json_file), *(options or [])]
        code = main(["run", *words, "--", *map(str, command)])
        said = capfd.readouterr()
        result = json.loads(json_file.read_text()) if json_file.exists() else {}
        return ForetellRun(code, said.out, said.err, result)

    return run


PYTEST_IN_FORKS = """
import os

if "FORETELL_CAPTURE" not in os.environ:
    import functools

    from foretell import api
    from foretell.runs import Warm

    warm = Warm()
    api.run = functools.partial(api.run, warm=warm)

    def pytest_unconfigure(config):
        warm.close()
"""
"""A conftest.py that does the same for a pytest of its own."""
