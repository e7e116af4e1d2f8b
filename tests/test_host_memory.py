"""The limit on host memory counts all processes of a run, and what they share once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import HANG_SECONDS, no_kernel_isolation
from foretell import gpus
from foretell.errors import UnsupportedError
from foretell.jobs import CaptureOptions, Job
from foretell.runs import host_memory, launch
from foretell.units import MIB

HELD_BY_TWO = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    held = b"x" * (256 << 20)  # by a process that has lost its parent
    signal.pause()
held = b"x" * (256 << 20)
signal.pause()
"""
SHARED = """
import os, signal
held = b"x" * (256 << 20)
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    os.read(read, 1)  # ends with its parent
    os._exit(0)
print("forked", flush=True)
signal.pause()
"""


def test_all_processes_of_a_run_count(tmp_path: Path) -> None:
    options = CaptureOptions(most_host_bytes=400 * MIB, timeout_seconds=HANG_SECONDS, isolation="kernel")
    job = Job(command=(sys.executable, "-c", HELD_BY_TWO), gpu=gpus.find("rtx-3060"), options=options)
    try:
        result = launch(job, tmp_path)
    except UnsupportedError as error:
        no_kernel_isolation(str(error))
    assert (result.is_over_host_memory, result.is_timed_out) == (True, False)


def test_memory_that_processes_share_counts_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SHARED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        assert host_memory.exceeds(256 * MIB, process.pid)
        assert not host_memory.exceeds(400 * MIB, process.pid)
        process.kill()


def test_a_process_that_has_ended_uses_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not host_memory.exceeds(0, process.pid)
