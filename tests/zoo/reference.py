"""Runs workloads on the CPU, many from one process: torch is imported once, and each workload runs in a fork of it.

Reads lines `NAME OUTPUT_FILE` and answers each with the exit code of that workload.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

ZOO = Path(__file__).resolve().parent


def main() -> None:
    sys.path.insert(0, str(ZOO))
    import common  # noqa: F401
    import torch

    from foretell.capture.inside.fake_cuda.packages import complete_torchvision

    complete_torchvision(torch)  # the stack without CUDA has a torchvision made for it
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what the first optimizer of a process imports
    for line in sys.stdin:
        name, output = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            run(name, output)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(name: str, output: str) -> None:
    """In the child: as `python NAME.py --device cpu` would, up to and including what atexit does."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["ZOO_RECORD"] = "1"
    sys.argv = [name, "--device", "cpu"]
    code = 0
    try:
        if (ZOO / name).is_dir():
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(ZOO / f"{name}.py"), run_name="__main__")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    import recorder

    recorder.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
