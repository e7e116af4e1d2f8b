"""Many jobs at once, and what is kept of them: on this machine, and on a Ray cluster of two simulated nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG_SECONDS, TESTS, is_alive
from foretell import api, gpus
from foretell.errors import ScriptError, UnsupportedError, UsageError
from foretell.jobs import CaptureOptions, Job
from foretell.records import Estimate
from foretell.runs import OUTPUT, Pool, Program, Store, Warm, Watch, parse_workers, pickled, result_of, state_of_code

TRAIN = """
import torch
model = torch.nn.Linear({width}, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(64, {width}).cuda()).sum().backward()
    optimizer.step()
"""
HAS_RAY = importlib.util.find_spec("ray") is not None


# --- the pool ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "workers"), [("3", 3), ("ray", "ray"), ("ray://head:10001", "ray://head:10001")])
def test_workers_are_a_number_or_a_ray_cluster(text: str, workers: int | str) -> None:
    assert parse_workers(text) == workers


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "ray://", "http://head"])
def test_workers_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"must be a number \(1 or more\), ray, or the address"):
        parse_workers(text)


def test_results_come_as_they_end_with_their_items() -> None:
    second_is_done = threading.Event()

    def work(item: int, warm: Warm) -> int:
        if item == 1:
            assert second_is_done.wait(HANG_SECONDS)
        return item * item

    found = []
    with Pool(2) as pool:
        for item, result in pool.map(work, [1, 2, 3]):
            found.append((item, result))
            if item == 3:
                second_is_done.set()
    assert sorted(found) == [(1, 1), (2, 4), (3, 9)]
    assert found[-1] == (1, 1)


def test_a_problem_of_the_work_is_raised_and_the_rest_is_cancelled() -> None:
    done = []
    is_raised = threading.Event()

    def work(item: int, warm: Warm) -> None:
        done.append(item)
        if item == 0:
            raise ValueError(f"of item {item}")
        is_raised.wait(HANG_SECONDS)

    with Pool(1) as pool:
        with pytest.raises(ValueError, match="of item 0"):
            list(pool.map(work, range(100)))
        is_raised.set()
    assert len(done) <= 2


def test_what_waits_can_be_cancelled() -> None:
    may_end = threading.Event()
    with Pool(1) as pool:
        running = pool.submit(lambda item, warm: may_end.wait(HANG_SECONDS), 0)
        waiting = pool.submit(lambda item, warm: item, 1)
        assert waiting.cancel()
        may_end.set()
        assert running.result(60) is True


def plain_program(folder: Path, *words: str, **given: object) -> Program:
    values = {"argv": (sys.executable, *words), "environment": dict(os.environ), "cwd": folder}
    values |= {"stdout": folder / "stdout", "stderr": folder / "stderr"}
    return Program(**{**values, **given})  # type: ignore[arg-type]


def test_closing_ends_what_runs_and_all_that_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    code = "import os, subprocess, sys; child = subprocess.Popen(['sleep', '600'])\n"
    code += f"open({str(tmp_path / 'started')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); child.wait()"
    (tmp_path / "run.py").write_text(code)
    with Pool(1) as pool:
        program = plain_program(tmp_path, "run.py")
        future = pool.submit(lambda program, warm: warm.run(program, Watch(tmp_path)), program)
        pids = [int(word) for word in (tmp_path / "started").read_text().split()]
        pool.close()
        with pytest.raises(UnsupportedError, match="cancelled"):
            future.result(HANG_SECONDS)
    assert [is_alive(pid) for pid in pids] == [False, False]


def test_a_warm_process_that_is_killed_takes_its_run_with_it_and_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    code = f"import os, time; open({str(tmp_path / 'started')!r}, 'w').write(f'{{os.getpid()}} {{os.getppid()}}')\n"
    (tmp_path / "run.py").write_text(code + "time.sleep(600)")
    with Pool(1) as pool:
        program = plain_program(tmp_path, "run.py")
        future = pool.submit(lambda program, warm: warm.run(program, Watch(tmp_path)), program)
        run, server = (int(word) for word in (tmp_path / "started").read_text().split())
        os.kill(server, signal.SIGKILL)
        with pytest.raises(UnsupportedError, match="the warm process died"):
            future.result(HANG_SECONDS)
        assert not is_alive(run)


# --- warm processes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(warm: Warm) -> Warm:
    """For runs that nothing is hooked into and that see no card."""
    return warm


def test_a_plain_run_sees_no_card_and_keeps_its_outputs_apart(plain: Warm, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import os, sys, torch\nprint(torch.cuda.is_available(), os.getcwd(), sys.argv)\n"
        "print('FORETELL_CAPTURE' in os.environ, file=sys.stderr)\nsys.exit(5)"
    )
    ended = plain.run(plain_program(tmp_path, "run.py", "a b"), Watch(tmp_path))
    assert (ended.exit_status, ended.limit) == (5, None)
    assert (tmp_path / "stdout").read_text() == f"False {tmp_path} ['run.py', 'a b']\n"
    assert (tmp_path / "stderr").read_text() == "False\n"


def test_a_fork_is_ended_at_its_time_limit_with_what_it_started(
    plain: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    code = "import signal, subprocess; child = subprocess.Popen(['sleep', '600'])\n"
    code += f"open({str(started)!r}, 'w').write(str(child.pid)); signal.pause()"
    (tmp_path / "run.py").write_text(code)
    pids: list[int] = []
    # The first look at the run waits until it has started the other one, however long that takes.
    monkeypatch.setattr("foretell.runs.waiting._FIRST_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("foretell.runs.waiting._PROGRESS_SECONDS", 3600.0)
    watch = Watch(tmp_path, on_progress=lambda _: pids.append(int(started.read_text())))
    ended = plain.run(plain_program(tmp_path, "run.py", timeout_seconds=3.0), watch)
    assert (ended.limit, ended.exit_status) == ("time", 1)  # a KeyboardInterrupt, so that its exit handlers ran
    assert [is_alive(pid) for pid in pids] == [False]


def test_a_fork_that_takes_too_much_memory_is_ended(plain: Warm, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import signal\nheld = b'x' * (3 << 30)\nsignal.pause()")
    program = plain_program(tmp_path, "run.py", most_bytes=2 << 30, timeout_seconds=HANG_SECONDS)
    ended = plain.run(program, Watch(tmp_path))
    assert ended.limit == "memory"


def test_a_job_that_takes_too_much_memory_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import signal, torch\nheld = b'x' * (3 << 30)\nsignal.pause()")
    options = CaptureOptions(most_host_bytes=2 << 30, timeout_seconds=HANG_SECONDS)
    run = api.run(Job(command=("run.py",), gpu=gpus.find("rtx-3060"), cwd=tmp_path, options=options))
    with pytest.raises(ScriptError, match="limit of host memory"):
        _ = run.estimate


def test_what_is_read_when_python_starts_needs_a_process_of_its_own(plain: Warm, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "found_here.py").write_text("")
    (tmp_path / "run.py").write_text("import found_here")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "place")}
    assert plain.run(plain_program(tmp_path, "run.py"), Watch(tmp_path)).exit_status == 1
    assert plain.run(plain_program(tmp_path, "run.py", environment=environment), Watch(tmp_path)).exit_status == 0


def test_progress_of_a_fork_is_told(plain: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["foretell.runs.waiting"]
    monkeypatch.setattr(module, "_FIRST_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(module, "_PROGRESS_SECONDS", 0.01)
    os.mkfifo(tmp_path / "seen")
    (tmp_path / "journal-1.jsonl").write_text('{"kind": "step", "time_us": 1, "index": 2, "devices": []}\n')
    (tmp_path / "run.py").write_text("open('seen').read()")
    seen = []

    def on_progress(progress: object) -> None:
        if not seen:
            (tmp_path / "seen").write_text("yes")
        seen.append(progress)

    plain.run(plain_program(tmp_path, "run.py"), Watch(tmp_path, on_progress=on_progress))
    assert seen[0].num_steps == 3


def add(a: int, b: int) -> int:
    return a + b


def test_a_function_runs_in_a_fork_and_gives_back_its_result(warm: Warm, tmp_path: Path) -> None:
    job = Job(
        command=("add",), call=pickled(add, (2, 3), keeps_result=True), gpu=gpus.find("rtx-3060"),
        options=CaptureOptions(timeout_seconds=HANG_SECONDS),
    )  # fmt: skip
    assert api.run(job, directory=tmp_path, warm=warm).trace.exit_status == 0
    assert result_of(tmp_path) == 5, (tmp_path / OUTPUT).read_text()


# --- the store --------------------------------------------------------------------------------------------------------


def test_what_was_kept_is_there_again_for_the_same_state_only(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "results.jsonl"
    store = Store(path, state="one")
    store.add("a", {"bytes": 1})
    store.add("b", [2])
    again = Store(path, state="one")
    assert ("a" in again, again["b"]) == (True, [2])
    assert "a" not in Store(path, state="two")


def test_half_a_line_at_the_end_loses_that_result_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    store = Store(path, state="s")
    for key in "abc":
        store.add(key, key)
    path.write_bytes(path.read_bytes()[:-5])
    torn = Store(path, state="s")
    assert ["a" in torn, "b" in torn, "c" in torn] == [True, True, False]
    torn.add("c", "again")
    whole = Store(path, state="s")
    assert [whole[key] for key in "abc"] == ["a", "b", "again"]


def test_the_state_of_the_code_changes_with_the_code(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text("1")
    first = state_of_code(tmp_path)
    assert first == state_of_code(tmp_path) != state_of_code()
    (tmp_path / "more.py").write_text("2")
    assert state_of_code(tmp_path) != first


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_is_said_what_to_install() -> None:
    with pytest.raises(UnsupportedError, match=r"pip install 'foretell\[ray\]'"):
        Pool("ray")


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: make ray")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_told_with_what_to_do(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:  # has the port, and listens to no one
        nobody.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UnsupportedError, match=r"no Ray cluster responds .*\(ray start --head\)"):
            Pool(address if scheme else "ray")


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes of three scripts on a cluster of two nodes."""
    folder = tmp_path_factory.mktemp("on-ray")
    for width in (256, 512, 1024):
        (folder / f"train{width}.py").write_text(TRAIN.format(width=width))
    scripts = sorted(map(str, folder.glob("train*.py")))
    done = subprocess.run(
        [sys.executable, str(TESTS / "on_ray.py"), *scripts], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: make ray")
def test_a_worker_of_a_cluster_holds_one_thing_for_all_of_its_items(on_ray: dict[str, Any]) -> None:
    assert sum(tally == 1 for tally in on_ray["tallies"]) <= 2
    assert max(on_ray["tallies"]) >= 4


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: make ray")
@pytest.mark.parametrize("how", ["ray", "client"])
def test_a_ray_cluster_of_two_nodes_gives_what_this_machine_gives(
    how: str, on_ray: dict[str, Any], warm: Warm
) -> None:
    result = on_ray[how]
    assert result["num_workers"] == 2
    assert len(result["found"]) == 3
    assert len({node for _, node in result["found"].values()}) == 2
    for script in result["found"]:
        job = Job(command=(script,), gpu=gpus.find("rtx-3060"), options=CaptureOptions(steps="all"))
        here, there = api.run(job, warm=warm).estimate, Estimate.from_json(result["found"][script][0])
        assert (there.peak, there.steps, there.caveats) == (here.peak, here.steps, here.caveats)
